"""Plain torch implementation of the quantized matrix products: the reference for all kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ostro.quant.planes.planes import CELL, Planes, unpack_codes

Multiply = Callable[[Tensor, Planes], Tensor]

BLOCK = 2**18
"""Weights dequantized at a time: 1 MB in float32, which fits the cache of a core."""


def dequantize(planes: Planes, dtype: torch.dtype) -> Tensor:
    """The weights [..., k] by the formula of `quant.planes.planes`."""
    codes = unpack_codes(planes.codes)
    value = codes.float() if planes.table is None else planes.table[codes.int()]
    value = value.unflatten(-1, (-1, planes.group))
    if isinstance(planes.zero, Tensor) or planes.zero:
        value -= per_group(planes.zero)
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
    n, k = planes.shape
    rows = max(1, BLOCK // max(1, k))
    y = x.new_empty(x.shape[0], n)
    for i in range(0, n, rows):
        block = dequantize(planes.select(slice(i, i + rows)), x.dtype)
        torch.mm(x, block.t(), out=y[:, i : i + rows])
    return y


def matmul_int8(x: Tensor, planes: Planes) -> Tensor:
    """`matmul` in float32 with x quantized to int8: the reference of kernels that quantize x.

    Like those kernels, it keeps x as it is if the code table does not hold integers.
    """
    rows = x.float()
    if planes.table is None or table_as_bytes(planes.table) is not None:
        q, d = quantize_activations(rows)
        rows = (q.float().unflatten(-1, (-1, CELL)) * d[..., None]).flatten(-2)
    return matmul(rows, planes).to(x.dtype)


def matmul_parts(x: Tensor, parts: Sequence[Planes]) -> Tensor:
    """See the package."""
    return torch.cat([matmul_int8(x, planes) for planes in parts], -1)


BYTE_ZERO = 128  # the byte that represents 0 in `table_as_bytes`


def table_as_bytes(table: Tensor) -> tuple[Tensor, float] | None:
    """Return a table as uint8 bytes and a unit: value = unit * (byte - `BYTE_ZERO`).

    Returns None if it has more than 16 values or values that are not such multiples.
    """
    for unit in (1.0, 0.5, 0.25, 0.125) if len(table) <= 16 else ():
        values = table.float() / unit + BYTE_ZERO
        if bool(((values == values.round()) & (values >= 0) & (values <= 255)).all()):
            return values.to(torch.uint8), unit
    return None


def matmul_deterministic(x: Tensor, planes: Planes, multiply: Multiply = matmul) -> Tensor:
    """As `multiply`, one row of x at a time, so that no row's bits depend on the batch."""
    rows = [multiply(row, planes) for row in x.split(1)]
    return torch.cat(rows) if rows else x.new_empty(0, planes.shape[0])


def grouped_matmul(
    x: Tensor, planes: Planes, expert_of_row: Tensor, multiply: Multiply = matmul
) -> Tensor:
    """See the package."""
    y = x.new_empty(x.shape[0], planes.shape[-2])
    for expert in expert_of_row.unique().tolist():
        rows = expert_of_row == expert
        y[rows] = multiply(x[rows], planes.select(slice(expert, expert + 1)).rows())
    return y


def grouped_matmul_deterministic(
    x: Tensor, planes: Planes, expert_of_row: Tensor, multiply: Multiply = matmul
) -> Tensor:
    """As `grouped_matmul`, one row of x at a time."""
    y = x.new_empty(x.shape[0], planes.shape[-2])
    for row, expert in enumerate(expert_of_row.tolist()):
        weight = planes.select(slice(expert, expert + 1)).rows()
        y[row] = multiply(x[row : row + 1], weight)[0]
    return y


def matmul_int8_deterministic(x: Tensor, planes: Planes) -> Tensor:
    """As `matmul_int8`, one row of x at a time."""
    return matmul_deterministic(x, planes, matmul_int8)


def grouped_matmul_int8(x: Tensor, planes: Planes, expert_of_row: Tensor) -> Tensor:
    """As `grouped_matmul`, with x quantized to int8."""
    return grouped_matmul(x, planes, expert_of_row, matmul_int8)


def grouped_matmul_int8_deterministic(x: Tensor, planes: Planes, expert_of_row: Tensor) -> Tensor:
    """As `grouped_matmul_int8`, one row of x at a time."""
    return grouped_matmul_deterministic(x, planes, expert_of_row, matmul_int8)
