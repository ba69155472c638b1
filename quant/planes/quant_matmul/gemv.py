"""Triton matrix products of few rows (GEMV): one cell of a row of the weight per lane.

`integers` quantizes rows of x to int8 and multiplies four codes per instruction (dp4a). `floats`
multiplies x in float32. Programs of one block of the weight have adjacent ids, so that they read it
from the L2 cache.
"""

# Triton's language only looks like Python: it has no types to check, and no (*a, b).
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
# mypy: disable-error-code="assignment, var-annotated, union-attr"
# ruff: noqa: RUF005

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostro.ops import dense_rows
from ostro.quant.planes.quant_matmul.tiles import GemvBlock, assembler
from ostro.quant.planes.quant_matmul.unpack import (
    cell_words,
    dot4,
    group_index,
    group_value,
    half_weights,
)
from ostro.quant.planes.quant_matmul.weight import TritonWeight

Quantized = tuple[Tensor, Tensor, Tensor]


def multiply(
    x: Tensor,
    weight: TritonWeight,
    block: GemvBlock,
    expert_of_row: Tensor | None = None,
    *,
    quantize: bool,
) -> Tensor:
    """x [t, k] -> [t, n]; a block has one row of x if rows have experts."""
    run = integers if quantize else floats
    return run(x, weight, block, expert_of_row)


def integers(
    x: Tensor, weight: TritonWeight, block: GemvBlock, expert_of_row: Tensor | None
) -> Tensor:
    """See `multiply`; quantizes x."""
    per_cell = sums_per_cell([weight])
    q, scales, sums = quantize_to_integers(x, per_cell)
    y = torch.empty(len(x), weight.n, dtype=x.dtype, device=x.device)
    tensors = (weight.tensors, q.view(torch.int32), scales, sums, y, expert_of_row)
    sizes = (len(x), weight.n, weight.cells)
    if len(x):
        integers_kernel[grid(y, block)](
            *tensors, *sizes, LAYOUT=weight.layout, SUMS=per_cell, ASM=assembler(), **launch(block)
        )
    return y


def multiply_parts(x: Tensor, weights: Sequence[TritonWeight], block: GemvBlock) -> Tensor:
    """x [t, k] -> [t, n of all weights]: as `integers` with each weight, in one launch."""
    per_cell = sums_per_cell(weights)
    q, scales, sums = quantize_to_integers(x, per_cell)
    sizes = tuple(weight.n for weight in weights)
    y = torch.empty(len(x), sum(sizes), dtype=x.dtype, device=x.device)
    programs = triton.cdiv(len(x), block.x_rows) * sum(triton.cdiv(n, block.rows) for n in sizes)
    if len(x):
        parts_kernel[(programs,)](
            tuple(weight.tensors for weight in weights),
            *(q.view(torch.int32), scales, sums, y),
            *(len(x), sizes, weights[0].cells, y.shape[1]),
            LAYOUTS=tuple(weight.layout for weight in weights),
            SUMS=per_cell,
            ASM=assembler(),
            **launch(block),
        )
    return y


def sums_per_cell(weights: Sequence[TritonWeight]) -> int:
    """Sums of q that weights need of each cell: 2 for groups of 16, else 1."""
    return 32 // min(32, *(weight.layout.group for weight in weights))


def floats(
    x: Tensor, weight: TritonWeight, block: GemvBlock, expert_of_row: Tensor | None
) -> Tensor:
    """See `multiply`; keeps x in its dtype."""
    x = dense_rows(x)
    y = torch.empty(len(x), weight.n, dtype=x.dtype, device=x.device)
    tensors = (weight.tensors, x, y, expert_of_row)
    sizes = (len(x), weight.n, weight.cells, x.stride(0))
    if len(x):
        floats_kernel[grid(y, block)](*tensors, *sizes, LAYOUT=weight.layout, **launch(block))
    return y


def grid(y: Tensor, block: GemvBlock) -> tuple[int]:
    return (triton.cdiv(y.shape[0], block.x_rows) * triton.cdiv(y.shape[1], block.rows),)


def launch(block: GemvBlock) -> dict[str, int]:
    # Only the explicit tl.fma calls are fused, so that the bits do not depend on ROWS.
    return {
        "ROWS": block.x_rows,
        "BLOCK_N": block.rows,
        "CELLS": block.cells,
        "num_warps": block.warps,
        "enable_fp_fusion": False,
    }


def quantize_to_integers(x: Tensor, per_cell: int) -> Quantized:
    """Quantize x [t, k]: q int8 [t, k], scales float32 [t, k / 32], and sums of q.

    The sums, for zeros and offsets, are float32 [t, k / 32 * per_cell].
    """
    x = dense_rows(x)
    rows, cells = len(x), x.shape[1] // 32
    q = torch.empty(rows, cells * 32, dtype=torch.int8, device=x.device)
    scales = torch.empty(rows, cells, dtype=torch.float32, device=x.device)
    sums = torch.empty(rows, cells * per_cell, dtype=torch.float32, device=x.device)
    if rows:
        quantize_kernel[(rows, triton.cdiv(cells, 32))](
            x, q, scales, sums, cells, x.stride(0), HALVES=per_cell, CELLS=32, num_warps=1
        )
    return q, scales, sums


