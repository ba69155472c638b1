"""Open UQFF: the shards of one quantization, the residual and the config, as one container.

A shard `<stem>-<number>.uqff` is a safetensors file; the tensors of a layer may be in two shards.
Three scalars in one of them are the version. Source: mistral.rs, docs/reference/uqff-format,
version 1.2.
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
"""The newest version that is read, and the version that is written."""

VERSION_KEYS = ("uqff.version.major", "uqff.version.minor", "uqff.version.patch")
SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{1,9})\.uqff", re.DOTALL)
TENSOR = re.compile(r"(?P<key>.+)\.(?P<suffix>weight(\.[^.]+)?)", re.DOTALL)
"""The name of a layer's tensor: key, and suffix."""


class UqffContainer(MappedContainer):
    """A `MappedContainer` that restores the row order of interleaved q and k.

    `interleaved` maps these tensors to their number of heads.
    """

    def __init__(
        self,
        path: Path,
        locations: Mapping[str, TensorLocation],
        metadata: Mapping[str, Any],
        config: Mapping[str, Any],
        interleaved: Mapping[str, int],
    ) -> None:
        super().__init__(path, locations, metadata, config)
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

    Only headers and scalars are read. Raises CheckpointError (malformed files), ModelNotFound
    (missing files), ConfigError and Unsupported (config.json).
    """
    shards = find_shards(path)
    folder = shards[0].parent
    check_report(folder, shards)
    stored, metadata = gather(shards)
    check_version(stored, shards[0])
    residual, _ = read_header(MappedFile(residual_of(folder)))
    locations = dict(residual)
    for name, location in present(stored):
        if name in locations:
            other = locations[name].info.file
            raise fault(location, f"is also in {other}; the files are of different models")
        locations[name] = location
    config, adjacent = rotation.read(read_config(folder))
    interleaved = rotation.interleaved(config, locations) if adjacent else {}
    return UqffContainer(path, locations, metadata, config, interleaved)


def find_shards(path: Path) -> list[Path]:
    """The shards of a file's quantization, or of a folder's only quantization, in order."""
    folder = path if path.is_dir() else path.parent
    stems: dict[str, list[Path]] = defaultdict(list)
    for file in folder.glob(f"*{SUFFIX}"):
        stems[stem_and_number(file)[0]].append(file)
    if path.is_dir() and len(stems) > 1:
        raise CheckpointError(
            f"{path.name}: contains several quantizations: {', '.join(sorted(stems)[:10])}; give "
            f"the path of a file, as in {path.name}/{min(stems)}-0{SUFFIX}"
        )
    stem = stem_and_number(path)[0] if not path.is_dir() else next(iter(stems), "")
    shards = sorted(stems.get(stem, ()), key=stem_and_number)
    if not shards or (path.suffix == SUFFIX and path not in shards):
        raise ModelNotFound(f"{path}: no such file")
    for i, shard in enumerate(shards):
        if stem_and_number(shard)[1] != i:
            raise CheckpointError(f"{stem}-{i}{SUFFIX}: missing beside {shard.name}; download it")
    return shards


def stem_and_number(file: Path) -> tuple[str, int]:
    """The stem and the number in a shard's name."""
    match = SHARD.fullmatch(file.name)
    return (match["stem"], int(match["number"])) if match else (file.stem, 0)


def check_report(folder: Path, shards: list[Path]) -> None:
    """Raise CheckpointError if the report lists further shards: the download is incomplete."""
    if not (folder / REPORT).is_file():
        return
    outputs = read_config(folder / REPORT).get("outputs")
    names = {shard.name for shard in shards}
    for output in outputs if isinstance(outputs, list) else ():
        listed = output.get("shards") if isinstance(output, dict) else None
        reported = {name for name in listed if isinstance(name, str)} if listed else set()
        if reported & names and (absent := sorted(reported - names)):
            raise CheckpointError(
                f"{absent[0]!r:.80}: missing, but listed in {REPORT}; download it"
            )


def residual_of(folder: Path) -> Path:
    if not (folder / RESIDUAL).is_file():
        raise ModelNotFound(
            f"no {RESIDUAL} in {folder}, which contains the norms of a UQFF model; download it"
        )
    return folder / RESIDUAL


def gather(shards: Iterable[Path]) -> tuple[dict[str, TensorLocation], dict[str, str]]:
    """Merge the headers of shards, which may repeat the version only."""
    locations: dict[str, TensorLocation] = {}
    metadata: dict[str, str] = {}
    for path in shards:
        found, extra = read_header(MappedFile(path))
        metadata = extra | metadata
        for name, location in found.items():
            if name in VERSION_KEYS:
                check(location, WORD)
            if name not in locations:
                locations[name] = location
                continue
            other = locations[name]
            if name not in VERSION_KEYS:
                raise fault(location, f"is also in {other.info.file}; they are of different models")
            if number(location) != number(other):
                raise fault(
                    location,
                    f"is {number(location)}, and {number(other)} in {other.info.file}; they are of "
                    "different models",
                )
    return locations, metadata


def check_version(locations: Mapping[str, TensorLocation], shard: Path) -> None:
    """Raise CheckpointError for versions before UQFF 1.0 and after `VERSION`."""
    if absent := [key for key in VERSION_KEYS if key not in locations]:
        old = bool(locations) and all(name.isdecimal() for name in locations)
        reason = "its tensors have numbers as names" if old else f"{absent[0]} is missing"
        raise CheckpointError(
            f"{shard.name}: is older than UQFF 1.0 ({reason}); quantize the model again"
        )
    major, minor, patch = (number(locations[key]) for key in VERSION_KEYS)
    if major != VERSION[0] or minor > VERSION[1]:
        raise fault(
            locations[VERSION_KEYS[0 if major != VERSION[0] else 1]],
            f"is UQFF {major}.{minor}.{patch}, expected 1.0 to {VERSION[0]}.{VERSION[1]}; use a "
            "newer ostro, or a file written by mistral.rs 0.9",
        )


def present(locations: Mapping[str, TensorLocation]) -> Iterator[tuple[str, TensorLocation]]:
    """The tensors of shards as quantizers claim them; other tensors are unchanged."""
    layers: dict[str, dict[str, TensorLocation]] = defaultdict(dict)
    for name, location in locations.items():
        if name in VERSION_KEYS:
            continue
        if match := TENSOR.fullmatch(name):
            layers[match["key"]][match["suffix"]] = location
        else:
            yield name, location
    for key, parts in layers.items():
        yield from show(key, parts).items()
