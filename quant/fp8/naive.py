"""FP8 in plain torch: the tensors and the reference implementation.

w = float(q) * scale in float32. q [n, k] is float8_e4m3fn or float8_e5m2. There is one scale per
tensor, per row, or per block of rows and columns; the last block may be smaller. Scales whose names
end in "_inv" are multiplied as well.
Sources: transformers' finegrained_fp8 and fbgemm_fp8, modelopt, mistral.rs's UQFF.
"""

from __future__ import annotations

from math import ceil, gcd
from typing import NamedTuple

import torch
from torch import Tensor

MAX = 448.0
"""The largest float8_e4m3fn."""

CHUNK = 1024  # rows quantized at a time: bounds the memory of float32 temporaries


class Blocks(NamedTuple):
    """The scales [block rows, block columns] of blocks of `rows` x `columns` weights."""

    scale: Tensor
    rows: int
    columns: int

    def expand(self, n: int, k: int) -> Tensor:
        """The scale of every group of every row, [n, k / group], with the largest group."""
        group = gcd(k, self.columns)
        row = torch.arange(n, device=self.scale.device) // self.rows
        column = torch.arange(0, k, group, device=self.scale.device) // self.columns
        return self.scale[row][:, column]


def blocks(scale: Tensor, n: int, k: int, size: tuple[int, int] | None) -> Blocks | None:
    """The blocks of a scale tensor, or None if its shape does not match [n, k].

    `size` is the rows and columns of a block; without it, blocks divide [n, k] evenly.
    """
    if scale.numel() == 1:
        return Blocks(scale.reshape(1, 1), n, k)
    if tuple(scale.shape) in ((n,), (n, 1)):
        return Blocks(scale.reshape(n, 1), 1, k)
    if scale.dim() != 2 or not scale.numel():
        return None
    rows, columns = size or (max(n // scale.shape[0], 1), max(k // scale.shape[1], 1))
    fits = tuple(scale.shape) == (ceil(n / rows), ceil(k / columns))
    return Blocks(scale, rows, min(columns, k)) if fits else None


def table(dtype: torch.dtype) -> Tensor:
    """The values of all 256 codes of a float8 dtype, float32; 0 for NaN and Inf."""
    numbers = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    return torch.where(numbers.isfinite(), numbers, 0)


def is_finite(q: Tensor) -> bool:
    """Whether a float8 tensor contains neither NaN nor Inf."""
    first = {torch.float8_e4m3fn: 0x7F, torch.float8_e5m2: 0x7C}[q.dtype]
    return not bool(((q.contiguous().view(torch.uint8) & 0x7F) >= first).any())


def dequantize(q: Tensor, scale: Tensor) -> Tensor:
    """q [n, k] of a float8 dtype, scale [n, k / group] of `Blocks.expand` -> float32 [n, k]."""
    groups = q.float().unflatten(-1, (scale.shape[-1], -1))
    return (groups * scale.float()[..., None]).flatten(-2)


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [..., n, k] -> q float8_e4m3fn of that shape, scale float32 [..., 1, 1] per matrix."""
    largest = weight.abs().amax((-2, -1), keepdim=True).float()
    scale = torch.where(largest > 0, largest / MAX, 1)
    chunks = weight.split(CHUNK, -2)
    q = [(chunk.float() / scale).clamp(-MAX, MAX).to(torch.float8_e4m3fn) for chunk in chunks]
    return torch.cat(q, -2), scale
