"""LoRA in Triton: shrink, h = A x by chunks of k, then expand, y += B h by blocks of columns.

Rows are processed in tiles of 16. The rows of a tile with the same mixture and expert are
multiplied together. If there are few rows, the program of the first of these rows does it, so that
pages are read concurrently; if there are many, one program processes the whole tile. Both sum the
same terms in the same order. The grid depends on shapes only; a program without a page returns at
once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostro.core.ops.rows import check_contiguous, check_dense_rows, dense_rows

ROWS = 16
COLUMNS = 128
DEPTH = 128
"""Bytes of a row per iteration."""
CHUNK = 512
CHUNKS = 4
"""A row of x is summed in chunks of CHUNK columns, or in at most CHUNKS larger chunks."""
FEW = 256
"""Most rows for which each row has a program. Not measured."""
NONE = tl.constexpr(1 << 30)


def lora(
    x: Tensor,
    y: Tensor,
    a: Tensor,
    b: Tensor,
    widths: Sequence[int],
    pages: Tensor,
    scales: Tensor,
    mixture: Tensor,
    expert: Tensor | None = None,
    experts: int = 1,
) -> Tensor:
    """See the package. Allocates h = A x, float32 [t, K, parts, chunks of k, 16]."""
    check_contiguous("lora", a=a, b=b, pages=pages, scales=scales)
    check_dense_rows("lora", y=y)
    x = dense_rows(x)
    (t, k), (_, parts, rank, _), slots = x.shape, a.shape, pages.shape[1]
    chunk = max(CHUNK, triton.cdiv(k, CHUNKS * DEPTH) * DEPTH)
    chunks = triton.cdiv(k, chunk)
    h = torch.empty(t, slots, parts, chunks, rank, dtype=torch.float32, device=x.device)
    starts = 1 if t <= FEW else ROWS
    programs = triton.cdiv(t, starts)
    sizes = {"RANK": rank, "ROWS": ROWS, "STARTS": starts, "EACH": mixture.shape[0] > 1}
    lora_shrink[(programs, slots * parts, chunks)](
        x,
        a,
        pages,
        mixture,
        expert,
        h,
        *(experts, t, k, x.stride(0), slots, parts),
        **sizes,
        CHUNK=chunk,
        DEPTH=DEPTH // x.dtype.itemsize,
        # the interpreter does not multiply bfloat16
        WIDE=triton.knobs.runtime.interpret,
        num_stages=4,
    )
    lora_expand[(programs, sum(triton.cdiv(width, COLUMNS) for width in widths))](
        h,
        b,
        pages,
        scales,
        mixture,
        expert,
        y,
        tuple(widths),
        *(experts, t, sum(widths), y.stride(0), slots),
        **sizes,
        PARTS=parts,
        CHUNKS=chunks,
        COLUMNS=COLUMNS,
        # with 8 warps float32 spills registers below sm_90 (triton 3.7.1)
        num_warps=4 if x.dtype == torch.float32 else 8,
    )
    return y


@triton.jit(do_not_specialize=["t", "slots"])
def lora_shrink(
    x,
    a,
    pages,
    mixture,
    expert,
    h,
    experts,
    t,
    k,
    x_row,
    slots,
    parts,
    RANK: tl.constexpr,
    ROWS: tl.constexpr,
    STARTS: tl.constexpr,
    EACH: tl.constexpr,
    CHUNK: tl.constexpr,
    DEPTH: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Compute a chunk of h [ROWS, RANK] for one slot and part."""
    slot = tl.program_id(1) // parts
    part = tl.program_id(1) % parts
    first = tl.program_id(2) * CHUNK
    chunks = tl.num_programs(2)
    rank = tl.arange(0, RANK)
    tile, lane, keys, mine = tile_keys(mixture, expert, experts, t, ROWS, STARTS, EACH)
    key = tl.min(mine)
    while key < NONE:  # the distinct keys, in ascending order
        page = tl.load(pages + key // experts * slots + slot).to(tl.int64)
        if page >= 0:
            place = (page * experts + key % experts) * parts + part
            rows = keys == key
            acc = tl.zeros((ROWS, RANK), tl.float32)
            for at in range(first, tl.minimum(first + CHUNK, k), DEPTH):
                depth = at + tl.arange(0, DEPTH)
                some = tl.load(
                    x + tile * x_row + (lane[:, None] * x_row + depth[None, :]),
                    mask=rows[:, None] & (depth < k)[None, :],
                    other=0.0,
                )
                weight = tl.load(
                    a + place * RANK * k + (rank[None, :] * k + depth[:, None]),
                    mask=(depth < k)[:, None],
                    other=0.0,
                )
                if WIDE:
                    some = some.to(tl.float32)
                    weight = weight.to(tl.float32)
                acc = tl.dot(some, weight, acc, input_precision="ieee")
            to = h + (((tile * slots + slot) * parts + part) * chunks + tl.program_id(2)) * RANK
            h_row = slots * parts * chunks * RANK
            tl.store(to + (lane[:, None] * h_row + rank[None, :]), acc, mask=rows[:, None])
        mine = tl.where(mine > key, mine, NONE)
        key = tl.min(mine)


@triton.jit(do_not_specialize=["t", "slots"])
def lora_expand(
    h,
    b,
    pages,
    scales,
    mixture,
    expert,
    y,
    widths,
    experts,
    t,
    n,
    y_row,
    slots,
    RANK: tl.constexpr,
    ROWS: tl.constexpr,
    STARTS: tl.constexpr,
    EACH: tl.constexpr,
    PARTS: tl.constexpr,
    CHUNKS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Add all slots to y [ROWS, COLUMNS] of one part, then round once."""
    part, low, end = place_of(tl.program_id(1), widths, PARTS, COLUMNS)
    column = low + tl.arange(0, COLUMNS)
    rank = tl.arange(0, RANK)
    h_row = slots * PARTS * CHUNKS * RANK
    tile, lane, keys, mine = tile_keys(mixture, expert, experts, t, ROWS, STARTS, EACH)
    key = tl.min(mine)
    while key < NONE:
        rows = keys == key
        held = key // experts * slots
        many = 0
        acc = tl.zeros((ROWS, COLUMNS), tl.float32)
        for slot in range(slots):
            page = tl.load(pages + held + slot).to(tl.int64)
            if page >= 0:
                place = page * experts + key % experts
                at = h + ((tile * slots + slot) * PARTS + part) * CHUNKS * RANK
                hidden = tl.zeros((ROWS, RANK), tl.float32)
                for chunk in tl.static_range(CHUNKS):
                    hidden += tl.load(
                        at + chunk * RANK + (lane[:, None] * h_row + rank[None, :]),
                        mask=rows[:, None],
                        other=0.0,
                    )
                weight = tl.load(
                    b + place * RANK * n + (rank[:, None] * n + column[None, :]),
                    mask=(column < end)[None, :],
                    other=0.0,
                ).to(tl.float32)
                hidden *= tl.load(scales + held + slot)
                acc = tl.dot(hidden, weight, acc, input_precision="ieee")
                many += 1
        if many > 0:
            to = y + tile * y_row + (lane[:, None] * y_row + column[None, :])
            mask = rows[:, None] & (column < end)[None, :]
            before = tl.load(to, mask=mask, other=0.0).to(tl.float32)
            tl.store(to, (before + acc).to(y.dtype.element_ty), mask=mask)
        mine = tl.where(mine > key, mine, NONE)
        key = tl.min(mine)


@triton.jit
def tile_keys(
    mixture,
    expert,
    experts,
    t,
    ROWS: tl.constexpr,
    STARTS: tl.constexpr,
    EACH: tl.constexpr,
):
    """Return a tile's first row (int64), its lanes, their keys, and the keys of this program.

    A key identifies a mixture and an expert; NONE for lanes without a row.
    """
    start = tl.program_id(0) * STARTS % ROWS
    tile = (tl.program_id(0) * STARTS - start).to(tl.int64)
    lane = tl.arange(0, ROWS)
    there = lane < t - tile
    if EACH:
        keys = tl.load(mixture + tile + lane, mask=there, other=0) * experts
    else:
        keys = tl.load(mixture) * experts + tl.zeros((ROWS,), tl.int32)
    if expert is not None:
        keys += tl.load(expert + tile + lane, mask=there, other=0).to(tl.int32)
    keys = tl.where(there, keys, NONE)
    mine = tl.where((lane >= start) & (lane < start + STARTS), keys, NONE)
    if STARTS == 1:
        # Several rows of a tile may have one key: only the program of the first computes it.
        leads = tl.min(tl.where(keys == tl.min(mine), lane, ROWS)) == start
        mine = tl.where(leads, mine, NONE)
    return tile, lane, keys, mine


@triton.jit
def place_of(block, widths, PARTS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the part of a block of columns, its first column, and the end of the part."""
    part = block * 0
    low = block * 0
    end = block * 0
    before = block * 0
    columns = block * 0
    for i in tl.static_range(PARTS):
        reached = block >= before
        part = tl.where(reached, i, part)
        low = tl.where(reached, columns + (block - before) * COLUMNS, low)
        columns += widths[i]
        end = tl.where(reached, columns, end)
        before += tl.cdiv(widths[i], COLUMNS)
    return part, low, end
