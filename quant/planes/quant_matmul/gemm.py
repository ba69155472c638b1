"""Products of many rows with planes in Triton: tiles of the weight, dequantized in registers.

The weight is the left operand (y^T = W x^T), which Hopper's tensor cores take from registers; the
run of codes that lies in one turn of bytes is a tile, with columns of x of its own. Where the tiles
are few, each is summed in several parts of k, which are added at the end.
"""

# Triton's language only looks like Python: it has no types to check.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostro.quant.planes.quant_matmul.tiles import lanes, parts, tile
from ostro.quant.planes.quant_matmul.unpack import half_weights
from ostro.quant.planes.quant_matmul.weight import Weight


def product(x: Tensor, weight: Weight) -> Tensor:
    """x [t, k] -> [t, n]; weights are rounded to x's dtype, sums are float32."""
    rows, n, cells = len(x), weight.n, weight.cells
    cut = tile(rows)
    tiles = triton.cdiv(rows, cut.rows), triton.cdiv(n, cut.columns)
    split = parts(tiles[0] * tiles[1], cells)
    kind = x.dtype if split == 1 else torch.float32
    y = torch.empty(split, rows, n, dtype=kind, device=x.device)
    share = triton.cdiv(cells, split * cut.cells) * cut.cells
    product_kernel[(*tiles, split)](
        *(weight.numbers, x, y, rows, n, cells, share, x.stride(0)),
        KIND=weight.kind,
        BLOCK_M=cut.rows,
        BLOCK_N=cut.columns,
        CELLS=cut.cells,
        num_warps=cut.warps,
        num_stages=cut.stages,
        enable_fp_fusion=True,
    )
    return y[0] if split == 1 else y.sum(0).to(x.dtype)


def grouped(x: Tensor, weight: Weight, expert_of_row: Tensor) -> Tensor:
    """As `product`, every row by its expert's matrix; x [t, k], expert_of_row [t] ascending."""
    rows, n, cells = len(x), weight.n, weight.cells
    y = torch.empty(rows, n, dtype=x.dtype, device=x.device)
    cut = tile(rows // weight.matrices)
    # Few rows start one by one, so that the experts of a tile are read side by side.
    starts = 1 if cut.rows == 16 else cut.rows
    grouped_kernel[(triton.cdiv(rows, starts), triton.cdiv(n, cut.columns))](
        *(weight.numbers, x, expert_of_row, y, rows, n, cells, x.stride(0)),
        KIND=weight.kind,
        BLOCK_M=cut.rows,
        BLOCK_N=cut.columns,
        CELLS=cut.cells,
        STARTS=starts,
        num_warps=cut.warps,
        num_stages=cut.stages,
        enable_fp_fusion=True,
    )
    return y


def dequantize(weight: Weight, start: int, stop: int, dtype: torch.dtype) -> Tensor:
    """Rows start..stop of all matrices end to end, [stop - start, k]."""
    y = torch.empty(stop - start, weight.cells * 32, dtype=dtype, device=weight.device)
    block = lanes(weight, 1, floats=True)
    programs = (triton.cdiv(stop - start, block.rows), triton.cdiv(weight.cells, block.cells))
    if stop > start:
        dequantize_kernel[programs](
            *(weight.numbers, y, start, stop, weight.cells),
            KIND=weight.kind,
            BLOCK_N=block.rows,
            CELLS=block.cells,
            num_warps=block.warps,
            # rounded after each step, as the truth is
            enable_fp_fusion=False,
        )
    return y


@triton.jit
def product_kernel(
    w,
    x,
    y,
    rows,
    n,
    cells,
    share,
    x_row,
    KIND: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CELLS: tl.constexpr,
):
    """A tile of y, or a part of its sum over `share` cells."""
    lane = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.minimum(column, n - 1).to(tl.int64)
    start = tl.program_id(2) * share
    stop = tl.minimum(start + share, cells)
    mine = lane < rows
    acc = tile_sum(w, x, row, lane, mine, start, stop, cells, x_row, KIND, BLOCK_M, BLOCK_N, CELLS)
    out = y + tl.program_id(2).to(tl.int64) * rows * n + lane[None, :] * n + column[:, None]
    tl.store(out, acc.to(y.dtype.element_ty), (column < n)[:, None] & mine[None, :])


@triton.jit
def grouped_kernel(
    w,
    x,
    expert_of_row,
    y,
    rows,
    n,
    cells,
    x_row,
    KIND: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CELLS: tl.constexpr,
    STARTS: tl.constexpr,
):
    """The runs of an expert that begin among STARTS rows of a tile, as in `core.ops.grouped`."""
    at = tl.program_id(0) * STARTS
    last = tl.minimum(at + STARTS, rows)
    first = at // BLOCK_M * BLOCK_M
    lane = (first + tl.arange(0, BLOCK_M)).to(tl.int64)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    experts = tl.load(expert_of_row + lane, lane < rows, 1 << 30)
    while at < last:
        expert = tl.load(expert_of_row + at)
        start = first + tl.sum((experts < expert).to(tl.int32))
        end = first + tl.sum((experts <= expert).to(tl.int32))
        if at == start:
            mine = (lane >= start) & (lane < end)
            row = expert * n + tl.minimum(column, n - 1)
            acc = tile_sum(
                w, x, row, lane, mine, 0, cells, cells, x_row, KIND, BLOCK_M, BLOCK_N, CELLS
            )
            out = y + lane[None, :] * n + column[:, None]
            tl.store(out, acc.to(y.dtype.element_ty), (column < n)[:, None] & mine[None, :])
        at = end


@triton.jit
def tile_sum(
    w,
    x,
    row,
    lane,
    mine,
    start,
    stop,
    cells,
    x_row,
    KIND: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CELLS: tl.constexpr,
):
    """Weights of `row` [BLOCK_N] by rows `lane` [BLOCK_M] of x, over cells start..stop, float32."""
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    depth = tl.arange(0, CELLS * 16)
    for at in range(start, stop, CELLS):
        cell = tl.minimum(at + tl.arange(0, CELLS), cells - 1)
        place = (at + depth // 16) * 32 + depth % 16
        inside = (place < stop * 32)[:, None] & mine[None, :]
        for half in tl.static_range(2):
            weight = half_weights(w, row[:, None], cell[None, :], cells, half, KIND)
            weight = weight.reshape(BLOCK_N, CELLS * 16).to(x.dtype.element_ty)
            at_x = x + lane[None, :] * x_row + (place + half * 16)[:, None]
            acc = tl.dot(weight, tl.load(at_x, inside, 0.0), acc, input_precision="ieee")
    return acc


@triton.jit
def dequantize_kernel(
    w, y, start, stop, cells, KIND: tl.constexpr, BLOCK_N: tl.constexpr, CELLS: tl.constexpr
):
    """CELLS cells of BLOCK_N rows."""
    line = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[:, None]
    here = (tl.program_id(1) * CELLS + tl.arange(0, CELLS))[None, :]
    row, cell = tl.minimum(start + line, stop - 1), tl.minimum(here, cells - 1)
    inside = ((start + line < stop) & (here < cells))[:, :, None]
    for half in tl.static_range(2):
        weight = half_weights(w, row, cell, cells, half, KIND)
        place = half * 16 + tl.arange(0, 16)[None, None, :]
        out = y + (line * cells + here)[:, :, None] * 32 + place
        tl.store(out, weight.to(y.dtype.element_ty), inside)
