"""GPTQ in plain torch: the byte layout and the reference implementation.

A weight [n, k] is stored transposed; w = (code - zero) * scale, with those of the column's group.

    qweight   int32 [k b / 32, n]              codes of b bits, packed along k
    qzeros    int32 [groups, ceil(n b / 32)]   zeros of b bits, packed along n
    scales    floats [groups, n]
    g_idx     int32 [k]                        the group of each column of the weight

Codes are packed without gaps, the first in the lowest bits, so that 32 codes of 3 bits take three
words and two of them cross word boundaries.

"gptq" files ("v1") store zeros minus one, "gptq_v2" files store zeros. The one is subtracted from
whole words: a zero of 0 borrows from the next zero in its word, which adding one to the words
reverses. Zeros of 3 bits, which cross words, wrap around individually.

Source: gptqmodel 7.7.0, which computes in float16 and rounds in between.
"""

from __future__ import annotations

from math import ceil

import torch
from torch import Tensor
from torch.nn.functional import pad

BITS = (2, 3, 4, 8)
ONES = {2: 0x55555555, 4: 0x11111111, 8: 0x01010101}
"""A word with the value 1 in each field, by bits of a field."""


def unpack(words: Tensor, bits: int, count: int) -> Tensor:
    """words int32 [..., ceil(count b / 32)] -> codes uint8 [..., count]."""
    octets = words.contiguous().view(torch.uint8)
    octets = pad(octets, (0, ceil(count / 8) * bits - octets.shape[-1])).unflatten(-1, (-1, bits))
    run = sum((octets[..., i].long() << 8 * i for i in range(1, bits)), octets[..., 0].long())
    codes = [(run >> bits * j & (1 << bits) - 1).to(torch.uint8) for j in range(8)]
    return torch.stack(codes, -1).flatten(-2)[..., :count]


def pack(codes: Tensor, bits: int) -> Tensor:
    """codes uint8 [..., count] -> words int32 [..., ceil(count b / 32)]; padding is 0."""
    count = codes.shape[-1]
    eights = pad(codes, (0, -count % 8)).unflatten(-1, (-1, 8))
    run = sum((eights[..., j].long() << bits * j for j in range(1, 8)), eights[..., 0].long())
    octets = torch.stack([(run >> 8 * i & 255).to(torch.uint8) for i in range(bits)], -1)
    octets = octets.flatten(-2)
    return pad(octets, (0, ceil(count * bits / 32) * 4 - octets.shape[-1])).view(torch.int32)


def unpack_zeros(words: Tensor, bits: int, count: int, *, zeros_minus_one: bool) -> Tensor:
    """words int32 [groups, ceil(n b / 32)] -> zeros uint8 [groups, n]."""
    if not zeros_minus_one:
        return unpack(words, bits, count)
    if bits in ONES:
        return unpack(words + ONES[bits], bits, count)
    return unpack(words, bits, count) + 1 & (1 << bits) - 1


def pack_zeros(zeros: Tensor, bits: int, *, zeros_minus_one: bool) -> Tensor:
    """zeros uint8 [groups, n] -> words int32 [groups, ceil(n b / 32)]."""
    if not zeros_minus_one:
        return pack(zeros, bits)
    if bits in ONES:
        return pack(zeros, bits) - ONES[bits]
    return pack(zeros - 1 & (1 << bits) - 1, bits)


def dequantize(
    qweight: Tensor,
    qzeros: Tensor,
    scales: Tensor,
    g_idx: Tensor,
    bits: int,
    *,
    zeros_minus_one: bool,
) -> Tensor:
    """-> float32 [n, k], equal to gptqmodel in float32. `zeros_minus_one` is True for "v1"."""
    codes = unpack(qweight.t(), bits, len(g_idx))
    zeros = unpack_zeros(qzeros, bits, qweight.shape[1], zeros_minus_one=zeros_minus_one).t()
    return dequantize_rows(slice(None), codes, scales.t(), zeros, g_idx)


def dequantize_rows(
    rows: slice, codes: Tensor, scales: Tensor, zeros: Tensor, groups: Tensor
) -> Tensor:
    """codes uint8 [n, k], scales floats and zeros uint8 [n, groups] -> float32 [rows, k].

    groups int [k] is the group of each column.
    """
    group = groups.long()
    return (codes[rows].float() - zeros[rows][:, group]) * scales[rows][:, group].float()
