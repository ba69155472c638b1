"""Write a float model as a folder of safetensors files, config and assets.

Headers precede the tensors and contain their sizes, so one tensor at a time is in memory. The files
are written to a hidden sibling folder, which is renamed at the end.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ostro import TensorInfo
from ostro.checkpoints import DTYPES, Saving, SavingProgress, atomic_path, refuse_existing
from ostro.errors import CheckpointError, Unsupported
from ostro.plugins.checkpoints.safetensors.reader import INDEX, SINGLE

LIMIT = 5_000_000_000
"""The largest size of a shard in bytes, as usual on the hub."""


class FloatModel(Protocol):
    """A float model to write into `folder`.

    `tensors` lists its tensors in order, and `make(name)` returns one; `config` becomes
    config.json,
    `assets` are files to copy and `texts` the contents of further files, both by name in `folder`.
    """

    @property
    def folder(self) -> Path: ...
    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...
    @property
    def make(self) -> Callable[[str], Tensor]: ...
    @property
    def config(self) -> Mapping[str, Any]: ...
    @property
    def assets(self) -> Mapping[str, Path]: ...
    @property
    def texts(self) -> Mapping[str, str]: ...


def write_safetensors(saving: Saving | FloatModel, progress: SavingProgress) -> Path:
    """Write a folder, in shards of at most `LIMIT` bytes; return its path.

    Raises Unsupported for quantization and for dtypes that safetensors lacks, UsageError if the
    folder exists, CheckpointError if the disk is full.
    """
    if isinstance(saving, Saving):
        raise Unsupported(
            "--to safetensors: writes floats only; use --to gguf or --to uqff to quantize"
        )
    for name, info in saving.tensors.items():
        if info.format not in DTYPES:
            raise Unsupported(
                f"{name} is {info.format}, which safetensors cannot store; choose a float format"
            )
    folder = saving.folder
    refuse_existing(folder)
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        fill(part, saving, progress)
        os.rename(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


def fill(folder: Path, saving: FloatModel, progress: SavingProgress) -> None:
    """Write all files of a folder."""
    shards = split(saving.tensors)
    total, done = sum(info.nbytes for info in saving.tensors.values()), 0

    def make(name: str) -> Tensor:
        nonlocal done
        done += saving.tensors[name].nbytes
        progress(done, total)
        return saving.make(name)

    for name, asset in saving.assets.items():
        (folder / name).parent.mkdir(exist_ok=True)
        with atomic_path(folder / name) as path:
            shutil.copyfile(asset, path)
    texts = dict(saving.texts) | {"config.json": json.dumps(saving.config, indent=2)}
    names = [SINGLE]
    if len(shards) > 1:
        stem = SINGLE.removesuffix(".safetensors")
        many = len(shards)
        names = [f"{stem}-{i:05}-of-{many:05}.safetensors" for i in range(1, many + 1)]
        owners = {tensor: name for name, each in zip(names, shards, strict=True) for tensor in each}
        index = {"metadata": {"total_size": total}, "weight_map": owners}
        texts[INDEX] = json.dumps(index, indent=2)
    for name, text in texts.items():
        with atomic_path(folder / name) as path:
            path.write_text(text, "utf-8")
    for name, shard in zip(names, shards, strict=True):
        save(folder / name, shard, make)


def split(tensors: Mapping[str, TensorInfo]) -> list[dict[str, TensorInfo]]:
    """The tensors in shards of at most `LIMIT` bytes, in order."""
    shards: list[dict[str, TensorInfo]] = [{}]
    size = 0
    for name, info in tensors.items():
        if shards[-1] and size + info.nbytes > LIMIT:
            shards.append({})
            size = 0
        shards[-1][name] = info
        size += info.nbytes
    return shards


def save(file: Path, tensors: Mapping[str, TensorInfo], make: Callable[[str], Tensor]) -> None:
    """Write one file, wide dtypes first, so that all tensors are aligned."""
    order = sorted(tensors, key=lambda name: -DTYPES[tensors[name].format][1])
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in order:
        info = tensors[name]
        start, end = end, end + info.nbytes
        header[name] = {
            "dtype": info.format,
            "shape": list(info.shape),
            "data_offsets": [start, end],
        }
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    with atomic_path(file) as path, open(path, "wb") as stream:
        stream.write(len(raw).to_bytes(8, "little") + raw)
        for name in order:
            flat = make(name).contiguous().flatten().view(torch.uint8)
            if flat.numel() != tensors[name].nbytes:
                raise CheckpointError(
                    f"{name} has {flat.numel()} bytes, expected {tensors[name].nbytes}"
                )
            stream.write(flat.numpy().data)
        stream.flush()
        os.fsync(stream.fileno())
