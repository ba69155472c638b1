"""Planes in plain torch: the truth that kernels are held to."""

from __future__ import annotations

import torch
from torch import Tensor

from ostro.quant.planes.planes import CELL, Planes, unpack_codes

ROWS = 1024  # rows dequantized at a time: a few MB, which stay in the cache


def dequantize(planes: Planes, dtype: torch.dtype) -> Tensor:
    """The weights [..., k] that the formula of `quant.planes.planes` gives."""
    codes = unpack_codes(planes.codes)
    value = codes.float() if planes.table is None else planes.table[codes.int()]
    value = value.unflatten(-1, (-1, planes.group))
    value = value - each(planes.zero)
    value *= each(times(planes.scale, planes.d))
    if planes.offset is not None:
        value += each(times(planes.offset, planes.m))
    return value.flatten(-2).to(dtype)


def times(fine: Tensor, coarse: Tensor | None) -> Tensor:
    """Numbers of groups, float32, times those of several groups each."""
    if coarse is None:
        return fine.float()
    several = fine.float().unflatten(-1, (coarse.shape[-1], -1))
    return (several * coarse.float()[..., None]).flatten(-2)


def each(number: float | Tensor) -> float | Tensor:
    """Numbers of groups for every member of a group."""
    return number.float()[..., None] if isinstance(number, Tensor) else number


def rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [t, k] as integers: q int8 [t, k], d float32 [t, k / 32], x about d q.

    d is the largest magnitude among 32 neighbours by 127; ties go to even.
    """
    cells = x.float().unflatten(-1, (-1, CELL))
    d = cells.abs().amax(-1) / 127
    q = torch.where(d[..., None] > 0, cells / d[..., None], 0).round()
    return q.to(torch.int8).flatten(-2), d


def product(x: Tensor, planes: Planes) -> Tensor:
    """See the package; by blocks of rows of the weight, multiplied in x's dtype."""
    n = planes.shape[0]
    blocks = [dequantize(planes.take(slice(i, i + ROWS)), x.dtype) for i in range(0, n, ROWS)]
    return torch.cat([x @ block.t() for block in blocks], -1)


def product_rounded(x: Tensor, planes: Planes) -> Tensor:
    """What kernels that round x compute: `product` of `rounded` x, in float32."""
    q, d = rounded(x)
    cells = q.float().unflatten(-1, (-1, CELL)) * d[..., None]
    return product(cells.flatten(-2), planes).to(x.dtype)


def product_fixed(x: Tensor, planes: Planes) -> Tensor:
    """As `product`, each row of x alone."""
    rows = [product(row, planes) for row in x.split(1)]
    return torch.cat(rows) if rows else x.new_empty(0, planes.shape[0])


def grouped(x: Tensor, planes: Planes, expert_of_row: Tensor) -> Tensor:
    """See the package."""
    y = x.new_empty(x.shape[0], planes.shape[-2])
    for expert in expert_of_row.unique().tolist():
        mine = expert_of_row == expert
        y[mine] = product(x[mine], planes.take(slice(expert, expert + 1)).rows())
    return y


def grouped_fixed(x: Tensor, planes: Planes, expert_of_row: Tensor) -> Tensor:
    """As `grouped`, each row of x alone."""
    y = x.new_empty(x.shape[0], planes.shape[-2])
    for row, expert in enumerate(expert_of_row.tolist()):
        mine = planes.take(slice(expert, expert + 1)).rows()
        y[row] = product(x[row : row + 1], mine)[0]
    return y
