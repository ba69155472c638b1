"""The GGUF reader: one file, or the files that llama.cpp split a model into."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ostro import Container
from ostro.checkpoints import JoinedContainer, MappedContainer, MappedFile, TensorLocation
from ostro.errors import CheckpointError, ModelNotFound
from ostro.plugins.checkpoints.gguf.header import Header
from ostro.plugins.checkpoints.gguf.projector import Projector, is_projector

SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)

PART = "mmproj"
"""What a projector's tensors are called by, as a part of its model."""


def open_gguf(path: Path) -> Container:
    """Open a .gguf file, any file of a split model, or a folder that holds one model.

    A text beside which lies its projector (mmproj) is one model with it, whichever of the two is
    named; the projector's tensors are called "mmproj.name". Only headers are read. The metadata is
    that of the first file, and the projector's. Raises CheckpointError ("<file>@offset N: reason")
    and ModelNotFound.
    """
    file = _find_model(path) if path.is_dir() else path
    container = _open(path, file)
    if is_projector(container.metadata):
        return _text_of(path)
    found = _projectors(file, container.metadata)
    if len(found) > 1:
        names = ", ".join(projector.path.name for projector in found)
        raise CheckpointError(
            f"{file.name}: several projectors lie beside it: {names}; name the one to take in "
            "place of the text, or keep one in the folder"
        )
    return JoinedContainer(container, {PART: found[0]}) if found else container


def _open(path: Path, file: Path) -> MappedContainer:
    """A file with all that it was split into; it is called by `path`."""
    places, metadata = Header(MappedFile(file)).read()
    count = metadata.get("split.count", 1)
    if type(count) is not int:
        raise CheckpointError(f"{file.name}: split.count must be a number, not {count!r}")
    if count > 1:
        places, metadata = _gather(_split_paths(file, count))
    return MappedContainer(path, places, metadata)


def _text_of(file: Path) -> JoinedContainer:
    """The model that a projector belongs to: that of its folder."""
    projector, text = Projector(file), _find_model(file.absolute().parent)
    container = _open(file, text)
    if not projector.fits(container.metadata):
        raise CheckpointError(
            f"{file.name} is a projector, but not of {text.name}, the text beside it: their widths "
            "differ; put it beside its own text"
        )
    return JoinedContainer(container, {PART: projector})


def _projectors(file: Path, text: Mapping[str, Any]) -> list[Projector]:
    """The projectors beside a text that are as wide as it is."""
    if "general.architecture" not in text or text.get("general.type", "model") != "model":
        return []
    beside = sorted(p for p in file.parent.glob("*.gguf") if "mmproj" in p.name.lower())
    found = [Projector(path) for path in beside]
    return [p for p in found if is_projector(p.metadata) and p.fits(text)]


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


def _gather(paths: list[Path]) -> tuple[dict[str, TensorLocation], dict[str, Any]]:
    """Merge the headers of a split model's files."""
    places: dict[str, TensorLocation] = {}
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
