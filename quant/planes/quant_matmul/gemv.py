"""Products of few rows with planes in Triton: a lane owns a cell until rows are summed.

`words` multiplies integers: rows of x are rounded to eight bits first, and the GPU multiplies four
codes at a time. `floats` rounds nothing. Programs of one block of the weight lie side by side, so
that it is read once.
"""

# Triton's language only looks like Python: it has no types to check, and no (*a, b).
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
# mypy: disable-error-code="assignment, var-annotated, union-attr"
# ruff: noqa: RUF005

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostro.quant.planes.quant_matmul.tiles import Lanes, assembler, lanes
from ostro.quant.planes.quant_matmul.unpack import (
    cell_words,
    dot4,
    group_number,
    group_place,
    half_weights,
)
from ostro.quant.planes.quant_matmul.weight import Weight

Rounded = tuple[Tensor, Tensor, Tensor]


def words(x: Tensor, weight: Weight, expert_of_row: Tensor | None = None, many: int = 1) -> Tensor:
    """x [t, k] -> [t, n]; `many` rows of x to a program (one where rows have experts)."""
    q, scales, sums = round_words(x, weight)
    y = torch.empty(len(x), weight.n, dtype=x.dtype, device=x.device)
    given = (weight.numbers, q.view(torch.int32), scales, sums, y, expert_of_row)
    sizes = (len(x), weight.n, weight.cells)
    block = lanes(weight, many, floats=False)
    if len(x):
        words_kernel[grid(y, many, block)](
            *given, *sizes, KIND=weight.kind, ASM=assembler(), **launch(many, block)
        )
    return y


def floats(x: Tensor, weight: Weight, expert_of_row: Tensor | None = None, many: int = 1) -> Tensor:
    """As `words`, with x as it is."""
    y = torch.empty(len(x), weight.n, dtype=x.dtype, device=x.device)
    given = (weight.numbers, x, y, expert_of_row)
    sizes = (len(x), weight.n, weight.cells, x.stride(0))
    block = lanes(weight, many, floats=True)
    if len(x):
        floats_kernel[grid(y, many, block)](*given, *sizes, KIND=weight.kind, **launch(many, block))
    return y


def grid(y: Tensor, many: int, block: Lanes) -> tuple[int]:
    return (triton.cdiv(y.shape[0], many) * triton.cdiv(y.shape[1], block.rows),)


def launch(many: int, block: Lanes) -> dict[str, int]:
    # Products and sums are fused where the source says so: the same bits for any number of rows.
    return {
        "ROWS": many,
        "BLOCK_N": block.rows,
        "CELLS": block.cells,
        "num_warps": block.warps,
        "enable_fp_fusion": False,
    }


def round_words(x: Tensor, weight: Weight) -> Rounded:
    """q int8 [t, k], their scales [t, k / 32], and the sums of q where zeros or offsets want them,
    float32 [t, k / 32], or of halves of cells, [t, k / 16].
    """
    rows, cells, halves = len(x), weight.cells, 32 // min(weight.kind.group, 32)
    q = torch.empty(rows, cells * 32, dtype=torch.int8, device=x.device)
    scales = torch.empty(rows, cells, dtype=torch.float32, device=x.device)
    sums = torch.empty(rows, cells * halves, dtype=torch.float32, device=x.device)
    if rows:
        round_kernel[(rows, triton.cdiv(cells, 32))](
            x, q, scales, sums, cells, x.stride(0), HALVES=halves, CELLS=32, num_warps=1
        )
    return q, scales, sums


def round_floats(x: Tensor) -> Tensor:
    """x with every 32 neighbours rounded to eight bits and a scale, in x's dtype again."""
    rows, cells = len(x), x.shape[1] // 32
    y = torch.empty(rows, cells * 32, dtype=x.dtype, device=x.device)
    if rows:
        round_kernel[(rows, triton.cdiv(cells, 32))](
            x, y, None, None, cells, x.stride(0), HALVES=1, CELLS=32, num_warps=1
        )
    return y


