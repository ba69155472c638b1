"""F8Q8 in plain torch: the byte layout and the reference implementation.

A block is 33 bytes: a float8_e4m3fn d and 32 int8 q; w = q * (d / 416). The flattened weight is
split into blocks, regardless of the length of its rows; the last block is padded with zeros.
Source: mistral.rs's UQFF format 5.
"""

from __future__ import annotations

from math import ceil, prod

import torch
from torch import Tensor

BLOCK = 32
NBYTES = 33
DIVISOR = 416.0
"""The divisor of d in mistral.rs 0.9, although its specification states 448."""

MAX_CODE = 0x7E
"""The code of the largest float8_e4m3fn, 448."""

CHUNK = 2**17  # blocks quantized at a time: bounds the memory of float32 temporaries


def split(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """blocks uint8 [..., 33] -> q int8 [..., 32], scale float32 [...]: d / 416."""
    d = blocks[..., 0].contiguous().view(torch.float8_e4m3fn).float()
    return blocks[..., 1:].contiguous().view(torch.int8), d / DIVISOR


def join(q: Tensor, scale: Tensor) -> Tensor:
    """The inverse of `split`: scale * 416 rounds to the original d."""
    d = (scale * DIVISOR).to(torch.float8_e4m3fn)[..., None]
    return torch.cat((d.view(torch.uint8), q.view(torch.uint8)), -1)


def dequantize(blocks: Tensor) -> Tensor:
    """blocks uint8 [..., 33] -> float32 [..., 32]."""
    q, scale = split(blocks)
    return q.float() * scale[..., None]


def dequantize_rows(rows: slice, blocks: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    """Rows of a weight of that shape, float32 [rows, k]; blocks may cross the ends of rows."""
    first, last, _ = rows.indices(prod(shape[:-1]))
    k = shape[-1]
    front, end = first * k, max(first, last) * k
    block = front // BLOCK
    part = dequantize(blocks[block : ceil(end / BLOCK)]).flatten()
    return part[front - block * BLOCK :][: end - front].view(-1, k)


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [..., 32] -> q int8 [..., 32], scale float32 [...].

    The scale is one of the two representable scales around max |w| / 127: the one with the smaller
    squared error.
    """
    found = [quantize_blocks(part.float()) for part in weight.reshape(-1, BLOCK).split(CHUNK)]
    q, scale = (torch.cat(parts) for parts in zip(*found, strict=True))
    return q.view(weight.shape), scale.view(weight.shape[:-1])


def quantize_blocks(weight: Tensor) -> tuple[Tensor, Tensor]:
    """`quantize` of blocks float32 [m, 32]."""
    target = (weight.abs().amax(-1) / 127 * DIVISOR).clamp_max(448)
    code = target.to(torch.float8_e4m3fn).view(torch.uint8).int()
    above = code.to(torch.uint8).view(torch.float8_e4m3fn).float() > target
    low = code - above.int()
    candidates = [quantize_with(weight, at.clamp(0, MAX_CODE)) for at in (low, low + 1)]
    first = candidates[0][2] <= candidates[1][2]
    q = torch.where(first[..., None], candidates[0][0], candidates[1][0])
    return q, torch.where(first, candidates[0][1], candidates[1][1])


def quantize_with(weight: Tensor, code: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, scale and squared error if d is the float with this code."""
    scale = code.to(torch.uint8).view(torch.float8_e4m3fn).float() / DIVISOR
    steps = torch.where(scale[..., None] > 0, weight / scale[..., None], 0)
    q = steps.round().clamp(-127, 127)
    return q.to(torch.int8), scale, (weight - q * scale[..., None]).square().sum(-1)
