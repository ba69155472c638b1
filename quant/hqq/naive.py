"""HQQ in plain torch: the byte layouts and the reference implementation.

A weight [n, k] with groups of g is viewed as a row-major matrix: [n k / g, g] for groups along rows
(axis 1), [g, n k / g] for groups across rows (axis 0). w = (code - zero) * scale; each row of the
matrix (axis 1) or each column (axis 0) shares one scale and zero.

Codes are packed along the columns of the matrix. With c codes per word and r words per column, word
i of a column holds the codes i, i + r, i + 2 r, ..., the first in the highest of the c b bits:

    "8bit_u8"   1 code of 8 bits in uint8; also used for codes of 5 and 6 bits
    "4bit_u8"   2 of 4 bits in uint8
    "3bit_32"  10 of 3 bits in int32, whose two highest bits are 0; the last codes may be padding
    "2bit_u8"   4 of 2 bits in uint8; also used for ternary codes
    "1bit_u8"   8 of 1 bit in uint8

Source: hqq.core.bitpack and hqq.core.quantize; UQFF files hold axis 0 of 4 and 8 bits likewise.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

import torch
from torch import Tensor


class Packing(NamedTuple):
    bits: int
    per_word: int
    word: torch.dtype


PACKINGS = {
    "8bit_u8": Packing(8, 1, torch.uint8),
    "4bit_u8": Packing(4, 2, torch.uint8),
    "3bit_32": Packing(3, 10, torch.int32),
    "2bit_u8": Packing(2, 4, torch.uint8),
    "1bit_u8": Packing(1, 8, torch.uint8),
}
PACKING = {8: "8bit_u8", 6: "8bit_u8", 5: "8bit_u8", 4: "4bit_u8"} | {
    3: "3bit_32",
    2: "2bit_u8",
    1: "1bit_u8",
}
"""The name of the packing, by bits of a code."""


class Layout(NamedTuple):
    """The layout of a weight of `shape` [n, k], as the module describes."""

    shape: tuple[int, int]
    bits: int
    group: int
    axis: int
    packing: Packing

    @property
    def matrix(self) -> tuple[int, int]:
        n, k = self.shape
        groups = n * k // self.group
        return (groups, self.group) if self.axis else (self.group, groups)

    @property
    def words(self) -> tuple[int, int]:
        """The shape of the words."""
        rows, columns = self.matrix
        return ceil(rows / self.packing.per_word), columns

    @property
    def scales(self) -> tuple[int, int]:
        """The shape of scale and zero."""
        return (self.matrix[0], 1) if self.axis else (1, self.matrix[1])


def unpack(words: Tensor, layout: Layout) -> Tensor:
    """words [r, columns] -> codes of the matrix, uint8 [rows, columns]."""
    bits, per_word, _ = layout.packing
    turns = [(words >> bits * (per_word - 1 - i)) & ((1 << bits) - 1) for i in range(per_word)]
    return torch.cat(turns).to(torch.uint8)[: layout.matrix[0]]


def pack(codes: Tensor, layout: Layout) -> Tensor:
    """codes of the matrix, uint8 [rows, columns] -> words; padding is 0."""
    bits, per_word, word = layout.packing
    padded = codes.new_zeros(layout.words[0] * per_word, codes.shape[1])
    padded[: len(codes)] = codes
    words = torch.zeros(layout.words, dtype=word, device=codes.device)
    for i, turn in enumerate(padded.chunk(per_word)):
        words |= turn.to(word) << bits * (per_word - 1 - i)
    return words


def dequantize_rows(
    rows: slice,
    words: Tensor,
    scale: Tensor,
    zero: Tensor,
    layout: Layout,
) -> Tensor:
    """Rows of the weight, float32 [rows, k]; hqq computes in float16 and rounds in between."""
    (n, k), (bits, per_word, _) = layout.shape, layout.packing
    first, last, _ = rows.indices(n)
    # A row of the weight is contiguous in the matrix, or its codes must be gathered one by one.
    has_whole_rows = not layout.axis and n % layout.group == 0
    unit = k if has_whole_rows else 1
    at = torch.arange(first * k, max(last, first) * k, unit, device=words.device)
    row, column = at // layout.matrix[1], at % layout.matrix[1] // unit
    turn, word = row // len(words), row % len(words)
    shift = (bits * (per_word - 1 - turn)).to(words.dtype)[:, None]
    codes = words.unflatten(1, (-1, unit))[word, column] >> shift & (1 << bits) - 1
    if layout.axis:
        scales = (scale[row], zero[row])
    else:
        scales = (scale.view(-1, unit)[column], zero.view(-1, unit)[column])
    weight = (codes - scales[1].float()) * scales[0].float()
    return weight.view(-1, k)
