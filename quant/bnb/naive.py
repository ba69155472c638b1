"""bitsandbytes' formats in plain torch: the byte layouts and the reference implementation.

Four bits: the flattened weight [n, k] is split into blocks, of which the last may be shorter;
w = quant_map[code] * absmax, with the absmax of the block. A byte holds two codes, the first in its
high half. absmax is float32, or nested: uint8 codes a in blocks of their own, with

    absmax = nested_quant_map[a] * nested_absmax + nested_offset

Eight bits: int8 [n, k] and SCB float32 [n], the largest magnitude per row; w = q * SCB / 127.
Sources: bitsandbytes.functional, QuantState and int8_vectorwise_dequant.
"""

from __future__ import annotations

import torch
from torch import Tensor

STEP = 7.874015718698502e-3
"""bitsandbytes' 1 / 127."""


def unpack(packed: Tensor, start: int, stop: int) -> Tensor:
    """Unpack the codes start..stop of packed uint8 [bytes]: uint8 [stop - start]."""
    octets = packed[start // 2 : (stop + 1) // 2]
    codes = torch.stack((octets >> 4, octets & 15), -1).flatten()
    return codes[start % 2 :][: stop - start]


def pack(codes: Tensor) -> Tensor:
    """codes uint8 [m] -> uint8 [ceil(m / 2)]."""
    if len(codes) % 2:
        codes = torch.cat((codes, codes.new_zeros(1)))
    return codes[::2] << 4 | codes[1::2]


def unnest(
    absmax: Tensor, nested_map: Tensor, nested_absmax: Tensor, block: int, offset: float
) -> Tensor:
    """Dequantize nested absmax uint8 [m] in blocks of `block`: float32 [m]."""
    block_of = torch.arange(len(absmax), device=absmax.device) // block
    return nested_map[absmax.int()] * nested_absmax[block_of] + offset


def dequantize(
    packed: Tensor, quant_map: Tensor, absmax: Tensor, block: int, start: int, stop: int
) -> Tensor:
    """The weights start..stop of the flattened weight: float32 [stop - start]."""
    block_of = torch.arange(start, stop, device=packed.device) // block
    return quant_map[unpack(packed, start, stop).int()] * absmax[block_of]


def dequantize_rows(
    rows: slice,
    packed: Tensor,
    quant_map: Tensor,
    absmax: Tensor,
    *,
    shape: tuple[int, int],
    block: int,
) -> Tensor:
    """Rows of a weight of that shape, float32 [rows, k]."""
    n, k = shape
    first, last, _ = rows.indices(n)
    flat = dequantize(packed, quant_map, absmax, block, first * k, max(first, last) * k)
    return flat.view(-1, k)


def dequantize_int8(q: Tensor, scb: Tensor) -> Tensor:
    """q int8 [n, k], SCB float32 [n] -> float32 [n, k]."""
    return q.float() * scb[:, None] * STEP
