"""Planes: one memory layout of quantized weights for all formats, which share its kernels.

Formats differ in how a file packs codes and scales. The formula is nearly always the same:

    w = d * scale * (value(code) - zero) + m * offset

`scale`, `zero` and `offset` are shared by a group of neighbours in a row, `d` and `m` by a
superblock of several groups. A format repacks its tensors into planes once, when it reads them. The
conversion is lossless: a storage can write the file's bytes again.

A row of k weights is k / 32 cells. The bits of a code are split among planes of 8, 4, 2 and 1 bits,
the lowest bits in the first (6 bits: 4 + 2). In a plane of b bits, a cell is 4 b bytes; byte j
contains b bits of each of the codes j, j + 4 b, j + 8 b, ..., the first in its lowest bits. A cell
of 4 bits is 16 bytes: codes 0 to 15 in the low halves, 16 to 31 in the high halves. As
little-endian words of four bytes, word w shifted right by b s holds the codes 4 (w + b s) .. + 3 in
its four bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

CELL = 32
"""Columns per cell. The length of a row must be a multiple of it."""

WIDTHS = {1: (1,), 2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 7: (4, 2, 1), 8: (8,)}
"""Bits of each plane, by bits of a code."""


def pack_codes(codes: Tensor, bits: int) -> tuple[Tensor, ...]:
    """Pack codes uint8 [..., k], each below 2 ** bits, into planes uint8 [..., k / 32, 4 b].

    Returns one plane for each width b of `WIDTHS[bits]`. Raises ValueError if k is not a multiple
    of 32.
    """
    if codes.shape[-1] % CELL:
        raise ValueError(f"rows of {codes.shape[-1]} codes, expected a multiple of {CELL}")
    planes, low = [], 0
    for width in WIDTHS[bits]:
        part = (codes >> low) & (2**width - 1)
        turns = part.unflatten(-1, (-1, 8 // width, 4 * width))
        plane = turns[..., 0, :].clone()
        for i in range(1, 8 // width):
            plane |= turns[..., i, :] << (width * i)
        planes.append(plane)
        low += width
    return tuple(planes)


def unpack_codes(planes: Sequence[Tensor]) -> Tensor:
    """Unpack planes into codes uint8 [..., k]: the inverse of `pack_codes`."""
    codes, low = None, 0
    for plane in planes:
        width = plane.shape[-1] // 4
        part = torch.cat([plane >> shift for shift in range(0, 8, width)], -1)
        part &= 2**width - 1
        codes = part if codes is None else codes.bitwise_or_(part << low)
        low += width
    assert codes is not None, "no planes"
    return codes.flatten(-2)


@dataclass(frozen=True, kw_only=True, eq=False)
class Planes:
    """Weights [n, k], or [experts, n, k], by the module's formula; `...` are all axes but the last.

    codes   uint8 [..., k / 32, 4 b] for each width b, contiguous
    scale   [..., k / group], floats or integers; any group that divides k
    zero    a number, or a tensor shaped as scale
    offset  None, or a tensor shaped as scale
    table   None if a code is its own value; else float32 [2 ** bits], the values of codes
    d, m    None, or floats [..., k / group / s], shared by s groups, for scale and offset

    The formula is computed in float32; only the result is rounded.
    """

    codes: tuple[Tensor, ...]
    scale: Tensor
    zero: float | Tensor = 0
    offset: Tensor | None = None
    table: Tensor | None = None
    d: Tensor | None = None
    m: Tensor | None = None

    @property
    def bits(self) -> int:
        return sum(plane.shape[-1] for plane in self.codes) // 4

    @property
    def shape(self) -> tuple[int, ...]:
        *rows, cells, _ = self.codes[0].shape
        return (*rows, cells * CELL)

    @property
    def group(self) -> int:
        """Adjacent weights of a row that share a scale."""
        return self.shape[-1] // self.scale.shape[-1]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors().values())

    @property
    def join_key(self) -> tuple[Any, ...]:
        """Columns, bits, group, dtypes, constants. Planes with equal keys can be joined."""
        zero = () if isinstance(self.zero, Tensor) else (self.zero,)
        table = () if self.table is None else tuple(self.table.tolist())
        parts = ((name, t.dtype, t.shape[-1]) for name, t in self.tensors().items())
        return (self.shape[-1], *zero, *table, *parts)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that have an axis of rows, by name: "codes0", "scale", ..."""
        tensors = {f"codes{i}": plane for i, plane in enumerate(self.codes)}
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if isinstance(value, Tensor) and field.name != "table":
                tensors[field.name] = value
        return tensors

    def map(self, change: Callable[[Tensor], Tensor]) -> Planes:
        """Apply `change` to every tensor that has rows, to codes as [..., bytes of a row]."""
        return self.from_flat({name: change(tensor) for name, tensor in self.flat().items()})

    def flat(self) -> dict[str, Tensor]:
        """`tensors()` with codes as [..., bytes of a row]."""
        return {
            name: t.flatten(-2) if name.startswith("codes") else t
            for name, t in self.tensors().items()
        }

    def from_flat(self, flat: dict[str, Tensor]) -> Planes:
        """Planes with the tensors of `flat()`, and the table and constants of this object."""
        widths = WIDTHS[self.bits]
        codes = tuple(
            flat.pop(f"codes{i}").unflatten(-1, (-1, 4 * width)) for i, width in enumerate(widths)
        )
        return replace(self, codes=codes, **flat)

    def select(self, rows: slice | Tensor) -> Planes:
        """Entries of the first axis: views for a slice, copies for ids int64 [t]."""
        return self.map(lambda tensor: tensor[rows])

    def rows(self) -> Planes:
        """Flatten to [n, k]: the rows of all experts concatenated."""
        return self.map(lambda tensor: tensor.flatten(0, -2))

    def to(self, device: torch.device) -> Planes:
        table = None if self.table is None else self.table.to(device)
        return replace(self.map(lambda tensor: tensor.to(device)), table=table)

    @classmethod
    def join(cls, parts: Sequence[Planes], *, stack: bool = False) -> Planes:
        """Concatenate the rows of parts with equal `join_key`, or stack parts as experts."""
        flats = [part.flat() for part in parts]
        joined = {}
        for name in flats[0]:
            tensors = [flat[name] for flat in flats]
            joined[name] = torch.stack(tensors) if stack else torch.cat(tensors, -2)
        return parts[0].from_flat(joined)
