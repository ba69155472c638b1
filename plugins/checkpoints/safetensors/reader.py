"""Open safetensors files and folders, with validated headers.

A file is: u64 length n, n bytes of JSON `{name: {dtype, shape, data_offsets}, "__metadata__"}`,
then the tensors' bytes without gaps, little endian, row-major. Source: the format description of
the safetensors project. In addition, repeated names are refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any, NoReturn

from ostro import TensorInfo
from ostro.checkpoints import (
    DTYPES,
    MappedContainer,
    MappedFile,
    TensorLocation,
    read_regular,
    resolve_path,
    tensor_fault,
)
from ostro.errors import CheckpointError, ModelNotFound, PickleRefused
from ostro.plugins.checkpoints.safetensors import PICKLES

MAX_HEADER = 100_000_000
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

BITS: Mapping[str, int] = {
    **{name: 8 * itemsize for name, (_, itemsize) in DTYPES.items()},
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F4": 4,
}
"""Bits per element of every dtype of the format."""


def open_safetensors(path: Path) -> MappedContainer:
    """Open a .safetensors file, or a folder of them with or without an index.

    Only headers are read. Raises CheckpointError (what is malformed, in which file and tensor),
    ModelNotFound (no weights), PickleRefused (weights that can run code).
    """
    if not path.is_dir():
        if path.suffix in PICKLES:
            _refuse_pickles([path.name])
        return _container(path, path.parent, _open_shards([path], {}))
    return _container(path, path, _open_folder(path, (INDEX,), (SINGLE,)))


def open_shards(
    folder: Path, indices: Iterable[str], singles: Iterable[str]
) -> dict[str, TensorLocation]:
    """The tensors of a folder: of the first index that exists, else of the first file of `singles`
    that exists, else of all files. Raises the errors of `open_safetensors`.
    """
    return _open_folder(folder, indices, singles)[0]


def _open_folder(
    path: Path, indices: Iterable[str], singles: Iterable[str]
) -> tuple[dict[str, TensorLocation], dict[str, str]]:
    index = next((name for name in indices if (path / name).exists()), None)
    if index is None:
        return _open_shards(_find_shards(path, singles), {})
    owners = _read_index(path / index)
    shards = [_shard_path(path, shard) for shard in sorted(set(owners.values()))]
    locations, metadata = _open_shards(shards, owners)
    if absent := sorted(owners.keys() - locations.keys()):
        name = absent[0]
        raise CheckpointError(
            f"{index}: {len(absent)} tensors are not in the shards it names; "
            f"first: {name!r}, expected in {owners[name]}"
        )
    return locations, metadata


def _container(path: Path, folder: Path, opened: tuple[Any, Any]) -> MappedContainer:
    locations, metadata = opened
    return MappedContainer(path, locations, metadata, config=folder / "config.json")


def _find_shards(folder: Path, singles: Iterable[str]) -> list[Path]:
    """The weight files of a folder that has no index."""
    names = sorted(entry.name for entry in folder.iterdir())
    shards = [name for name in names if name.endswith(".safetensors")]
    if single := next((name for name in singles if name in shards), None):
        shards = [single]
    if not shards:
        if pickles := [name for name in names if name.endswith(PICKLES)]:
            _refuse_pickles(pickles)
        raise ModelNotFound(f"no weights in {folder}; found: {', '.join(names[:10]) or 'nothing'}")
    return [_shard_path(folder, name) for name in shards]


def _refuse_pickles(names: list[str]) -> NoReturn:
    raise PickleRefused(
        f"the weights come only as pickles ({', '.join(names[:3])}), which can run code when they "
        "are opened. Use a revision with safetensors, or convert them where you trust them: "
        'safetensors.torch.save_file(torch.load(FILE, weights_only=True), "model.safetensors")'
    )


def _read_index(index: Path) -> dict[str, str]:
    """Tensor name -> shard file name."""
    try:
        raw = read_regular(index, MAX_HEADER)
    except OSError as error:
        raise CheckpointError(f"{index.name}: cannot be read: {error.strerror}") from None
    owners = _parse(index.name, raw).get("weight_map")
    if not isinstance(owners, dict) or not all(isinstance(v, str) for v in owners.values()):
        raise CheckpointError(f"{index.name}: weight_map must map tensor names to file names")
    return owners


def _shard_path(folder: Path, shard: str) -> Path:
    """The path of a shard, which must be a safetensors file in the folder."""
    if shard in ("", "..") or "/" in shard or "\\" in shard:
        raise CheckpointError(f"{INDEX}: shard path {shard!r} leaves the model's folder")
    if not shard.endswith(".safetensors"):
        raise CheckpointError(f"{INDEX}: shard {shard!r} is not a .safetensors file")
    if shard not in os.listdir(folder):
        raise CheckpointError(f"{INDEX}: shard {shard!r} is missing; download the model again")
    path = folder / shard
    try:
        found = resolve_path(path)
    except OSError as error:
        raise CheckpointError(
            f"{shard}: cannot be opened: {error.strerror}; replace it by the file"
        ) from None
    if not found.is_relative_to(_link_root(folder.resolve())):
        raise CheckpointError(
            f"{shard}: is a symlink out of the model's folder; replace it by the file"
        )
    return path


def _link_root(folder: Path) -> Path:
    """The folder in which targets of a model's symlinks must be.

    A snapshot in the Hugging Face cache is a folder of links into its sibling `blobs`.
    """
    repository = folder.parent.parent
    if folder.parent.name == "snapshots" and (repository / "blobs").is_dir():
        return repository
    return folder


def _open_shards(
    paths: Iterable[Path], owners: Mapping[str, str]
) -> tuple[dict[str, TensorLocation], dict[str, str]]:
    """Merge the headers of shards. `owners` names the shard of a tensor that several contain."""
    locations: dict[str, TensorLocation] = {}
    metadata: dict[str, str] = {}
    for path in paths:
        found, extra = read_header(MappedFile(path))
        metadata.update(extra)
        for name, location in found.items():
            if owners.get(name, path.name) != path.name:
                continue
            if name in locations:
                raise CheckpointError(
                    f"{path.name}: tensor {name!r} is also in {locations[name].info.file}; "
                    "leave only one of them in the folder"
                )
            locations[name] = location
    return locations, metadata


def read_header(file: MappedFile) -> tuple[dict[str, TensorLocation], dict[str, str]]:
    """Validate a file's header; return the locations of its tensors, and its metadata."""
    where = file.path.name
    if file.size < 8:
        size = f"{file.size} bytes are too few for a safetensors file" if file.size else "is empty"
        raise CheckpointError(f"{where}: {size}; download it again")
    length = int.from_bytes(file.data[:8].tobytes(), "little")
    if length > MAX_HEADER:
        raise CheckpointError(f"{where}: header of {length} bytes; the limit is {MAX_HEADER}")
    if 8 + length > file.size:
        raise CheckpointError(
            f"{where}: header of {length} bytes in a file of {file.size}; the file is truncated; "
            "download it again"
        )
    header = _parse(where, file.data[8 : 8 + length].tobytes())
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise CheckpointError(f"{where}: __metadata__ must map strings to strings")
    start = 8 + length
    locations = {name: _place(file, start, name, entry) for name, entry in header.items()}
    _check_coverage(where, locations.values(), start, file.size)
    return locations, metadata


