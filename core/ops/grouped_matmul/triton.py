"""Grouped matmul in Triton: tiles of rows, split into runs of one expert.

Rows are sorted by expert, so a tile of BLOCK_M rows is a few runs of one expert each, and all tiles
have at most t / BLOCK_M + experts runs. The grid depends on shapes only. For few rows, every row
has a program, which returns at once unless a run begins there, so that all weights are read
concurrently. For many rows, a tile has one program that loops over its runs.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostro.core.ops.attention.tiles import target_family
from ostro.core.ops.launch import launch_parameters, row_class
from ostro.core.ops.rows import check_contiguous, dense_rows


class GroupedTile(NamedTuple):
    """rows, columns of the output tile; depth: bytes of a row per iteration; starts: rows per
    program at which it looks for the begin of a run.
    """

    rows: int
    columns: int
    depth: int
    starts: int
    warps: int
    stages: int


FEW = GroupedTile(rows=16, columns=32, depth=128, starts=1, warps=4, stages=4)
MANY = GroupedTile(rows=64, columns=64, depth=128, starts=64, warps=4, stages=3)


def grouped(x: Tensor, weight: Tensor, expert_of_row: Tensor) -> Tensor:
    """See the package."""
    many = x.shape[0] >= FEW.rows * weight.shape[0]
    # Without tensor cores, or with loads of single elements, the large tile spills registers.
    fits = x.dtype.itemsize == 2 and x.shape[1] % 16 == 0 and target_family() != "sm_75"
    tile = MANY if many and fits else FEW
    if fits:
        key = (str(x.dtype), *weight.shape, row_class(x.shape[0]))
        candidates = partial(candidate_tiles, x.shape[0] // weight.shape[0])
        tile = launch_parameters("grouped_matmul", key, tile, candidates)
    return launch(x, weight, expert_of_row, tile)


def candidate_tiles(rows_per_expert: int) -> list[GroupedTile]:
    """The tiles that may be faster for so many rows of each expert."""
    rows = [size for size in (16, 32, 64, 128) if size <= max(16, 2 * rows_per_expert)]
    sizes = product(rows[-2:], (32, 64, 128), (64, 128), (4, 8), (2, 3, 4))
    return [
        GroupedTile(m, n, depth, 1 if m == 16 else m, warps, stages)
        for m, n, depth, warps, stages in sizes
        if (warps == 8) == (m * n >= 8192)  # the largest tiles need the registers of eight warps
    ]


def grouped_deterministic(x: Tensor, weight: Tensor, expert_of_row: Tensor) -> Tensor:
    """See the package; batch-invariant."""
    return launch(x, weight, expert_of_row, FEW)


def launch(x: Tensor, weight: Tensor, expert_of_row: Tensor, tile: GroupedTile) -> Tensor:
    check_contiguous("grouped_matmul", weight=weight)
    x = dense_rows(x)
    rows, (_, n, k) = x.shape[0], weight.shape
    y = torch.empty(rows, n, dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(rows, tile.starts), triton.cdiv(n, tile.columns))
    grouped_kernel[grid](
        x,
        weight,
        expert_of_row,
        y,
        rows,
        n,
        k,
        x.stride(0),
        BLOCK_M=tile.rows,
        BLOCK_N=tile.columns,
        BLOCK_K=tile.depth // x.dtype.itemsize,
        STARTS=tile.starts,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return y


@triton.jit(do_not_specialize=["rows"])
def grouped_kernel(
    x,
    weight,
    expert_of_row,
    y,
    rows,
    n,
    k,
    x_row,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STARTS: tl.constexpr,
):
    """Multiply the runs that begin among STARTS rows of a tile, for BLOCK_N columns."""
    row = tl.program_id(0) * STARTS
    last = tl.minimum(row + STARTS, rows)
    tile = row // BLOCK_M * BLOCK_M
    lane = (tile + tl.arange(0, BLOCK_M)).to(tl.int64)
    column = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    # Lanes past the last row sort after every expert.
    experts = tl.load(expert_of_row + lane, mask=lane < rows, other=1 << 30)
    while row < last:
        expert = tl.load(expert_of_row + row)
        start = tile + tl.sum((experts < expert).to(tl.int32))
        end = tile + tl.sum((experts <= expert).to(tl.int32))
        if row == start:
            mine = (lane >= start) & (lane < end)
            matrix = weight + expert * n * k
            acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            for at in range(0, k, BLOCK_K):
                depth = at + tl.arange(0, BLOCK_K)
                inside = depth < k
                a = tl.load(
                    x + lane[:, None] * x_row + depth[None, :],
                    mask=mine[:, None] & inside[None, :],
                    other=0.0,
                )
                b = tl.load(
                    matrix + column[None, :] * k + depth[:, None],
                    mask=(column < n)[None, :] & inside[:, None],
                    other=0.0,
                )
                acc = tl.dot(a, b, acc, input_precision="ieee")
            tl.store(
                y + lane[:, None] * n + column[None, :],
                acc.to(y.dtype.element_ty),
                mask=mine[:, None] & (column < n)[None, :],
            )
        row = end
