"""The UQFF reader: the shards of one quantization, the residual and the config, as one container.

A shard `<stem>-<number>.uqff` is a safetensors file; the tensors of a layer may lie in two. Three
scalars in one of them are the version. Source: mistral.rs, docs/reference/uqff-format, version 1.2.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostro.checkpoints import MappedContainer, MappedFile, TensorLocation, read_config
from ostro.errors import CheckpointError, ModelNotFound
from ostro.plugins.checkpoints.safetensors.reader import read_header
from ostro.plugins.checkpoints.uqff import RESIDUAL, SUFFIX, rotation
from ostro.plugins.checkpoints.uqff.families import WORD, check, fault, number, show

if TYPE_CHECKING:
    import torch

REPORT = "uqff_report.json"
VERSION = (1, 2, 0)
"""The newest that is read, and what is written."""

VERSION_KEYS = ("uqff.version.major", "uqff.version.minor", "uqff.version.patch")
SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{1,9})\.uqff", re.DOTALL)
TENSOR = re.compile(r"(?P<key>.+)\.(?P<suffix>weight(\.[^.]+)?)", re.DOTALL)
"""A tensor of a layer, whose suffix has no dot but this."""


class UqffContainer(MappedContainer):
    """What `MappedContainer` is; rows of q and k that were interleaved lie apart again.

    `interleaved` are these tensors, with the number of their heads.
    """

    def __init__(
        self,
        path: Path,
        places: Mapping[str, TensorLocation],
        metadata: Mapping[str, Any],
        config: Mapping[str, Any],
        interleaved: Mapping[str, int],
    ) -> None:
        super().__init__(path, places, metadata, config)
        self._interleaved = interleaved

    def read(self, name: str) -> torch.Tensor:
        """As `Container.read`."""
        tensor = super().read(name)
        if name not in self._interleaved:
            return tensor
        from ostro import Unpermute

        return Unpermute(self._interleaved[name]).read(tensor).contiguous()


def open_uqff(path: Path) -> UqffContainer:
    """Open any shard of a quantization, or a folder that holds one.

    Only headers and scalars are read. Raises CheckpointError (what is malformed, in which file and
    tensor), ModelNotFound (a file that is not there), ConfigError and Unsupported (config.json).
    """
    shards = find_shards(path)
    folder = shards[0].parent
    check_report(folder, shards)
    held, metadata = gather(shards)
    check_version(held, shards[0])
    residual, _ = read_header(MappedFile(residual_of(folder)))
    places = dict(residual)
    for name, place in present(held):
        if name in places:
            other = places[name].info.file
            raise fault(place, f"is also in {other}; the files are of different models")
        places[name] = place
    config, adjacent = rotation.read(read_config(folder))
    interleaved = rotation.interleaved(config, places) if adjacent else {}
    return UqffContainer(path, places, metadata, config, interleaved)


def find_shards(path: Path) -> list[Path]:
    """The shards of the quantization that a file is of, or of a folder's only one, in order."""
    folder = path if path.is_dir() else path.parent
    stems: dict[str, list[Path]] = defaultdict(list)
    for file in folder.glob(f"*{SUFFIX}"):
        stems[place_of(file)[0]].append(file)
    if path.is_dir() and len(stems) > 1:
        raise CheckpointError(
            f"{path.name}: holds several quantizations: {', '.join(sorted(stems)[:10])}; name a "
            f"file of one of them, as in {path.name}/{min(stems)}-0{SUFFIX}"
        )
    stem = place_of(path)[0] if not path.is_dir() else next(iter(stems), "")
    shards = sorted(stems.get(stem, ()), key=place_of)
    if not shards or (path.suffix == SUFFIX and path not in shards):
        raise ModelNotFound(f"{path}: no such file")
    for i, shard in enumerate(shards):
        if place_of(shard)[1] != i:
            raise CheckpointError(
                f"{stem}-{i}{SUFFIX}: absent, while {shard.name} is there; download it"
            )
    return shards


def place_of(file: Path) -> tuple[str, int]:
    """The stem of a shard's name and its number."""
    match = SHARD.fullmatch(file.name)
    return (match["stem"], int(match["number"])) if match else (file.stem, 0)


def check_report(folder: Path, shards: list[Path]) -> None:
    """Refuse shards of which the report knows more, so that a download was not finished."""
    if not (folder / REPORT).is_file():
        return
    outputs = read_config(folder / REPORT).get("outputs")
    names = {shard.name for shard in shards}
    for output in outputs if isinstance(outputs, list) else ():
        listed = output.get("shards") if isinstance(output, dict) else None
        said = {name for name in listed if isinstance(name, str)} if listed else set()
        if said & names and (absent := sorted(said - names)):
            raise CheckpointError(f"{absent[0]!r:.80}: absent, and {REPORT} names it; download it")


def residual_of(folder: Path) -> Path:
    if not (folder / RESIDUAL).is_file():
        raise ModelNotFound(
            f"no {RESIDUAL} in {folder}, which holds the norms of a UQFF model; download it"
        )
    return folder / RESIDUAL


def gather(shards: Iterable[Path]) -> tuple[dict[str, TensorLocation], dict[str, str]]:
    """Merge the headers of shards, in which nothing but the version may be twice."""
    places: dict[str, TensorLocation] = {}
    metadata: dict[str, str] = {}
    for path in shards:
        found, extra = read_header(MappedFile(path))
        metadata = extra | metadata
        for name, place in found.items():
            if name in VERSION_KEYS:
                check(place, WORD)
            if name not in places:
                places[name] = place
                continue
            other = places[name]
            if name not in VERSION_KEYS:
                raise fault(place, f"is also in {other.info.file}; they are of different models")
            if number(place) != number(other):
                raise fault(
                    place,
                    f"is {number(place)}, and {number(other)} in {other.info.file}; they are of "
                    "different models",
                )
    return places, metadata


def check_version(places: Mapping[str, TensorLocation], shard: Path) -> None:
    """Refuse what is newer than what is known here, and what is older than UQFF 1.0."""
    if absent := [key for key in VERSION_KEYS if key not in places]:
        old = bool(places) and all(name.isdecimal() for name in places)
        why = "its tensors have numbers for names" if old else f"there is no {absent[0]}"
        raise CheckpointError(
            f"{shard.name}: is of before UQFF 1.0, for {why}; quantize the model again"
        )
    major, minor, patch = (number(places[key]) for key in VERSION_KEYS)
    if major != VERSION[0] or minor > VERSION[1]:
        raise fault(
            places[VERSION_KEYS[0 if major != VERSION[0] else 1]],
            f"says UQFF {major}.{minor}.{patch}; 1.0 to {VERSION[0]}.{VERSION[1]} are read: use a "
            "newer ostro, or a file written by mistral.rs 0.9",
        )


def present(held: Mapping[str, TensorLocation]) -> Iterator[tuple[str, TensorLocation]]:
    """The tensors of shards as quantizers claim them; what is of no weight stays as it is."""
    layers: dict[str, dict[str, TensorLocation]] = defaultdict(dict)
    for name, place in held.items():
        if name in VERSION_KEYS:
            continue
        if match := TENSOR.fullmatch(name):
            layers[match["key"]][match["suffix"]] = place
        else:
            yield name, place
    for key, parts in layers.items():
        yield from show(key, parts).items()
