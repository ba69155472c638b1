"""compressed-tensors in plain torch: the byte layouts and the reference implementation.

w = (q - zero) * scale, for a weight [n, k]. There is one scale and zero per tensor [1], per row
[n, 1], per group of a row [n, groups], or per block of rows and columns; the last block may have
fewer rows.

    pack-quantized   weight_packed int32 [n, ceil(k b / 32)], of b bits from 1 to 8;
                     weight_zero_point int32 [ceil(n b / 32), groups], packed along n;
                     weight_shape [n, k]; weight_g_idx [k], the group of each column
    int-quantized    weight int8 [n, k]; weight_zero_point int8, as the scale
    float-quantized  weight float8_e4m3fn [n, k]
    nvfp4-pack-      weight_packed uint8 [n, k / 2], E2M1, the first in the low half;
      quantized      weight_scale float8_e4m3fn [n, k / 16]; weight_global_scale float32 [1],
                     by which scales are divided

Integers are packed without gaps, the first in the lowest bits, each plus half of its range; a
missing zero is 0. "naive-quantized" equals int-quantized or float-quantized.

Source: compressed-tensors 0.20.0, which computes in the scale's dtype, and NVFP4 weights in float32
rounded to bfloat16; g_idx exists in older versions only.
"""

from __future__ import annotations

from math import ceil

import torch
from torch import Tensor
from torch.nn.functional import pad

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def unpack(words: Tensor, bits: int, count: int) -> Tensor:
    """words int32 [..., ceil(count b / 32)] -> stored codes uint8 [..., count]."""
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


def unpack_halves(octets: Tensor) -> Tensor:
    """octets uint8 [..., k / 2] -> codes uint8 [..., k]."""
    return torch.stack([octets & 15, octets >> 4], -1).flatten(-2)


def pack_halves(codes: Tensor) -> Tensor:
    """codes uint8 [..., k] -> octets uint8 [..., k / 2]."""
    return codes[..., ::2] | codes[..., 1::2] << 4


def unsigned(q: Tensor) -> Tensor:
    """int8 -> uint8, plus 128."""
    return q.contiguous().view(torch.uint8) ^ 128


def signed(codes: Tensor) -> Tensor:
    """uint8 -> int8, minus 128."""
    return (codes ^ 128).view(torch.int8)


def table_of_fp4() -> Tensor:
    """The values of the 16 codes of E2M1, float32."""
    numbers = torch.tensor(E2M1)
    return torch.cat([numbers, -numbers])


def table_of_fp8() -> Tensor:
    """The values of the 256 codes of E4M3, float32; 0 for NaN."""
    return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().nan_to_num(0)


def expand(scale: Tensor, rows: int, columns: int, group: int, n: int, k: int) -> Tensor:
    """Expand scales of blocks of `rows` x `columns` weights to groups, [n, k / group]."""
    row = torch.arange(n, device=scale.device) // rows
    column = torch.arange(0, k, group, device=scale.device) // columns
    return scale[row][:, column]


def dequantize(
    codes: Tensor,
    scale: Tensor,
    zero: float | Tensor = 0,
    table: Tensor | None = None,
    d: Tensor | None = None,
) -> Tensor:
    """codes uint8 [n, k], scale and zero [n, groups], d [n, 1] -> float32 [n, k]."""
    value = codes.float() if table is None else table[codes.int()]
    value = value.unflatten(-1, (scale.shape[-1], -1))
    value = value - (zero.float()[..., None] if isinstance(zero, Tensor) else zero)
    factor = scale.float() if d is None else scale.float() * d
    return (value * factor[..., None]).flatten(-2)


def dequantize_rows(
    rows: slice,
    codes: Tensor,
    scale: Tensor,
    zero: float | Tensor = 0,
    table: Tensor | None = None,
    d: Tensor | None = None,
) -> Tensor:
    """`dequantize` a slice of rows: float32 [rows, k]."""
    zero = zero[rows] if isinstance(zero, Tensor) else zero
    d = None if d is None else d[rows]
    return dequantize(codes[rows], scale[rows], zero, table, d)
