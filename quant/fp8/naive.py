"""FP8 in plain torch: the tensors, and the reference.

w = float(q) * scale, multiplied in float32. q is [n, k] in float8_e4m3fn or float8_e5m2, and of
scale there is one for the tensor, one for each row, or one for each block of rows and columns; the
last block may be smaller. Names ending in "_inv" mean the same: the stored scale is multiplied.
Sources: transformers' finegrained_fp8 and fbgemm_fp8, modelopt, mistral.rs's UQFF.
"""

from __future__ import annotations

from math import ceil, gcd
from typing import NamedTuple

import torch
from torch import Tensor

MOST = 448.0
"""The largest number of float8_e4m3fn."""

RUN = 1024  # rows quantized at a time, so that a large weight is never whole in floats


class Blocks(NamedTuple):
    """The scales of blocks of `high` rows and `wide` columns: [rows of blocks, columns of them]."""

    scale: Tensor
    high: int
    wide: int

    def spread(self, n: int, k: int) -> Tensor:
        """The scale of every group of a row, [n, k / group]: as few columns as possible."""
        group = gcd(k, self.wide)
        row = torch.arange(n, device=self.scale.device) // self.high
        column = torch.arange(0, k, group, device=self.scale.device) // self.wide
        return self.scale[row][:, column]


def blocks(scale: Tensor, n: int, k: int, size: tuple[int, int] | None) -> Blocks | None:
    """The blocks of a scale tensor, or None where it does not fit [n, k].

    `size` is the rows and columns of a block; without it blocks divide [n, k] evenly.
    """
    if scale.numel() == 1:
        return Blocks(scale.reshape(1, 1), n, k)
    if tuple(scale.shape) in ((n,), (n, 1)):
        return Blocks(scale.reshape(n, 1), 1, k)
    if scale.dim() != 2 or not scale.numel():
        return None
    high, wide = size or (max(n // scale.shape[0], 1), max(k // scale.shape[1], 1))
    fits = tuple(scale.shape) == (ceil(n / high), ceil(k / wide))
    return Blocks(scale, high, min(wide, k)) if fits else None


def table(dtype: torch.dtype) -> Tensor:
    """The numbers of all 256 codes of a float8 type, float32; 0 for NaN and Inf."""
    numbers = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    return torch.where(numbers.isfinite(), numbers, 0)


def finite(q: Tensor) -> bool:
    """Whether a float8 tensor has no NaN and no Inf."""
    first = {torch.float8_e4m3fn: 0x7F, torch.float8_e5m2: 0x7C}[q.dtype]
    return not bool(((q.contiguous().view(torch.uint8) & 0x7F) >= first).any())


def dequantize(q: Tensor, scale: Tensor) -> Tensor:
    """q [n, k] of a float8 type, scale [n, k / group] as `spread` gives it -> float32 [n, k]."""
    groups = q.float().unflatten(-1, (scale.shape[-1], -1))
    return (groups * scale.float()[..., None]).flatten(-2)


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [..., n, k] -> q float8_e4m3fn of that shape, scale float32 [..., 1, 1] per matrix."""
    largest = weight.abs().amax((-2, -1), keepdim=True).float()
    scale = torch.where(largest > 0, largest / MOST, 1)
    runs = weight.split(RUN, -2)
    q = [(run.float() / scale).clamp(-MOST, MOST).to(torch.float8_e4m3fn) for run in runs]
    return torch.cat(q, -2), scale
