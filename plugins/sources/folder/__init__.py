"""The source of local files and folders. An existing path takes precedence over hub ids."""

from __future__ import annotations

import os
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from ostro import Settings, errors, hookimpl
from ostro.plugins.sources.files import CONFIGS, contents_of, gguf_models, listed

MAX_ENTRIES = 1000
"""The largest number of a folder's entries that are examined."""


@hookimpl(tryfirst=True)
def ostro_locate(reference: str, kind: str, settings: Settings) -> Path | None:
    """The path, if it exists. Raises ModelNotFound for a missing path that cannot be a hub id."""
    if not reference:
        return None
    try:
        path = Path(reference).expanduser()
        mode = mode_of(path)
        if S_ISDIR(mode):
            return model_in(path) if kind == "model" else adapter_in(path)
        if S_ISREG(mode):
            return path
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise errors.ModelNotFound(f"{reference!r:.200} cannot be looked up: {reason}") from None
    is_file = reference.endswith((".gguf", ".safetensors", ".uqff")) and ":" not in reference
    if is_file or reference.startswith(("/", "./", "../", "~")):
        raise errors.ModelNotFound(f"there is no file or folder {reference}{nearby(path)}")
    return None


def mode_of(path: Path) -> int:
    """The type and permissions of what is at a path, 0 for nothing. Raises OSError.

    `Path.is_dir` of Python 3.14 is False for a path that the system refuses, such as a long one.
    """
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0


def model_in(folder: Path) -> Path:
    """The folder, if it holds a model; its GGUF file, if that is the model.

    Raises ModelNotFound listing what is there.
    """
    names = entries(folder)
    if any(name in names for name in CONFIGS):
        return folder
    models = gguf_models(names)
    if len(models) == 1:
        return folder / models[0][0]
    if models:
        several = listed(model[0] for model in models)
        raise errors.ModelNotFound(
            f"{folder} holds several models: {several}; give the path of one"
        )
    if "adapter_config.json" in names:
        raise errors.ModelNotFound(f"{folder} is an adapter; name its base model first")
    raise errors.ModelNotFound(f"{folder} holds no config.json and no .gguf; {contents_of(names)}")


def adapter_in(folder: Path) -> Path:
    """The folder, if it can be an adapter. Raises ModelNotFound listing what is there."""
    names = entries(folder)
    if not any(name.endswith(".json") for name in names):
        raise errors.ModelNotFound(f"{folder} holds no adapter_config.json; {contents_of(names)}")
    return folder


def entries(folder: Path) -> list[str]:
    """The names in a folder, sorted; at most `MAX_ENTRIES`."""
    with os.scandir(folder) as found:
        return sorted(entry.name for entry, _ in zip(found, range(MAX_ENTRIES), strict=False))


def nearby(path: Path) -> str:
    """The closest existing entries to a missing path, as the last clause of a message."""
    parent = path.absolute().parent
    while not parent.is_dir():
        path, parent = parent, parent.parent
    names = entries(parent)
    near = errors.nearest(path.name, names)
    return f"; {parent} exists, but has no {path.name!r}" + (near or f": {contents_of(names)}")
