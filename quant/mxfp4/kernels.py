"""MXFP4's grouped matmul in Triton: that of `core.ops.grouped`, with weights unpacked in registers.

The two halves of a byte are weights 16 apart, so a tile of bytes is two tiles of weights, each with
rows of x of its own. A code's magnitude, moved to the top of a half's mantissa, is the half's value
by 2 ** -14, also where it is subnormal; exponents are raised by that much, and are 240 at most.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostro.ops import GroupedTile as Tile
from ostro.ops import target_family

FEW = Tile(rows=16, columns=32, depth=256, starts=1, warps=4, stages=4)
MANY = Tile(rows=64, columns=64, depth=128, starts=64, warps=4, stages=2)


def grouped(x: Tensor, q: Tensor, e: Tensor, expert_of_row: Tensor) -> Tensor:
    """See `naive`; sums in float32."""
    many = x.shape[0] >= FEW.rows * q.shape[0]
    # The large tile spills registers there.
    fits = x.dtype.itemsize == 2 and target_family() not in ("sm_75", "gfx1100")
    return launch(x, q, e, expert_of_row, MANY if many and fits else few())


def grouped_fixed(x: Tensor, q: Tensor, e: Tensor, expert_of_row: Tensor) -> Tensor:
    """See `naive`; a row's result has the same bits whatever other rows there are."""
    return launch(x, q, e, expert_of_row, few())


def few() -> Tile:
    return FEW._replace(depth=128) if target_family() == "gfx1100" else FEW


def launch(x: Tensor, q: Tensor, e: Tensor, expert_of_row: Tensor, tile: Tile) -> Tensor:
    rows, (_, n, blocks) = x.shape[0], e.shape
    y = torch.empty(rows, n, dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(rows, tile.starts), triton.cdiv(n, tile.columns))
    grouped_kernel[grid](
        x,
        q,
        e,
        expert_of_row,
        y,
        rows,
        n,
        blocks,
        x.stride(0),
        BLOCK_M=tile.rows,
        BLOCK_N=tile.columns,
        BYTES=tile.depth // x.dtype.itemsize // 2,
        STARTS=tile.starts,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return y


@triton.jit
def grouped_kernel(
    x,
    q,
    e,
    expert_of_row,
    y,
    rows,
    n,
    blocks,
    x_row,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BYTES: tl.constexpr,
    STARTS: tl.constexpr,
):
    """The runs that begin among STARTS rows of a tile, for BLOCK_N columns."""
    row = tl.program_id(0) * STARTS
    last = tl.minimum(row + STARTS, rows)
    tile = row // BLOCK_M * BLOCK_M
    lane = (tile + tl.arange(0, BLOCK_M)).to(tl.int64)
    column = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    experts = tl.load(expert_of_row + lane, mask=lane < rows, other=1 << 30)
    while row < last:
        expert = tl.load(expert_of_row + row)
        start = tile + tl.sum((experts < expert).to(tl.int32))
        end = tile + tl.sum((experts <= expert).to(tl.int32))
        if row == start:
            mine = ((lane >= start) & (lane < end))[:, None]
            first = (expert * n + column[None, :]) * blocks
            acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            for at in range(0, blocks * 16, BYTES):
                byte = at + tl.arange(0, BYTES)
                inside = byte < blocks * 16
                mask = (column < n)[None, :] & inside[:, None]
                code = tl.load(q + first * 16 + byte[:, None], mask=mask, other=0)
                scale = power(tl.load(e + first + byte[:, None] // 16, mask=mask, other=0))
                source = x + lane[:, None] * x_row + (byte + byte // 16 * 16)[None, :]
                a = tl.load(source, mask=mine & inside[None, :], other=0.0)
                acc = tl.dot(a, weight(code, scale, a.dtype), acc, input_precision="ieee")
                a = tl.load(source + 16, mask=mine & inside[None, :], other=0.0)
                acc = tl.dot(a, weight(code >> 4, scale, a.dtype), acc, input_precision="ieee")
            tl.store(
                y + lane[:, None] * n + column[None, :],
                acc.to(y.dtype.element_ty),
                mask=mine & (column < n)[None, :],
            )
        row = end


@triton.jit
def power(e):
    """2 to the power of e - 113, float32."""
    return ((e.to(tl.int32) + 14) << 23).to(tl.float32, bitcast=True)


@triton.jit
def weight(code, scale, kind: tl.constexpr):
    """The weights of the low four bits of `code`, in x's type; `scale` is 2 ** 14 of theirs."""
    code = code.to(tl.uint16)
    half = (((code & 7) << 9) | ((code & 8) << 12)).to(tl.float16, bitcast=True)
    return (half.to(tl.float32) * scale).to(kind)
