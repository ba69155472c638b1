"""Triton grouped matmul of MXFP4: `core.ops.grouped_matmul` with weights unpacked in registers.

The two halves of a byte are weights 16 columns apart, so a tile of bytes is multiplied as two tiles
of weights. A code's magnitude, shifted to the top of a float16 mantissa, is its value times
2 ** -14, also if it is subnormal; exponents, at most 240, are raised by 14 to compensate.
"""

from __future__ import annotations

from functools import partial
from itertools import product

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostro.ops import GroupedTile, dense_rows, launch_parameters, row_class, target_family

SMALL_TILE = GroupedTile(rows=16, columns=32, depth=256, starts=1, warps=4, stages=4)
LARGE_TILE = GroupedTile(rows=64, columns=64, depth=128, starts=64, warps=4, stages=2)


def grouped_matmul(x: Tensor, q: Tensor, e: Tensor, expert_of_row: Tensor) -> Tensor:
    """See `naive`; sums in float32."""
    is_large = x.shape[0] >= SMALL_TILE.rows * q.shape[0]
    # The large tile spills registers there.
    fits = x.dtype.itemsize == 2 and target_family() not in ("sm_75", "gfx1100")
    tile = LARGE_TILE if is_large and fits else small_tile()
    if fits:
        key = (str(x.dtype), *e.shape, row_class(x.shape[0]))
        candidates = partial(candidate_tiles, x.shape[0] // q.shape[0])
        tile = launch_parameters("grouped mxfp4", key, tile, candidates)
    return launch(x, q, e, expert_of_row, tile)


def candidate_tiles(rows_per_expert: int) -> list[GroupedTile]:
    """The tiles that may be faster for so many rows of each expert."""
    rows = [size for size in (16, 32, 64) if size <= max(16, 2 * rows_per_expert)]
    sizes = product(rows[-2:], (32, 64, 128), (128, 256), (4, 8), (2, 3, 4))
    return [
        GroupedTile(m, n, depth, 1 if m == 16 else m, warps, stages)
        for m, n, depth, warps, stages in sizes
        # Unpacked weights take registers: four warps have at most 4096 of an iteration.
        if n * depth <= 4096 * warps
    ]


def grouped_matmul_deterministic(x: Tensor, q: Tensor, e: Tensor, expert_of_row: Tensor) -> Tensor:
    """See `naive`; batch-invariant."""
    return launch(x, q, e, expert_of_row, small_tile())


def small_tile() -> GroupedTile:
    return SMALL_TILE._replace(depth=128) if target_family() == "gfx1100" else SMALL_TILE


def launch(x: Tensor, q: Tensor, e: Tensor, expert_of_row: Tensor, tile: GroupedTile) -> Tensor:
    x = dense_rows(x)
    rows, (_, n, blocks) = x.shape[0], e.shape
    y = torch.empty(rows, n, dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(rows, tile.starts), triton.cdiv(n, tile.columns))
    grouped_matmul_kernel[grid](
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


@triton.jit(do_not_specialize=["rows"])
def grouped_matmul_kernel(
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
    """Multiply the runs of an expert that begin in STARTS rows of a tile, for BLOCK_N columns."""
    row = tl.program_id(0) * STARTS
    last = tl.minimum(row + STARTS, rows)
    tile = row // BLOCK_M * BLOCK_M
    x_index = (tile + tl.arange(0, BLOCK_M)).to(tl.int64)
    column = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    experts = tl.load(expert_of_row + x_index, mask=x_index < rows, other=1 << 30)
    while row < last:
        expert = tl.load(expert_of_row + row)
        start = tile + tl.sum((experts < expert).to(tl.int32))
        end = tile + tl.sum((experts <= expert).to(tl.int32))
        if row == start:
            row_mask = ((x_index >= start) & (x_index < end))[:, None]
            first = (expert * n + column[None, :]) * blocks
            acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            for at in range(0, blocks * 16, BYTES):
                byte = at + tl.arange(0, BYTES)
                inside = byte < blocks * 16
                mask = (column < n)[None, :] & inside[:, None]
                code = tl.load(q + first * 16 + byte[:, None], mask=mask, other=0)
                scale = power(tl.load(e + first + byte[:, None] // 16, mask=mask, other=0))
                source = x + x_index[:, None] * x_row + (byte + byte // 16 * 16)[None, :]
                a = tl.load(source, mask=row_mask & inside[None, :], other=0.0)
                acc = tl.dot(a, weight(code, scale, a.dtype), acc, input_precision="ieee")
                a = tl.load(source + 16, mask=row_mask & inside[None, :], other=0.0)
                acc = tl.dot(a, weight(code >> 4, scale, a.dtype), acc, input_precision="ieee")
            tl.store(
                y + x_index[:, None] * n + column[None, :],
                acc.to(y.dtype.element_ty),
                mask=row_mask & (column < n)[None, :],
            )
        row = end


@triton.jit
def power(e):
    """2 to the power of e - 113, float32."""
    return ((e.to(tl.int32) + 14) << 23).to(tl.float32, bitcast=True)


@triton.jit
def weight(code, scale, kind: tl.constexpr):
    """The weights of the low four bits of `code`, in x's dtype; `scale` contains the 2 ** 14."""
    code = code.to(tl.uint16)
    half = (((code & 7) << 9) | ((code & 8) << 12)).to(tl.float16, bitcast=True)
    return (half.to(tl.float32) * scale).to(kind)
