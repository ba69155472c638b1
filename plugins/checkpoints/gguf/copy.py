"""The tensors and the header of a GGUF file that is written from another GGUF file.

The metadata is copied byte for byte, except the keys on quantization and splits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ostro import Container
from ostro.checkpoints import GGML_BY_NAME, JoinedContainer, Maker, MappedFile, Saving, WeightSlot
from ostro.errors import Unsupported, UsageError
from ostro.plugins.checkpoints.gguf import MAGIC
from ostro.plugins.checkpoints.gguf.entries import (
    ALIGNMENT,
    QUANTIZATION_VERSION,
    TensorEntry,
    blocks,
    ggml,
    one_format,
)
from ostro.plugins.checkpoints.gguf.header import U32, Header
from ostro.plugins.checkpoints.gguf.reader import SPLIT

DROPPED = ("split.", "general.alignment", "general.file_type", "general.quantization_version")
U32_TYPE = 4
"""The value type of u32."""


class Copy:
    """A GGUF file as the source of another. Raises Unsupported for a text with its projector."""

    def __init__(self, saving: Saving) -> None:
        self.saving, self.container = saving, saving.outline.container
        self.slots: dict[str, list[str]] = defaultdict(list)
        for slot, tensors in saving.arranged[1].items():
            for named in tensors.values():
                self.slots[named.theirs].append(slot)
        if isinstance(self.container, JoinedContainer):
            raise Unsupported(
                f"{self.container.path.name} is opened with its projector; quantize the text model "
                "alone with its --arch, and copy the projector to the folder of the result"
            )
        if saving.outline.plan is None:
            raise UsageError("no format to quantize to; add --quant q4k or --topology RULES")

    def entries(self) -> list[TensorEntry]:
        """The tensors of the new file, in the formats that the plan gives their weights."""
        return [self.entry(name) for name in self.container.tensors]

    def entry(self, name: str) -> TensorEntry:
        info, plans = self.container.tensors[name], self.saving.plans(name)
        source = self.saving.formats.get(name, info.format)
        if not plans:
            read, notes = partial(self.container.read, name), self.saving.plan.notes
            reason = next((notes[slot] for slot in self.slots[name] if slot in notes), "")
            return TensorEntry(name, info.shape, info.format, read, source, reason)
        maker, reason = one_format(self.saving, name, plans)
        make = partial(self.quantized, name, plans)
        return TensorEntry(name, info.shape, blocks(maker), make, source, reason)

    def quantized(self, name: str, plans: Sequence[tuple[WeightSlot, Maker]]) -> Tensor:
        """The blocks of a tensor, rows in the order of the file; experts are quantized one by
        one.
        """
        weight = self.container.read(name)
        stack = weight.dim() == 3 and weight.shape[0] == len(plans)
        every = weight.unbind(0) if stack else [weight]
        maker, _ = one_format(self.saving, name, plans)
        storages = []
        for each, (slot, _) in zip(every, plans, strict=False):
            importance = self.saving.plan.importance.get(slot.name)
            if each.shape[-1] != slot.shape[-1]:
                importance = None  # of the model's columns; the file holds the transpose
            storages.append(maker.make(each.float(), torch.float32, importance))
        return torch.stack([ggml(storage.save()) for storage in storages])

    def write_header(self, path: Path, entries: Sequence[TensorEntry], file_type: int) -> None:
        path.write_bytes(header(metadata(self.container), entries, file_type))

    def check(self, path: Path, projector: Path | None) -> None:
        """Nothing: the metadata is unchanged."""


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


def header(keys: Sequence[bytes], entries: Sequence[TensorEntry], file_type: int) -> bytes:
    """The header; the data begins at the next multiple of the alignment."""
    own = {
        "general.file_type": file_type,
        "general.quantization_version": QUANTIZATION_VERSION,
    }
    every = [*keys, *(string(key) + u32(U32_TYPE) + u32(value) for key, value in own.items())]
    out = [MAGIC, u32(3), u64(len(entries)), u64(len(every)), *every]
    offset = 0
    for each in entries:
        dims = each.shape[::-1]
        out += [string(each.name), u32(len(dims)), *map(u64, dims)]
        out += [u32(GGML_BY_NAME[each.format].id), u64(offset)]
        offset += -(-each.nbytes // ALIGNMENT) * ALIGNMENT
    return b"".join(out)


def string(text: str) -> bytes:
    raw = text.encode()
    return u64(len(raw)) + raw


def u32(number: int) -> bytes:
    return number.to_bytes(4, "little")


def u64(number: int) -> bytes:
    return number.to_bytes(8, "little")
