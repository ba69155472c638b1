"""Write a quantized copy of a float GGUF file.

The metadata is copied byte for byte, except the keys on quantization and splits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from ostro import Container
from ostro.checkpoints import GGML_BY_NAME as BY_NAME
from ostro.checkpoints import (
    JoinedContainer,
    Maker,
    MappedFile,
    Saving,
    SavingProgress,
    atomic_path,
    refuse_existing,
)
from ostro.errors import CheckpointError, Unsupported, UsageError
from ostro.plugins.checkpoints.gguf import MAGIC
from ostro.plugins.checkpoints.gguf.header import U32, Header
from ostro.plugins.checkpoints.gguf.reader import SPLIT

ALIGNMENT = 32
DROPPED = ("split.", "general.alignment", "general.file_type", "general.quantization_version")
U32_TYPE, MOSTLY_GUESSED, QUANTIZATION_VERSION = 4, 1024, 2
"""The value type of u32; the file type of mixed formats, for which readers look at the tensors; the
version of ggml's block layouts."""


@dataclass(frozen=True)
class TensorEntry:
    """A tensor of the new file; `make` returns its bytes."""

    name: str
    shape: tuple[int, ...]
    format: str
    make: Callable[[], Tensor]

    @property
    def nbytes(self) -> int:
        return BY_NAME[self.format].row_bytes(prod(self.shape))


def write_gguf(saving: Saving, progress: SavingProgress) -> Path:
    """Write `<model>-<name>.gguf` into the folder of a saving, tensor by tensor; return its path.

    The source must be a GGUF file, because only llama.cpp's converter writes the metadata on model
    and tokenizer. Raises Unsupported for another source and for formats that are not ggml blocks,
    UsageError if the file exists, CheckpointError if the disk is full.
    """
    container = saving.outline.container
    if saving.outline.space != "gguf":
        raise Unsupported(
            f"{container.path.name} is not a GGUF file; convert it to a float GGUF file "
            "with llama.cpp's convert_hf_to_gguf.py first, or use --to uqff"
        )
    if isinstance(container, JoinedContainer):
        raise Unsupported(
            f"{container.path.name} is opened with its projector; quantize the text model alone "
            "with its --arch, and copy the projector to the folder of the result"
        )
    file = saving.folder / f"{container.path.stem}-{saving.name}.gguf"
    refuse_existing(file)
    saving.folder.mkdir(parents=True, exist_ok=True)
    entries = [entry(saving, name) for name in container.tensors]
    keys = metadata(container)
    total, done = sum(each.nbytes for each in entries), 0
    with atomic_path(file) as path, open(path, "wb") as stream:
        stream.write(header(keys, entries))
        for each in entries:
            stream.write(bytes(-stream.tell() % ALIGNMENT))
            emit(stream, each)
            done += each.nbytes
            progress(done, total)
        stream.flush()
        os.fsync(stream.fileno())
    return file


def entry(saving: Saving, name: str) -> TensorEntry:
    """A tensor of the new file, in the format that the plan gives its weights."""
    container = saving.outline.container
    info, plans = container.tensors[name], saving.plans(name)
    if not plans:
        return TensorEntry(name, info.shape, info.format, lambda: container.read(name))
    makers = {maker.format.name: maker for _, maker in plans}
    if len(makers) > 1:
        raise UsageError(
            f"--topology: {name} holds {len(plans)} weights in one tensor, which cannot be "
            f"{' and '.join(makers)}; name one format for all of them"
        )
    (maker,) = makers.values()
    type_name = blocks(maker)
    if type_name not in BY_NAME:
        raise Unsupported(
            f"{maker.format.name} is not a ggml format, which GGUF needs (q4k, q8_0...); use "
            "--to uqff"
        )
    return TensorEntry(name, info.shape, type_name, lambda: quantized(saving, name))


def blocks(maker: Maker) -> str:
    """The name of the ggml format that a maker produces."""
    return maker.make(torch.zeros(1, 256), torch.float32, None).format


def quantized(saving: Saving, name: str) -> Tensor:
    """The blocks of a tensor, rows in the order of the file; experts are quantized one by one."""
    weight, plans = saving.outline.container.read(name), saving.plans(name)
    stack = weight.dim() == 3 and weight.shape[0] == len(plans)
    every = weight.unbind(0) if stack else [weight]
    storages = []
    for each, (slot, maker) in zip(every, plans, strict=False):
        importance = saving.plan.importance.get(slot.name)
        if each.shape[-1] != slot.shape[-1]:
            importance = None  # of the model's columns; the file holds the transpose
        storages.append(maker.make(each.float(), torch.float32, importance))
    return torch.stack([ggml(storage.save()) for storage in storages])


def ggml(saved: Mapping[str, Tensor]) -> Tensor:
    """The ggml blocks of a storage; MXFP4 is saved in the hub's layout and converted."""
    if "blocks" not in saved:
        return saved["weight"]
    codes = torch.stack((saved["blocks"] & 15, saved["blocks"] >> 4), -1).flatten(-2)
    halves = codes[..., :16] | codes[..., 16:] << 4
    return torch.cat((saved["scales"][..., None], halves), -1).flatten(-2)


def emit(stream: BinaryIO, each: TensorEntry) -> None:
    """Write a tensor's bytes."""
    raw = each.make().contiguous()
    flat = raw.view(torch.uint8).flatten()
    if flat.numel() != each.nbytes:
        raise CheckpointError(
            f"{each.name} has {flat.numel()} bytes of {each.format}, expected {each.nbytes}"
        )
    stream.write(flat.numpy().data)


def metadata(container: Container) -> list[bytes]:
    """The raw key-value pairs of a model's file, for split files those of the first."""
    header = Keys(MappedFile(first_file(container)))
    return [raw for key, raw in header.keys().items() if not key.startswith(DROPPED)]


def first_file(container: Container) -> Path:
    """The model's file with the metadata, whatever path was opened.

    Found through a tensor, because the folder may also contain a projector.
    """
    name = next(iter(container.tensors.values())).file
    if split := SPLIT.fullmatch(name):
        name = f"{split['stem']}-00001-of-{split['count']}.gguf"
    folder = container.path
    return folder / name if folder.is_dir() else folder.with_name(name)


class Keys(Header):
    """Reads a header's key-value pairs as bytes."""

    def keys(self) -> Mapping[str, bytes]:
        _, count = self._preamble()
        found: dict[str, bytes] = {}
        for _ in range(count):
            start = self._at
            key = self._name("key", 1 << 16)
            self._value(self._number(U32))
            found[key] = bytes(self._bytes[start : self._at])
        return found


def header(keys: Sequence[bytes], entries: Sequence[TensorEntry]) -> bytes:
    """The header; the data begins at the next multiple of the alignment."""
    own = {
        "general.file_type": MOSTLY_GUESSED,
        "general.quantization_version": QUANTIZATION_VERSION,
    }
    every = [*keys, *(string(key) + u32(U32_TYPE) + u32(value) for key, value in own.items())]
    out = [MAGIC, u32(3), u64(len(entries)), u64(len(every)), *every]
    offset = 0
    for each in entries:
        dims = each.shape[::-1]
        out += [string(each.name), u32(len(dims)), *map(u64, dims)]
        out += [u32(BY_NAME[each.format].id), u64(offset)]
        offset += -(-each.nbytes // ALIGNMENT) * ALIGNMENT
    return b"".join(out)


def string(text: str) -> bytes:
    raw = text.encode()
    return u64(len(raw)) + raw


def u32(number: int) -> bytes:
    return number.to_bytes(4, "little")


def u64(number: int) -> bytes:
    return number.to_bytes(8, "little")
