"""Triton matrix products of many rows: tiles of the weight, dequantized in registers.

The weight is the left operand (y^T = W x^T), which Hopper's tensor cores take from registers. If
there are few tiles, each sum is split over k (split-K) and the parts are added at the end.
"""

# Triton's language only looks like Python: it has no types to check.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostro.ops import dense_rows
from ostro.quant.planes.quant_matmul.tiles import gemv_block, split_k, tile, wide_tile
from ostro.quant.planes.quant_matmul.unpack import half_weights
from ostro.quant.planes.quant_matmul.weight import TritonWeight


def matmul(x: Tensor, weight: TritonWeight) -> Tensor:
    """x [t, k] -> [t, n]; weights are rounded to x's dtype, sums are float32."""
    x = dense_rows(x)
    rows, n, cells = len(x), weight.n, weight.cells
    block = wide_tile(rows)
    tiles = triton.cdiv(rows, block.m), triton.cdiv(n, block.n)
    split = split_k(tiles[0] * tiles[1], cells, block)
    dtype = x.dtype if split == 1 else torch.float32
    y = torch.empty(split, rows, n, dtype=dtype, device=x.device)
    cells_per_split = triton.cdiv(cells, split * block.cells) * block.cells
    matmul_kernel[(*tiles, split)](
        *(weight.tensors, x, y, rows, n, cells, cells_per_split, x.stride(0)),
        LAYOUT=weight.layout,
        BLOCK_M=block.m,
        BLOCK_N=block.n,
        CELLS=block.cells,
        num_warps=block.warps,
        num_stages=block.stages,
        enable_fp_fusion=True,
    )
    return y[0] if split == 1 else y.sum(0).to(x.dtype)


