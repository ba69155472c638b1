"""Triton matrix products of many rows: tiles of the weight, dequantized in registers.

The weight is the left operand (y^T = W x^T), which Hopper's tensor cores take from registers. Both
operands are float16, which holds more digits than bfloat16: a factor for the weight and one for
each row of x, powers of two, keep them in its range, and the sums are float32. If there are few
tiles, each sum is split over k (split-K) and the parts are added at the end.
"""

# Triton's language only looks like Python: it has no types to check.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostro.ops import dense_rows
from ostro.quant.planes.quant_matmul.gemv import quantized
from ostro.quant.planes.quant_matmul.tiles import Tile, assembler, gemv_block, split_k
from ostro.quant.planes.quant_matmul.unpack import half_weights, tile_rows, tile_weights
from ostro.quant.planes.quant_matmul.weight import TritonWeight


def matmul(x: Tensor, weight: TritonWeight, block: Tile, *, quantize: bool) -> Tensor:
    """x [t, k] -> [t, n]; `quantize` rounds x as `naive.quantize_activations` does."""
    rows, n, cells = len(x), weight.n, weight.cells
    tiles = triton.cdiv(rows, block.m), triton.cdiv(n, block.n)
    split = split_k(tiles[0] * tiles[1], cells, block)
    y = torch.empty(split, rows, n, dtype=x.dtype if split == 1 else torch.float32, device=x.device)
    cells_per_split = triton.cdiv(cells, split * block.cells) * block.cells
    half, factors = to_half(x, quantize=quantize)
    matmul_kernel[(*tiles, split)](
        *(weight.tensors, half, factors, y, rows, n, cells, cells_per_split),
        **launch(weight, block),
    )
    return y[0] if split == 1 else sum_parts(y, x.dtype)


