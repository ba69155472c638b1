"""F8Q8 in plain torch: the byte layout, and the reference.

A block is 33 bytes, a float8_e4m3fn d and 32 integers q of eight bits; w = q * (d / 416). Blocks
run over the flattened weight, whatever the length of its rows, and the last is filled with zeros.
Source: mistral.rs's UQFF format 5.
"""

from __future__ import annotations

from math import ceil, prod

import torch
from torch import Tensor

BLOCK = 32
NBYTES = 33
UNIT = 416.0
"""The divisor of d in mistral.rs 0.9, though its specification has 448."""

LARGEST = 0x7E
"""The code of the largest number of float8_e4m3fn, 448."""

RUN = 2**17  # blocks quantized at a time, so that a large weight is never whole in floats


def split(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """blocks uint8 [..., 33] -> q int8 [..., 32], scale float32 [...]: d / 416."""
    d = blocks[..., 0].contiguous().view(torch.float8_e4m3fn).float()
    return blocks[..., 1:].contiguous().view(torch.int8), d / UNIT


def join(q: Tensor, scale: Tensor) -> Tensor:
    """The inverse of `split`: a scale times 416 is nearest to the d that it came from."""
    d = (scale * UNIT).to(torch.float8_e4m3fn)[..., None]
    return torch.cat((d.view(torch.uint8), q.view(torch.uint8)), -1)


def dequantize(blocks: Tensor) -> Tensor:
    """blocks uint8 [..., 33] -> float32 [..., 32]."""
    q, scale = split(blocks)
    return q.float() * scale[..., None]


def dequantize_rows(rows: slice, blocks: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    """Rows of a weight of that shape, whose blocks may run over the ends of rows: float32."""
    first, last, _ = rows.indices(prod(shape[:-1]))
    k = shape[-1]
    front, end = first * k, max(first, last) * k
    block = front // BLOCK
    some = dequantize(blocks[block : ceil(end / BLOCK)]).flatten()
    return some[front - block * BLOCK :][: end - front].view(-1, k)


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [..., 32] -> q int8 [..., 32], scale float32 [...].

    Of the two scales that a float of eight bits can be on both sides of max |w| / 127, the one of
    the lesser squared error.
    """
    found = [quantize_blocks(some.float()) for some in weight.reshape(-1, BLOCK).split(RUN)]
    q, scale = (torch.cat(parts) for parts in zip(*found, strict=True))
    return q.view(weight.shape), scale.view(weight.shape[:-1])


def quantize_blocks(weight: Tensor) -> tuple[Tensor, Tensor]:
    """`quantize` of blocks float32 [m, 32]."""
    wanted = (weight.abs().amax(-1) / 127 * UNIT).clamp_max(448)
    code = wanted.to(torch.float8_e4m3fn).view(torch.uint8).int()
    above = code.to(torch.uint8).view(torch.float8_e4m3fn).float() > wanted
    low = code - above.int()
    made = [fitted(weight, at.clamp(0, LARGEST)) for at in (low, low + 1)]
    first = made[0][2] <= made[1][2]
    q = torch.where(first[..., None], made[0][0], made[1][0])
    return q, torch.where(first, made[0][1], made[1][1])


def fitted(weight: Tensor, code: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, scale and squared error where d is the float of this code."""
    scale = code.to(torch.uint8).view(torch.float8_e4m3fn).float() / UNIT
    steps = torch.where(scale[..., None] > 0, weight / scale[..., None], 0)
    q = steps.round().clamp(-127, 127)
    return q.to(torch.int8), scale, (weight - q * scale[..., None]).square().sum(-1)