def grouped_matmul(x: Tensor, weight: TritonWeight, expert_of_row: Tensor) -> Tensor:
    """As `matmul`, each row with its expert's matrix; expert_of_row [t] is ascending."""
    x = dense_rows(x)
    rows, n, cells = len(x), weight.n, weight.cells
    y = torch.empty(rows, n, dtype=x.dtype, device=x.device)
    block = tile(rows // weight.matrices)
    # With small tiles, one program per row, so that the experts of a tile are read concurrently.
    starts = 1 if block.m == 16 else block.m
    grouped_matmul_kernel[(triton.cdiv(rows, starts), triton.cdiv(n, block.n))](
        *(weight.tensors, x, expert_of_row, y, rows, n, cells, x.stride(0)),
        LAYOUT=weight.layout,
        BLOCK_M=block.m,
        BLOCK_N=block.n,
        CELLS=block.cells,
        STARTS=starts,
        num_warps=block.warps,
        num_stages=block.stages,
        enable_fp_fusion=True,
    )
    return y


def dequantize(weight: TritonWeight, start: int, stop: int, dtype: torch.dtype) -> Tensor:
    """Rows start..stop of all matrices concatenated, [stop - start, k]."""
    y = torch.empty(stop - start, weight.cells * 32, dtype=dtype, device=weight.device)
    block = gemv_block(weight, 1, floats=True)
    programs = (triton.cdiv(stop - start, block.rows), triton.cdiv(weight.cells, block.cells))
    if stop > start:
        dequantize_kernel[programs](
            *(weight.tensors, y, start, stop, weight.cells),
            LAYOUT=weight.layout,
            BLOCK_N=block.rows,
            CELLS=block.cells,
            num_warps=block.warps,
            # The naive kernel rounds after each operation: no fused multiply-add here.
            enable_fp_fusion=False,
        )
    return y


@triton.jit(do_not_specialize=["rows", "cells_per_split"])
def matmul_kernel(
    w,
    x,
    y,
    rows,
    n,
    cells,
    cells_per_split,
    x_row,
    LAYOUT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CELLS: tl.constexpr,
):
    """Compute a tile of y, or a part of its sum over `cells_per_split` cells."""
    x_index = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.minimum(column, n - 1).to(tl.int64)
    start = tl.program_id(2) * cells_per_split
    stop = tl.minimum(start + cells_per_split, cells)
    mask = x_index < rows
    acc = tile_sum(
        w, x, row, x_index, mask, start, stop, cells, x_row, LAYOUT, BLOCK_M, BLOCK_N, CELLS
    )
    out = y + tl.program_id(2).to(tl.int64) * rows * n + x_index[None, :] * n + column[:, None]
    tl.store(out, acc.to(y.dtype.element_ty), (column < n)[:, None] & mask[None, :])


@triton.jit(do_not_specialize=["rows"])
def grouped_matmul_kernel(
    w,
    x,
    expert_of_row,
    y,
    rows,
    n,
    cells,
    x_row,
    LAYOUT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CELLS: tl.constexpr,
    STARTS: tl.constexpr,
):
    """Multiply the runs of one expert that begin among STARTS rows of a tile (as
    `core.ops.grouped_matmul`).
    """
    at = tl.program_id(0) * STARTS
    last = tl.minimum(at + STARTS, rows)
    first = at // BLOCK_M * BLOCK_M
    x_index = (first + tl.arange(0, BLOCK_M)).to(tl.int64)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    experts = tl.load(expert_of_row + x_index, x_index < rows, 1 << 30)
    while at < last:
        expert = tl.load(expert_of_row + at)
        start = first + tl.sum((experts < expert).to(tl.int32))
        end = first + tl.sum((experts <= expert).to(tl.int32))
        if at == start:
            mask = (x_index >= start) & (x_index < end)
            row = expert * n + tl.minimum(column, n - 1)
            acc = tile_sum(
                w, x, row, x_index, mask, 0, cells, cells, x_row, LAYOUT, BLOCK_M, BLOCK_N, CELLS
            )
            out = y + x_index[None, :] * n + column[:, None]
            tl.store(out, acc.to(y.dtype.element_ty), (column < n)[:, None] & mask[None, :])
        at = end


@triton.jit
def tile_sum(
    w,
    x,
    row,
    x_index,
    mask,
    start,
    stop,
    cells,
    x_row,
    LAYOUT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CELLS: tl.constexpr,
):
    """Sum weights of `row` [BLOCK_N] by rows `x_index` [BLOCK_M] of x over cells start..stop."""
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    depth = tl.arange(0, CELLS * 16)
    for at in range(start, stop, CELLS):
        cell = tl.minimum(at + tl.arange(0, CELLS), cells - 1)
        position = (at + depth // 16) * 32 + depth % 16
        inside = (position < stop * 32)[:, None] & mask[None, :]
        for half in tl.static_range(2):
            weight = half_weights(w, row[:, None], cell[None, :], cells, half, LAYOUT)
            weight = weight.reshape(BLOCK_N, CELLS * 16).to(x.dtype.element_ty)
            at_x = x + x_index[None, :] * x_row + (position + half * 16)[:, None]
            acc = tl.dot(weight, tl.load(at_x, inside, 0.0), acc, input_precision="ieee")
    return acc


@triton.jit(do_not_specialize=["start", "stop"])
def dequantize_kernel(
    w, y, start, stop, cells, LAYOUT: tl.constexpr, BLOCK_N: tl.constexpr, CELLS: tl.constexpr
):
    """Dequantize CELLS cells of BLOCK_N rows."""
    line = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[:, None]
    here = (tl.program_id(1) * CELLS + tl.arange(0, CELLS))[None, :]
    row, cell = tl.minimum(start + line, stop - 1), tl.minimum(here, cells - 1)
    inside = ((start + line < stop) & (here < cells))[:, :, None]
    for half in tl.static_range(2):
        weight = half_weights(w, row, cell, cells, half, LAYOUT)
        position = half * 16 + tl.arange(0, 16)[None, None, :]
        out = y + (line * cells + here)[:, :, None] * 32 + position
        tl.store(out, weight.to(y.dtype.element_ty), inside)
