"""The GGUF reader: one file, or the files that llama.cpp split a model into."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ostro.core.errors import CheckpointError, ModelNotFound
from ostro.core.load.container import MappedContainer, MappedFile, Place
from ostro.plugins.checkpoints.gguf.header import Header

SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def open_gguf(path: Path) -> MappedContainer:
    """Open a .gguf file, any file of a split model, or a folder that holds one model.

    Only headers are read. The metadata is that of the first file. Raises CheckpointError
    ("<file>@offset N: reason") and ModelNotFound.
    """
    file = _find_model(path) if path.is_dir() else path
    places, metadata = Header(MappedFile(file)).read()
    count = metadata.get("split.count", 1)
    if type(count) is not int:
        raise CheckpointError(f"{file.name}: split.count must be a number, not {count!r}")
    if count > 1:
        places, metadata = _gather(_split_paths(file, count))
    return MappedContainer(path, places, metadata)


def _find_model(folder: Path) -> Path:
    """The one model of a folder; a split one counts once, a projector (mmproj) not at all."""
    files = sorted(p for p in folder.glob("*.gguf") if "mmproj" not in p.name.lower())
    models = [p for p in files if not (m := SPLIT.fullmatch(p.name)) or int(m["number"]) == 1]
    if len(models) == 1:
        return models[0]
    if not models:
        found = ", ".join(p.name for p in files[:10]) or "no .gguf file"
        raise ModelNotFound(f"no GGUF model in {folder}; found: {found}")
    names = ", ".join(p.name for p in models[:10])
    raise CheckpointError(f"{folder.name}: holds several models: {names}; name one of them")


def _split_paths(file: Path, count: int) -> list[Path]:
    """All files of the split model that `file` is one of, in order."""
    match = SPLIT.fullmatch(file.name)
    if not match or int(match["count"]) != count:
        raise CheckpointError(
            f"{file.name}: is one of {count} files of a split model; their names must end in "
            f"-00001-of-{count:05d}.gguf and so on"
        )
    stem = match["stem"]
    return [file.with_name(f"{stem}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1)]


def _gather(paths: list[Path]) -> tuple[dict[str, Place], dict[str, Any]]:
    """Merge the headers of a split model's files."""
    places: dict[str, Place] = {}
    metadata: dict[str, Any] = {}
    for number, path in enumerate(paths):
        if not path.exists():
            raise CheckpointError(
                f"{path.name}: absent, file {number + 1} of {len(paths)} of a split model"
            )
        found, extra = Header(MappedFile(path)).read()
        if (extra.get("split.no"), extra.get("split.count")) != (number, len(paths)):
            raise CheckpointError(
                f"{path.name}: says it is number {extra.get('split.no')} (from 0) of "
                f"{extra.get('split.count')}, not {number} of {len(paths)}; it is misnamed"
            )
        if twice := places.keys() & found.keys():
            name = min(twice)
            raise CheckpointError(
                f"{path.name}: tensor {name!r} is also in {places[name].info.file}"
            )
        places |= found
        metadata = metadata or extra
    total = metadata.get("split.tensors.count", len(places))
    if total != len(places):
        raise CheckpointError(
            f"{paths[0].name}: promises {total} tensors, its {len(paths)} files hold {len(places)}"
        )
    return places, metadata
