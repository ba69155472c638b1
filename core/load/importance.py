"""Importance matrices: read files of mean squared inputs per column of each linear.

Quantizers use them as weights of errors. Three formats are read:

    .imatrix    llama.cpp's GGUF: f32 tensors `<name>.in_sum2` [k] or [experts, k], sums of squares,
                and `<name>.counts` [1] or [experts, 1], the number of summands
    .imatrix    the older format, also called .dat: i32 n, and n times: i32 length, name, i32 calls,
                i32 k, f32[k] means times calls; the name of the text follows
    .cimatrix   mistral.rs: u64 n, and n times: u64 length, name, u64 k, f32[k]

All values are little endian. Sources: common/imatrix-loader.cpp of llama.cpp (2026) and
mistralrs-quant/src/imatrix.rs of mistral.rs (0.9).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from struct import Struct
from typing import NoReturn

import torch
from torch import Tensor

from ostro.core.errors import CheckpointError
from ostro.core.load.container import Container, MappedFile, tensor_fault
from ostro.core.load.names import Names, StorageTransform
from ostro.core.nn.linear import WeightSlot
from ostro.core.records import TensorInfo

MAX_ENTRIES = 1 << 17
GGUF_NAMES = ("blk.", "token_embd.", "output.")
SUMS, COUNTS = ".in_sum2", ".counts"
I32, U64 = Struct("<i"), Struct("<Q")


def slot_importance(
    found: Mapping[str, Tensor], names: Names, slots: Iterable[WeightSlot], file: str
) -> dict[str, Tensor]:
    """Assign the entries of `read_importance` to slots: float32 [k] by the name of the slot.

    The names of entries are llama.cpp's or the hub's. Entries without a slot are skipped. Raises
    CheckpointError if the length of an entry does not match the rows of its weight.
    """
    by_name = {slot.name: slot for slot in slots if slot.kind == "storage"}
    importance: dict[str, Tensor] = {}
    for entry, values in found.items():
        space = "gguf" if entry.startswith(GGUF_NAMES) else "hub"
        full = entry if entry.endswith(".weight") else f"{entry}.weight"
        for named in names.read([full], space)[0]:
            slot = by_name.get(named.name.removesuffix(".weight"))
            # the importance is of the file's columns, which are the model's rows
            if slot is None or isinstance(named.transform, StorageTransform):
                continue
            k = slot.shape[-1]
            if values.numel() % k:
                raise CheckpointError(
                    f"{file}: entry {entry!r} has {values.numel()} values, but {slot.name} has "
                    f"rows of {k}; use an importance file of this model"
                )
            rows = values.reshape(-1, k)
            expert = slot.expert if slot.expert is not None and len(rows) > 1 else 0
            importance[slot.name] = rows[expert]
    return importance


def read_importance(path: Path, open_gguf: Callable[[Path], Container]) -> dict[str, Tensor]:
    """Read an importance file: float32 [k] or [experts, k] by the entry names of the file.

    `open_gguf` opens a GGUF file. The other two formats store the experts of a stack as one vector
    [experts * k]. Only the ratios between columns of a weight are meaningful. Raises
    CheckpointError with the file and the entry, and ModelNotFound if the file does not exist.
    """
    file = MappedFile(path)
    is_gguf = bytes(file.data[:4]) == b"GGUF"
    found = dict(read_gguf_sums(open_gguf(path), path.name)) if is_gguf else Entries(file).read()
    for name, values in found.items():
        if not bool((values.isfinite() & (values >= 0)).all()):
            raise CheckpointError(
                f"{path.name}: entry {name!r} contains negative, infinite or NaN values; compute "
                "the importance matrix again"
            )
    return found


def read_gguf_sums(container: Container, file: str) -> Iterator[tuple[str, Tensor]]:
    """Means of the GGUF format; an expert with a count of 0 gets equal weights for all columns."""
    names = [name for name in container.tensors if name.endswith(SUMS)]
    if not names:
        raise CheckpointError(f"{file}: has no tensor *{SUMS}; it is not an importance file")
    for name in names:
        entry = name.removesuffix(SUMS)
        if entry + COUNTS not in container.tensors:
            raise CheckpointError(f"{file}: entry {entry!r} has {SUMS}, but no {COUNTS}")
        for info in (container.tensors[name], container.tensors[entry + COUNTS]):
            if info.format != "F32":
                raise CheckpointError(
                    f"{file}: tensor {info.name!r} is {info.format}, expected F32"
                )
        sums, counts = container.read(name), container.read(entry + COUNTS).flatten()
        if not sums.numel() or sums.shape[:-1].numel() != counts.numel():
            raise CheckpointError(
                f"{file}: entry {entry!r} has sums of shape {list(sums.shape)} and {len(counts)} "
                "counts, expected one count per row"
            )
        rows = sums.view(len(counts), -1)
        counted = counts[:, None] > 0
        means = torch.where(counted, rows / torch.where(counted, counts[:, None], 1), 1)
        yield entry, means[0] if len(means) == 1 else means


class Entries:
    """Parser of the two binary formats; checks every length against the file before it is used."""

    def __init__(self, file: MappedFile) -> None:
        self.file, self.at, self.entry = file, 0, ""

    def read(self) -> dict[str, Tensor]:
        means = self.file.path.suffix == ".cimatrix"
        count = U64 if means else I32
        n, found = self.number(count), {}
        if not 0 < n <= MAX_ENTRIES:
            self.fail(f"{n} entries; it is not an importance file, or it is damaged")
        for i in range(n):
            self.entry = f"entry {i}: "
            name = self.name(self.number(count))
            self.entry = f"entry {name!r}: "
            if name in found:
                self.fail("occurs twice")
            calls = 1 if means else max(self.number(I32), 1)
            found[name] = self.values(name, self.number(count)) / calls
        self.entry = ""
        if means and self.at < self.file.size:
            self.fail(f"{self.file.size - self.at} bytes follow the last entry")
        return found

    def name(self, size: int) -> str:
        try:
            name = str(self.take(size), "utf-8")
        except UnicodeDecodeError:
            self.fail("its name is not UTF-8")
        if fault := tensor_fault(name, ()):
            self.fail(fault)
        return name

    def values(self, name: str, k: int) -> Tensor:
        if k < 1:
            self.fail(f"{k} values")
        start = self.at
        self.take(4 * k)
        info = TensorInfo(name=name, shape=(k,), format="F32", nbytes=4 * k)
        return self.file.read(info, start)

    def number(self, code: Struct) -> int:
        number: int = code.unpack(self.take(code.size))[0]
        return number

    def take(self, size: int) -> memoryview:
        if not 0 <= size <= self.file.size - self.at:
            self.fail(f"{size} bytes exceed the file; it is truncated or not an importance file")
        self.at += size
        return self.file.data.data[self.at - size : self.at]

    def fail(self, reason: str) -> NoReturn:
        raise CheckpointError(f"{self.file.path.name}@offset {self.at}: {self.entry}{reason}")