def quantize_to_floats(x: Tensor) -> Tensor:
    """Quantize every 32 neighbours of x to int8 and a scale, and return them in x's dtype."""
    x = dense_rows(x)
    rows, cells = len(x), x.shape[1] // 32
    y = torch.empty(rows, cells * 32, dtype=x.dtype, device=x.device)
    if rows:
        quantize_kernel[(rows, triton.cdiv(cells, 32))](
            x, y, None, None, cells, x.stride(0), HALVES=1, CELLS=32, num_warps=1
        )
    return y


@triton.jit
def quantize_kernel(x, q, scales, sums, cells, x_row, HALVES: tl.constexpr, CELLS: tl.constexpr):
    """Quantize CELLS cells of one row as `naive.quantize_activations` does: ties to even."""
    row = tl.program_id(0).to(tl.int64)
    cell = tl.program_id(1) * CELLS + tl.arange(0, CELLS)
    position = cell[:, None] * 32 + tl.arange(0, 32)[None, :]
    mask = (cell < cells)[:, None]
    value = tl.load(x + row * x_row + position, mask, 0.0).to(tl.float32)
    whole, scale = quantized(value)
    if scales is None:
        back = (whole * scale[:, None]).to(q.dtype.element_ty)
        tl.store(q + row * cells * 32 + position, back, mask)
    else:
        tl.store(q + row * cells * 32 + position, whole.to(tl.int8), mask)
        tl.store(scales + row * cells + cell, scale, cell < cells)
        half = cell[:, None] * HALVES + tl.arange(0, HALVES)[None, :]
        total = tl.sum(whole.reshape(CELLS, HALVES, 32 // HALVES), 2)
        tl.store(sums + row * cells * HALVES + half, total, mask)


@triton.jit
def quantized(value):
    """Cells [cells, 32] as integers from -127 to 127 and scales [cells], all float32."""
    # NaN or Inf makes the whole cell NaN, so that the fault shows in the result.
    scale = tl.div_rn(tl.max(tl.abs(value), 1) + tl.sum(value * 0, 1), 127.0)
    ratio = tl.div_rn(value, tl.where(scale > 0, scale, 1.0)[:, None])
    # Adding 1.5 * 2 ** 23 rounds to an integer, ties to even.
    return (ratio + 12582912.0) - 12582912.0, scale


@triton.jit(do_not_specialize=["rows"])
def integers_kernel(
    w,
    q,
    scales,
    sums,
    y,
    expert_of_row,
    rows,
    n,
    cells,
    LAYOUT: tl.constexpr,
    SUMS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CELLS: tl.constexpr,
    ASM: tl.constexpr,
):
    """Multiply ROWS quantized rows of x by BLOCK_N rows of the weight."""
    integers_program(
        tl.program_id(0),
        w,
        q,
        scales,
        sums,
        y,
        n,
        expert_of_row,
        rows,
        n,
        cells,
        LAYOUT,
        SUMS,
        ROWS,
        BLOCK_N,
        CELLS,
        ASM,
    )


@triton.jit(do_not_specialize=["rows"])
def parts_kernel(
    weights,
    q,
    scales,
    sums,
    y,
    rows,
    sizes,
    cells,
    y_row,
    LAYOUTS: tl.constexpr,
    SUMS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CELLS: tl.constexpr,
    ASM: tl.constexpr,
):
    """As `integers_kernel` with several weights; the programs of the first weight come first."""
    program = tl.program_id(0)
    for p in tl.static_range(len(LAYOUTS)):
        programs = tl.cdiv(rows, ROWS) * tl.cdiv(sizes[p], BLOCK_N)
        if (program >= 0) & (program < programs):
            integers_program(
                program,
                weights[p],
                q,
                scales,
                sums,
                y,
                y_row,
                None,
                rows,
                sizes[p],
                cells,
                constant(LAYOUTS, p),
                SUMS,
                ROWS,
                BLOCK_N,
                CELLS,
                ASM,
            )
        program -= programs
        y += sizes[p]


@triton.constexpr_function
def constant(values, i):
    """values[i]; an index in a kernel makes a tuple of values of it, not a constant."""
    return values[i]


@triton.jit
def integers_program(
    program,
    w,
    q,
    scales,
    sums,
    y,
    y_row,
    expert_of_row,
    rows,
    n,
    cells,
    LAYOUT: tl.constexpr,
    SUMS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CELLS: tl.constexpr,
    ASM: tl.constexpr,
):
    """Write the products of one program of a weight [n, k] to y, whose rows are `y_row` apart."""
    blocks = tl.cdiv(rows, ROWS)
    first = (program % blocks * ROWS).to(tl.int64)
    column = program // blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.minimum(column, n - 1).to(tl.int64)[:, None]
    if expert_of_row is not None:
        row += tl.load(expert_of_row + first) * n
    acc = ()
    for _ in tl.static_range(ROWS):
        acc = acc + (tl.zeros((BLOCK_N, CELLS), tl.float32),)
    for at in range(0, cells, CELLS):
        here = at + tl.arange(0, CELLS)
        cell = tl.minimum(here, cells - 1)[None, :]
        planes = cell_words(w, row, cell, cells, LAYOUT, ASM)
        updated = ()
        for r in tl.static_range(ROWS):
            index = tl.minimum(first + r, rows - 1) * cells + cell
            scale = tl.load(scales + index, (here < cells)[None, :], 0.0)
            total = acc[r]
            for half in tl.static_range(32 // min(LAYOUT.group, 32)):
                dot = cell_dot(planes, q, index, half, LAYOUT, ASM)
                part = apply_scales(w, dot, sums, index, row, cell, cells, half, LAYOUT, SUMS)
                total = tl.fma(part, scale, total)
            updated = updated + (total,)
        acc = updated
    for r in tl.static_range(ROWS):
        total = tl.sum(acc[r], 1) * LAYOUT.unit
        inside = column < tl.where(first + r < rows, n, 0)
        tl.store(y + (first + r) * y_row + column, total.to(y.dtype.element_ty), inside)


@triton.jit
def cell_dot(planes, q, index, HALF: tl.constexpr, LAYOUT: tl.constexpr, ASM: tl.constexpr):
    """Sums of code * q over cells, or over half of each, float32 [rows, cells]."""
    total, position = None, index[:, :, None] * 8
    for p in tl.static_range(len(LAYOUT.widths)):
        part = plane_dot(planes[p], q + position, HALF, LAYOUT.widths[p], LAYOUT.group, ASM)
        part = part << LAYOUT.lows[p]
        total = part if total is None else total + part
    return total.to(tl.float32)


@triton.jit
def plane_dot(
    units, x, HALF: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr, ASM: tl.constexpr
):
    unit: tl.constexpr = min(WIDTH, 4)
    turns: tl.constexpr = 8 // unit * min(GROUP, 32) // 32
    dot = units[0] * 0
    for turn in tl.static_range(turns * HALF, turns * HALF + turns):
        word = tl.load(x + unit * turn + tl.arange(0, unit)[None, None, :])
        dot = dot4(units[turn], tl.broadcast_to(word, dot.shape), dot, ASM)
    return tl.sum(dot, 2)


@triton.jit
def apply_scales(
    w,
    dot,
    sums,
    index,
    row,
    cell,
    cells,
    HALF: tl.constexpr,
    LAYOUT: tl.constexpr,
    SUMS: tl.constexpr,
):
    """scale * (dot - zero * sum) + offset * sum."""
    group, groups = group_index(cell, cells, HALF, LAYOUT)
    lowered: tl.constexpr = 128 if LAYOUT.widths[0] == 8 else 0
    total = tl.load(sums + index * SUMS + HALF)
    if SUMS == 2 and LAYOUT.group != 16:
        total += tl.load(sums + index * SUMS + 1)
    if w.zero is not None:
        zero = tl.load(w.zero + row * groups + group).to(tl.float32)
        dot = tl.fma(lowered - zero, total, dot)
    elif LAYOUT.zero != lowered:
        dot = tl.fma(total, lowered - LAYOUT.zero, dot)
    dot *= group_value(w.scale, w.d, LAYOUT.d, row, group, groups)
    if w.offset is not None:
        dot = tl.fma(group_value(w.offset, w.m, LAYOUT.m, row, group, groups), total, dot)
    return dot


@triton.jit(do_not_specialize=["rows"])
def floats_kernel(
    w,
    x,
    y,
    expert_of_row,
    rows,
    n,
    cells,
    x_row,
    LAYOUT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CELLS: tl.constexpr,
):
    """Multiply ROWS rows of x by BLOCK_N rows of the weight."""
    blocks = tl.cdiv(rows, ROWS)
    first = (tl.program_id(0) % blocks * ROWS).to(tl.int64)
    column = tl.program_id(0) // blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.minimum(column, n - 1).to(tl.int64)[:, None]
    if expert_of_row is not None:
        row += tl.load(expert_of_row + first) * n
    acc = ()
    for _ in tl.static_range(ROWS):
        acc = acc + (tl.zeros((BLOCK_N, CELLS), tl.float32),)
    for at in range(0, cells, CELLS):
        here = (at + tl.arange(0, CELLS))[None, :]
        cell = tl.minimum(here, cells - 1)
        for half in tl.static_range(2):
            weight = half_weights(w, row, cell, cells, half, LAYOUT)
            position = here[:, :, None] * 32 + half * 16 + tl.arange(0, 16)[None, None, :]
            updated = ()
            for r in tl.static_range(ROWS):
                index = x + tl.minimum(first + r, rows - 1) * x_row + position
                value = tl.load(index, (here < cells)[:, :, None], 0.0).to(tl.float32)
                updated = updated + (acc[r] + tl.sum(weight * value, 2),)
            acc = updated
    for r in tl.static_range(ROWS):
        inside = column < tl.where(first + r < rows, n, 0)
        tl.store(y + (first + r) * n + column, tl.sum(acc[r], 1).to(y.dtype.element_ty), inside)