def sum_parts(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """Sum float32 [parts, t, n] over the parts, in their order."""
    y = torch.empty(parts.shape[1:], dtype=dtype, device=parts.device)
    programs = (triton.cdiv(y.numel(), 1024),)
    sum_kernel[programs](parts, y, y.numel(), PARTS=len(parts), BLOCK=1024, num_warps=4)
    return y


def grouped_matmul(
    x: Tensor, weight: TritonWeight, block: Tile, expert_of_row: Tensor, *, quantize: bool
) -> Tensor:
    """As `matmul`, each row with its expert's matrix; expert_of_row [t] is ascending."""
    rows, n, cells = len(x), weight.n, weight.cells
    y = torch.empty(rows, n, dtype=x.dtype, device=x.device)
    # With small tiles, one program per row, so that the experts of a tile are read concurrently.
    starts = 1 if block.m == 16 else block.m
    half, factors = to_half(x, quantize=quantize)
    grouped_matmul_kernel[(triton.cdiv(rows, starts), triton.cdiv(n, block.n))](
        *(weight.tensors, half, factors, expert_of_row, y, rows, n, cells),
        STARTS=starts,
        **launch(weight, block),
    )
    return y


def launch(weight: TritonWeight, block: Tile) -> dict[str, Any]:
    return {
        "LAYOUT": weight.layout,
        "BLOCK_M": block.m,
        "BLOCK_N": block.n,
        "CELLS": block.cells,
        "EVEN": weight.cells % block.cells == 0,
        "WARPS": block.warps,
        "ASM": assembler(),
        "num_warps": block.warps,
        "num_stages": block.stages,
        "enable_fp_fusion": True,
    }


def to_half(x: Tensor, *, quantize: bool) -> tuple[Tensor, Tensor]:
    """Convert x [t, k] to float16 [t, k'], in the order of `tile_weights`, and factors float32 [t].

    The factors are powers of two above the values of each row. k' is a multiple of 128.
    """
    x = dense_rows(x)
    rows, cells = len(x), x.shape[1] // 32
    y = torch.empty(rows, triton.cdiv(cells, 4) * 128, dtype=torch.float16, device=x.device)
    factors = torch.empty(rows, dtype=torch.float32, device=x.device)
    if rows:
        block = max(4, min(256, triton.next_power_of_2(cells)))
        half_kernel[(rows,)](
            *(x, y, factors, cells, x.stride(0)),
            QUANTIZE=quantize,
            CELLS=block,
            num_warps=max(1, block // 16),
        )
    return y, factors


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


@triton.jit
def half_kernel(x, y, factors, cells, x_row, QUANTIZE: tl.constexpr, CELLS: tl.constexpr):
    """Scale a row to values below one, rounded to float16; QUANTIZE rounds cells to int8 first."""
    row = tl.program_id(0).to(tl.int64)
    first = load_cells(x + row * x_row, 0, cells, CELLS)
    largest = tl.max(tl.abs(first), 1)
    for at in range(CELLS, cells, CELLS):
        value = load_cells(x + row * x_row, at, cells, CELLS)
        largest = tl.maximum(largest, tl.max(tl.abs(value), 1))
    exponent = (tl.max(largest, 0).to(tl.int32, bitcast=True) >> 23) & 255
    exponent = tl.minimum(tl.maximum(exponent, 1), 252)
    tl.store(factors + row, ((exponent + 1) << 23).to(tl.float32, bitcast=True))
    inverse = ((253 - exponent) << 23).to(tl.float32, bitcast=True)
    store_cells(first, inverse, y, row, 0, cells, QUANTIZE, CELLS)
    for at in range(CELLS, cells, CELLS):
        value = load_cells(x + row * x_row, at, cells, CELLS)
        store_cells(value, inverse, y, row, at, cells, QUANTIZE, CELLS)


@triton.jit
def load_cells(x, at, cells, CELLS: tl.constexpr):
    """Cells `at` and following of a row, float32 [CELLS, 32]; zeros beyond the row."""
    position = at * 32 + tl.arange(0, CELLS * 32)
    value = tl.load(x + position, position < cells * 32, 0.0).to(tl.float32)
    return value.reshape(CELLS, 32)


@triton.jit
def store_cells(value, inverse, y, row, at, cells, QUANTIZE: tl.constexpr, CELLS: tl.constexpr):
    """Store cells as float16, in the order of `tile_weights`: word, half, pair, cell, byte."""
    if QUANTIZE:
        whole, scale = quantized(value)
        value = whole * scale[:, None]
    half = (value * inverse).to(tl.float16).reshape(CELLS // 4, 4, 2, 4, 2, 2)
    half = half.permute(0, 3, 2, 4, 1, 5).reshape(CELLS * 32)
    columns = tl.cdiv(cells, 4) * 128
    position = at * 32 + tl.arange(0, CELLS * 32)
    tl.store(y + row * columns + position, half, position < columns)


@triton.jit(do_not_specialize=["rows", "cells_per_split"])
def matmul_kernel(
    w,
    x,
    factors,
    y,
    rows,
    n,
    cells,
    cells_per_split,
    LAYOUT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CELLS: tl.constexpr,
    EVEN: tl.constexpr,
    WARPS: tl.constexpr,
    ASM: tl.constexpr,
):
    """Compute a tile of y, or a part of its sum over `cells_per_split` cells."""
    x_index = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.minimum(column, n - 1).to(tl.int64)
    start = tl.program_id(2) * cells_per_split
    stop = tl.minimum(start + cells_per_split, cells)
    mask = x_index < rows
    acc = tile_sum(
        w,
        x,
        factors,
        row,
        x_index,
        mask,
        start,
        stop,
        cells,
        LAYOUT,
        BLOCK_M,
        BLOCK_N,
        CELLS,
        EVEN,
        WARPS,
        ASM,
    )
    column = tl.program_id(1) * BLOCK_N + tile_rows(BLOCK_N, WARPS)
    out = y + tl.program_id(2).to(tl.int64) * rows * n + x_index[None, :] * n + column[:, None]
    tl.store(out, acc.to(y.dtype.element_ty), (column < n)[:, None] & mask[None, :])


@triton.jit(do_not_specialize=["size"])
def sum_kernel(parts, y, size, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """Sum PARTS arrays of `size` elements."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(PARTS):
        total += tl.load(parts + part * size.to(tl.int64) + at, at < size, 0.0)
    tl.store(y + at, total.to(y.dtype.element_ty), at < size)


@triton.jit(do_not_specialize=["rows"])
def grouped_matmul_kernel(
    w,
    x,
    factors,
    expert_of_row,
    y,
    rows,
    n,
    cells,
    LAYOUT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CELLS: tl.constexpr,
    EVEN: tl.constexpr,
    WARPS: tl.constexpr,
    ASM: tl.constexpr,
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
                *(w, x, factors, row, x_index, mask, 0, cells, cells),
                *(LAYOUT, BLOCK_M, BLOCK_N, CELLS, EVEN, WARPS, ASM),
            )
            at_y = tl.program_id(1) * BLOCK_N + tile_rows(BLOCK_N, WARPS)
            out = y + x_index[None, :] * n + at_y[:, None]
            tl.store(out, acc.to(y.dtype.element_ty), (at_y < n)[:, None] & mask[None, :])
        at = end


@triton.jit
def tile_sum(
    w,
    x,
    factors,
    row,
    x_index,
    mask,
    start,
    stop,
    cells,
    LAYOUT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CELLS: tl.constexpr,
    EVEN: tl.constexpr,
    WARPS: tl.constexpr,
    ASM: tl.constexpr,
):
    """Sum weights of `row` [BLOCK_N] by rows `x_index` [BLOCK_M] of x over cells start..stop."""
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    depth, columns = tl.arange(0, 128), tl.cdiv(cells, 4) * 128
    for at in range(start, stop, CELLS):
        for part in tl.static_range(0, CELLS, 4):
            weight = tile_weights(w, row[:, None], at + part, cells, LAYOUT, EVEN, WARPS, ASM)
            position = (at + part) * 32 + depth
            inside = (position < columns)[:, None] & mask[None, :]
            if EVEN:
                inside = mask[None, :]
            value = tl.load(x + x_index[None, :] * columns + position[:, None], inside, 0.0)
            acc = tl.dot(weight, value, acc)
    return acc * (tl.load(factors + x_index, mask, 0.0) / tl.load(w.factor))[None, :]


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
