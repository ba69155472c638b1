"""Open GGUF models: one file, split files, or a text model with its projector."""

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
"""The prefix of a projector's tensors in the joined model."""


def open_gguf(path: Path) -> Container:
    """Open a .gguf file, any file of a split model, or a folder that holds one model.

    A text model and the projector (mmproj) in its folder are opened as one model from the path of
    either; the projector's tensors are "mmproj.name". Only headers are read. The metadata is that
    of the first file, and the projector's. Raises CheckpointError ("<file>@offset N: reason")
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
            f"{file.name}: several projectors in its folder: {names}; give the path of one "
            "of them, or keep only one"
        )
    return JoinedContainer(container, {PART: found[0]}) if found else container


def _open(path: Path, file: Path) -> MappedContainer:
    """A file with its splits; `path` names the container."""
    locations, metadata = Header(MappedFile(file)).read()
    count = metadata.get("split.count", 1)
    if type(count) is not int:
        raise CheckpointError(f"{file.name}: split.count must be a number, not {count!r}")
    if count > 1:
        locations, metadata = _gather(_split_paths(file, count))
    return MappedContainer(path, locations, metadata)


def _text_of(file: Path) -> JoinedContainer:
    """The text model in a projector's folder, joined with the projector."""
    projector, text = Projector(file), _find_model(file.absolute().parent)
    container = _open(file, text)
    if not projector.fits(container.metadata):
        raise CheckpointError(
            f"{file.name} is not the projector of {text.name}: their widths differ; move it to the "
            "folder of its own text model"
        )
    return JoinedContainer(container, {PART: projector})


def _projectors(file: Path, text: Mapping[str, Any]) -> list[Projector]:
    """The projectors in a text model's folder whose width is that of the model."""
    if "general.architecture" not in text or text.get("general.type", "model") != "model":
        return []
    beside = sorted(p for p in file.parent.glob("*.gguf") if "mmproj" in p.name.lower())
    found = [Projector(path) for path in beside]
    return [p for p in found if is_projector(p.metadata) and p.fits(text)]


def _find_model(folder: Path) -> Path:
    """The only model of a folder; split files count once, projectors (mmproj) do not count."""
    files = sorted(p for p in folder.glob("*.gguf") if "mmproj" not in p.name.lower())
    models = [p for p in files if not (m := SPLIT.fullmatch(p.name)) or int(m["number"]) == 1]
    if len(models) == 1:
        return models[0]
    if not models:
        found = ", ".join(p.name for p in files[:10]) or "no .gguf file"
        raise ModelNotFound(f"no GGUF model in {folder}; found: {found}")
    names = ", ".join(p.name for p in models[:10])
    raise CheckpointError(f"{folder.name}: contains several models: {names}; give the path of one")


def _split_paths(file: Path, count: int) -> list[Path]:
    """All files of the split model to which `file` belongs, in order."""
    match = SPLIT.fullmatch(file.name)
    if not match or int(match["count"]) != count:
        raise CheckpointError(
            f"{file.name}: is one of {count} split files; their names must end in "
            f"-00001-of-{count:05d}.gguf and so on"
        )
    stem = match["stem"]
    return [file.with_name(f"{stem}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1)]


def _gather(paths: list[Path]) -> tuple[dict[str, TensorLocation], dict[str, Any]]:
    """Merge the headers of a split model's files."""
    locations: dict[str, TensorLocation] = {}
    metadata: dict[str, Any] = {}
    for number, path in enumerate(paths):
        if not path.exists():
            raise CheckpointError(
                f"{path.name}: missing, file {number + 1} of {len(paths)} of a split model; "
                "download it"
            )
        found, extra = Header(MappedFile(path)).read()
        if (extra.get("split.no"), extra.get("split.count")) != (number, len(paths)):
            raise CheckpointError(
                f"{path.name}: split.no is {extra.get('split.no')} (from 0) of "
                f"{extra.get('split.count')}, expected {number} of {len(paths)}; the file is "
                "misnamed"
            )
        if twice := locations.keys() & found.keys():
            name = min(twice)
            raise CheckpointError(
                f"{path.name}: tensor {name!r} is also in {locations[name].info.file}"
            )
        locations |= found
        metadata = metadata or extra
    total = metadata.get("split.tensors.count", len(locations))
    if total != len(locations):
        raise CheckpointError(
            f"{paths[0].name}: split.tensors.count is {total}, its {len(paths)} files hold "
            f"{len(locations)}"
        )
    return locations, metadata
