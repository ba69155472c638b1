"""Planes: weights of few bits, laid out so that one kernel multiplies every format.

Formats differ in how a file packs codes and scales; what they mean is nearly always the same:

    w = d * scale * (value(code) - zero) + m * offset

`scale`, `zero` and `offset` are shared by a group of neighbours in a row, `d` and `m` by several
groups. A format is repacked into planes once, when it is read, without loss: whoever made them can
make the file's bytes of them again.

A row of k weights is k / 32 cells. The bits of a code are split among planes of 8, 4, 2 and 1 bits,
the lowest bits in the first (6 bits: 4 + 2). In a plane of b bits, a cell is 4 b bytes; byte j
holds b bits of the codes j, j + 4 b, j + 8 b, ..., from its low end on. So 4 bits are
neighbours twice (16 bytes, low halves, then high halves), and in little-endian words of four bytes
the word w, shifted right by b s, holds the codes 4 (w + b s) .. + 3 in its four bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

CELL = 32
"""Columns are packed by so many: only rows of a multiple of it fit planes."""

WIDTHS = {1: (1,), 2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 7: (4, 2, 1), 8: (8,)}
"""The planes of a code, by its bits."""


def pack_codes(codes: Tensor, bits: int) -> tuple[Tensor, ...]:
    """codes uint8 [..., k], each below 2 ** bits -> a plane uint8 [..., k / 32, 4 b] per width b.

    Raises ValueError where k is no multiple of 32.
    """
    if codes.shape[-1] % CELL:
        raise ValueError(f"rows of {codes.shape[-1]} codes are no cells of {CELL}")
    planes, low = [], 0
    for width in WIDTHS[bits]:
        some = (codes >> low) & (2**width - 1)
        turns = some.unflatten(-1, (-1, 8 // width, 4 * width))
        plane = turns[..., 0, :].clone()
        for i in range(1, 8 // width):
            plane |= turns[..., i, :] << (width * i)
        planes.append(plane)
        low += width
    return tuple(planes)


def unpack_codes(planes: Sequence[Tensor]) -> Tensor:
    """The codes uint8 [..., k] again."""
    codes, low = None, 0
    for plane in planes:
        width = plane.shape[-1] // 4
        turns = [(plane >> (width * i)) & (2**width - 1) for i in range(8 // width)]
        some = torch.cat(turns, -1) << low
        codes, low = some if codes is None else codes | some, low + width
    assert codes is not None, "no planes"
    return codes.flatten(-2)


@dataclass(frozen=True, kw_only=True, eq=False)
class Planes:
    """Weights [n, k], or [experts, n, k], as the module describes; `...` are all axes but the last.

    codes   uint8 [..., k / 32, 4 b] for each width b, contiguous
    scale   [..., k / group], floats or integers; any group that divides k
    zero    a number, or as scale
    offset  None, or as scale
    table   None: a code is its own value; else float32 [2 ** bits], the values of codes
    d, m    None, or floats [..., k / group / s], of s groups each, for scale and offset

    What is computed is computed in float32, as the formula says: the sum is rounded last.
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
        """Neighbours of a row that share a scale."""
        return self.shape[-1] // self.scale.shape[-1]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors().values())

    @property
    def kind(self) -> tuple[Any, ...]:
        """What must agree for weights to lie in one: bits, group, types, constants."""
        zero = () if isinstance(self.zero, Tensor) else (self.zero,)
        table = () if self.table is None else tuple(self.table.tolist())
        parts = ((name, t.dtype, t.shape[-1]) for name, t in self.tensors().items())
        return (self.shape[-1], *zero, *table, *parts)

    def tensors(self) -> dict[str, Tensor]:
        """All that has an axis of rows, by name: "codes0", "scale"..."""
        found = {f"codes{i}": plane for i, plane in enumerate(self.codes)}
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if isinstance(value, Tensor) and field.name != "table":
                found[field.name] = value
        return found

    def map(self, change: Callable[[Tensor], Tensor]) -> Planes:
        """The same with every tensor that has rows changed, those of codes flat in [..., bytes]."""
        changed = {name: change(tensor) for name, tensor in self.flat().items()}
        return self.like(changed)

    def flat(self) -> dict[str, Tensor]:
        """`tensors` with codes as [..., bytes of a row]."""
        return {
            name: t.flatten(-2) if name.startswith("codes") else t
            for name, t in self.tensors().items()
        }

    def like(self, flat: dict[str, Tensor]) -> Planes:
        """Planes of this kind from what `flat` gives."""
        widths = WIDTHS[self.bits]
        codes = tuple(
            flat.pop(f"codes{i}").unflatten(-1, (-1, 4 * width)) for i, width in enumerate(widths)
        )
        return replace(self, codes=codes, **flat)

    def take(self, rows: slice | Tensor) -> Planes:
        """Some entries of the first axis: views of a slice, copies of those that ids [t] name."""
        return self.map(lambda tensor: tensor[rows])

    def rows(self) -> Planes:
        """[n, k]: of experts, all rows end to end."""
        return self.map(lambda tensor: tensor.flatten(0, -2))

    def to(self, device: torch.device) -> Planes:
        table = None if self.table is None else self.table.to(device)
        return replace(self.map(lambda tensor: tensor.to(device)), table=table)

    @classmethod
    def join(cls, parts: Sequence[Planes], *, stack: bool = False) -> Planes:
        """Parts of one kind, rows end to end, or as experts of a stack."""
        first, *rest = (part.flat() for part in parts)
        joined = {}
        for name, tensor in first.items():
            every = [tensor, *(other[name] for other in rest)]
            joined[name] = torch.stack(every) if stack else torch.cat(every, -2)
        return parts[0].like(joined)