@triton.jit
def round_kernel(x, q, scales, sums, cells, x_row, HALVES: tl.constexpr, CELLS: tl.constexpr):
    """CELLS cells of one row, as `naive.rounded` has them: divided, ties to even."""
    row = tl.program_id(0).to(tl.int64)
    cell = tl.program_id(1) * CELLS + tl.arange(0, CELLS)
    place = cell[:, None] * 32 + tl.arange(0, 32)[None, :]
    mask = (cell < cells)[:, None]
    value = tl.load(x + row * x_row + place, mask, 0.0).to(tl.float32)
    # what is not finite makes its cell NaN
    scale = tl.div_rn(tl.max(tl.abs(value), 1) + tl.sum(value * 0, 1), 127.0)
    ratio = tl.div_rn(value, tl.where(scale > 0, scale, 1.0)[:, None])
    # adding a number whose unit is 1 rounds to whole ones
    whole = (ratio + 12582912.0) - 12582912.0
    if scales is None:
        back = (whole * scale[:, None]).to(q.dtype.element_ty)
        tl.store(q + row * cells * 32 + place, back, mask)
    else:
        tl.store(q + row * cells * 32 + place, whole.to(tl.int8), mask)
        tl.store(scales + row * cells + cell, scale, cell < cells)
        half = cell[:, None] * HALVES + tl.arange(0, HALVES)[None, :]
        total = tl.sum(whole.reshape(CELLS, HALVES, 32 // HALVES), 2)
        tl.store(sums + row * cells * HALVES + half, total, mask)


@triton.jit
def words_kernel(
    w,
    q,
    scales,
    sums,
    y,
    expert_of_row,
    rows,
    n,
    cells,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CELLS: tl.constexpr,
    ASM: tl.constexpr,
):
    """ROWS rows of x, rounded, times BLOCK_N of the weight."""
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
        here = at + tl.arange(0, CELLS)
        cell = tl.minimum(here, cells - 1)[None, :]
        planes = cell_words(w, row, cell, cells, KIND, ASM)
        some = ()
        for r in tl.static_range(ROWS):
            mine = tl.minimum(first + r, rows - 1) * cells + cell
            scale = tl.load(scales + mine, (here < cells)[None, :], 0.0)
            total = acc[r]
            for half in tl.static_range(32 // min(KIND.group, 32)):
                dot = cell_dot(planes, q, mine, half, KIND, ASM)
                part = weigh(w, dot, sums, mine, row, cell, cells, half, KIND)
                total = tl.fma(part, scale, total)
            some = some + (total,)
        acc = some
    for r in tl.static_range(ROWS):
        total = tl.sum(acc[r], 1) * KIND.unit
        inside = column < tl.where(first + r < rows, n, 0)
        tl.store(y + (first + r) * n + column, total.to(y.dtype.element_ty), inside)


@triton.jit
def cell_dot(planes, q, mine, HALF: tl.constexpr, KIND: tl.constexpr, ASM: tl.constexpr):
    """Sums of code by q in cells, or in half of each, float32 [rows, cells]."""
    total, place = None, mine[:, :, None] * 8
    for p in tl.static_range(len(KIND.widths)):
        part = plane_dot(planes[p], q + place, HALF, KIND.widths[p], KIND.group, ASM)
        part = part << KIND.lows[p]
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
def weigh(w, dot, sums, mine, row, cell, cells, HALF: tl.constexpr, KIND: tl.constexpr):
    """scale * (dot - zero * sum) + offset * sum."""
    group, groups = group_place(cell, cells, HALF, KIND)
    lowered: tl.constexpr = 128 if KIND.widths[0] == 8 else 0
    total = tl.load(sums + mine * (32 // min(KIND.group, 32)) + HALF)
    if w.zero is not None:
        zero = tl.load(w.zero + row * groups + group).to(tl.float32)
        dot = tl.fma(lowered - zero, total, dot)
    elif KIND.zero != lowered:
        dot = tl.fma(total, lowered - KIND.zero, dot)
    dot *= group_number(w.scale, w.d, KIND.d, row, group, groups)
    if w.offset is not None:
        dot = tl.fma(group_number(w.offset, w.m, KIND.m, row, group, groups), total, dot)
    return dot


@triton.jit
def floats_kernel(
    w,
    x,
    y,
    expert_of_row,
    rows,
    n,
    cells,
    x_row,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CELLS: tl.constexpr,
):
    """ROWS rows of x times BLOCK_N of the weight."""
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
            weight = half_weights(w, row, cell, cells, half, KIND)
            place = here[:, :, None] * 32 + half * 16 + tl.arange(0, 16)[None, None, :]
            some = ()
            for r in tl.static_range(ROWS):
                mine = x + tl.minimum(first + r, rows - 1) * x_row + place
                value = tl.load(mine, (here < cells)[:, :, None], 0.0).to(tl.float32)
                some = some + (acc[r] + tl.sum(weight * value, 2),)
            acc = some
    for r in tl.static_range(ROWS):
        inside = column < tl.where(first + r < rows, n, 0)
        tl.store(y + (first + r) * n + column, tl.sum(acc[r], 1).to(y.dtype.element_ty), inside)
