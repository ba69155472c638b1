"""Plain torch implementation of the quantized matrix products: the reference for all kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from ostro.quant.planes.planes import CELL, Planes, unpack_codes

ROWS = 1024  # rows dequantized at a time: a few MB, which fit the CPU's cache


def dequantize(planes: Planes, dtype: torch.dtype) -> Tensor:
    """The weights [..., k] by the formula of `quant.planes.planes`."""
    codes = unpack_codes(planes.codes)
    value = codes.float() if planes.table is None else planes.table[codes.int()]
    value = value.unflatten(-1, (-1, planes.group))
    value = value - per_group(planes.zero)
    value *= per_group(scaled(planes.scale, planes.d))
    if planes.offset is not None:
        value += per_group(scaled(planes.offset, planes.m))
    return value.flatten(-2).to(dtype)


def scaled(values: Tensor, superblock: Tensor | None) -> Tensor:
    """Values of groups times the scale of their superblock, if there is one; float32."""
    if superblock is None:
        return values.float()
    blocks = values.float().unflatten(-1, (superblock.shape[-1], -1))
    return (blocks * superblock.float()[..., None]).flatten(-2)


def per_group(value: float | Tensor) -> float | Tensor:
    """Values of groups, shaped to broadcast over the members of each group."""
    return value.float()[..., None] if isinstance(value, Tensor) else value


def quantize_activations(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize x [t, k] to int8: q int8 [t, k] and d float32 [t, k / 32], x = d * q approximately.

    d is the largest magnitude among 32 neighbours divided by 127; ties round to even.
    """
    cells = x.float().unflatten(-1, (-1, CELL))
    d = cells.abs().amax(-1) / 127
    q = torch.where(d[..., None] > 0, cells / d[..., None], 0).round()
    return q.to(torch.int8).flatten(-2), d


def matmul(x: Tensor, planes: Planes) -> Tensor:
    """See the package; dequantizes blocks of rows of the weight and multiplies in x's dtype."""
    n = planes.shape[0]
    blocks = [dequantize(planes.select(slice(i, i + ROWS)), x.dtype) for i in range(0, n, ROWS)]
    return torch.cat([x @ block.t() for block in blocks], -1)


def matmul_quantized(x: Tensor, planes: Planes) -> Tensor:
    """Reference of kernels that quantize activations: `matmul` of the quantized x, in float32."""
    q, d = quantize_activations(x)
    cells = q.float().unflatten(-1, (-1, CELL)) * d[..., None]
    return matmul(cells.flatten(-2), planes).to(x.dtype)


def matmul_deterministic(x: Tensor, planes: Planes) -> Tensor:
    """As `matmul`, one row of x at a time, so that no row's bits depend on the batch."""
    rows = [matmul(row, planes) for row in x.split(1)]
    return torch.cat(rows) if rows else x.new_empty(0, planes.shape[0])


def grouped_matmul(x: Tensor, planes: Planes, expert_of_row: Tensor) -> Tensor:
    """See the package."""
    y = x.new_empty(x.shape[0], planes.shape[-2])
    for expert in expert_of_row.unique().tolist():
        rows = expert_of_row == expert
        y[rows] = matmul(x[rows], planes.select(slice(expert, expert + 1)).rows())
    return y


def grouped_matmul_deterministic(x: Tensor, planes: Planes, expert_of_row: Tensor) -> Tensor:
    """As `grouped_matmul`, one row of x at a time."""
    y = x.new_empty(x.shape[0], planes.shape[-2])
    for row, expert in enumerate(expert_of_row.tolist()):
        weight = planes.select(slice(expert, expert + 1)).rows()
        y[row] = matmul(x[row : row + 1], weight)[0]
    return y