def _parse(where: str, raw: bytes) -> dict[str, Any]:
    def refuse_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        unique = dict(pairs)
        if len(unique) < len(pairs):
            names = [name for name, _ in pairs]
            name = next(name for name in names if names.count(name) > 1)
            raise CheckpointError(f"{where}: {name!r} occurs twice")
        return unique

    if not raw.startswith(b"{"):
        raise CheckpointError(f"{where}: its JSON must begin with '{{'")
    try:
        parsed: dict[str, Any] = json.loads(raw.decode(), object_pairs_hook=refuse_repeats)
    except json.JSONDecodeError as error:
        at = f"line {error.lineno} column {error.colno}"
        raise CheckpointError(f"{where}: not JSON: {at}: {error.msg}") from None
    except RecursionError:
        raise CheckpointError(f"{where}: its JSON is nested too deeply") from None
    except ValueError as error:
        # not UTF-8, or a number with thousands of digits
        raise CheckpointError(f"{where}: not JSON: {error}") from None
    return parsed


def _place(file: MappedFile, start: int, name: str, entry: Any) -> TensorLocation:
    """Validate one entry of a header; `start` is the offset of the data section."""
    where = f"{file.path.name}: tensor {name!r}"
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise CheckpointError(f"{where}: needs dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise CheckpointError(f"{where}: unknown dtype {dtype!r}; known: {', '.join(BITS)}")
    if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
        raise CheckpointError(f"{where}: shape and data_offsets must be lists of natural numbers")
    begin, end = offsets
    if fault := tensor_fault(name, tuple(shape)):
        raise CheckpointError(f"{where}: {fault}")
    bits = prod(shape) * BITS[dtype]
    row = shape[-1] if shape else 1
    if row * BITS[dtype] % 8:
        raise CheckpointError(f"{where}: rows of {row} {dtype} do not fill whole bytes")
    if end - begin != bits // 8:
        raise CheckpointError(
            f"{where}: {dtype} {shape} takes {bits // 8} bytes, data_offsets give {end - begin}"
        )
    if start + end > file.size:
        raise CheckpointError(
            f"{where}: ends at byte {start + end} of a file of {file.size}; the file is truncated; "
            "download it again"
        )
    info = TensorInfo(
        name=name, shape=tuple(shape), format=dtype, nbytes=end - begin, file=file.path.name
    )
    return TensorLocation(info, file, start + begin)


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def _check_coverage(where: str, locations: Iterable[TensorLocation], start: int, size: int) -> None:
    """Raise an error unless the tensors cover the data section without gaps and overlaps."""
    expected = start
    for location in sorted(locations, key=lambda location: (location.start, location.info.nbytes)):
        if location.start != expected:
            fault = "overlaps the one before it" if location.start < expected else "follows a gap"
            raise CheckpointError(f"{where}: tensor {location.info.name!r} {fault} in the file")
        expected += location.info.nbytes
    if expected != size:
        raise CheckpointError(f"{where}: {size - expected} bytes follow its last tensor")
