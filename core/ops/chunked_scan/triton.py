"""The Triton kernel that advances states chunk by chunk, and helpers for its inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostro.core.ops.attention.tiles import target_family
from ostro.core.ops.attention.triton import TENSOR_FLOAT
from ostro.core.ops.state_layout import SAVED_ROWS, StateLayout

SHORT_SEQUENCE = SAVED_ROWS  # most rows of a sequence that are not worth a chunk
WIDEST = 128  # most elements of a key: a program has the whole key dimension in registers


class Tiles(NamedTuple):
    """Rows per chunk; elements of a value per program of `advance`, its warps and stages."""

    rows: int
    values: int
    warps: int
    stages: int


# By GPU family, for scans and for delta rules: of the sizes tried, the largest that compile without
# register spills. sm_75 and gfx1100 have no tensor cores for these products.
TILES = {
    **dict.fromkeys(TENSOR_FLOAT, (Tiles(64, 32, 8, 2), Tiles(32, 16, 4, 2))),
    "gfx942": (Tiles(32, 32, 4, 1), Tiles(32, 16, 4, 1)),
    "interpreter": (Tiles(16, 16, 1, 1), Tiles(16, 16, 1, 1)),
}


@dataclass(frozen=True, slots=True)
class Chunks:
    """Uninitialized tensors that an op's `prepare` fills for `advance`; see the package."""

    tiles: Tiles
    precision: str
    blocks: int
    mix: Tensor
    solve: Tensor | None
    read: Tensor
    known: Tensor | None
    kept: Tensor
    total: Tensor


def choose_chunks(v: Tensor, width: int, places: StateLayout, *, delta: bool) -> Chunks | None:
    """Allocate the chunks for values v [T, h, V] and keys of `width`.

    Returns None if all sequences run row by row: they are short, or no tile fits this GPU.
    """
    (rows, heads), sequences = v.shape[:2], len(places.before)
    family = target_family()
    tensor_float = family in TENSOR_FLOAT
    # tf32 represents 16-bit rows exactly. float32 serves as a check of others: it runs row by row.
    fits = family in TILES and width <= WIDEST and not (tensor_float and v.dtype == torch.float32)
    if not fits or rows < sequences + SHORT_SEQUENCE:
        return None
    tiles = TILES[family][delta]
    blocks = rows // tiles.rows + sequences
    square = (blocks, heads, tiles.rows, tiles.rows)

    def room(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=v.device)

    return Chunks(
        tiles=tiles,
        precision="tf32" if tensor_float else "ieee",
        blocks=blocks,
        mix=room(*square),
        solve=room(*square) if delta else None,
        read=room(rows, heads),
        known=room(rows, heads) if delta else None,
        kept=room(rows, heads),
        total=room(blocks, heads),
    )


def advance_chunks(
    q: Tensor, k: Tensor, v: Tensor, chunks: Chunks, state: Tensor, places: StateLayout, out: Tensor
) -> None:
    """Advance the states of sequences of more than SHORT rows; write y to out [T, h, V].

    q and k [T, hk, K], v [T, h, V], rows may be strided; state [blocks, h, K, V] float32, any view.
    """
    heads, width = v.shape[1:]
    tiles = chunks.tiles
    advance_kernel[(len(places.before), heads, triton.cdiv(width, tiles.values))](
        q, k, v, chunks.mix, chunks.solve, chunks.read, chunks.known, chunks.kept, chunks.total,
        state, places.starts, places.before, places.saved, out,
        heads, heads // k.shape[1], k.shape[2], width,
        q.stride(0), k.stride(0), v.stride(0), *state.stride(),
        SHORT=SHORT_SEQUENCE,
        ROWS=tiles.rows,
        K=max(16, triton.next_power_of_2(k.shape[2])),
        V=tiles.values,
        DELTA=chunks.solve is not None,
        PRECISION=chunks.precision,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )  # fmt: skip


@triton.jit
def advance_kernel(
    q, k, v, mix, solve, read, known, kept, total,
    state, starts, before, saved, out,
    heads, share, keys, values,
    q_row, k_row, v_row, state_block, state_head, state_key, state_value,
    SHORT: tl.constexpr, ROWS: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    DELTA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Program (sequence, head, tile of values): compute that part of all rows and of the state."""
    s = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    first, rows, old, new = sequence_of(s, starts, before, saved)
    if rows <= SHORT:
        return
    i = tl.arange(0, K)
    j = tl.program_id(2) * V + tl.arange(0, V)
    local = tl.arange(0, ROWS)
    places = state + head * state_head + i[:, None] * state_key + j[None, :] * state_value
    mask = (i < keys)[:, None] & (j < values)[None, :]
    now = tl.zeros((K, V), tl.float32)
    if (old >= 0) & (new >= 0):
        now = tl.load(places + old * state_block, mask=mask, other=0.0)
    q += head // share * keys + i[None, :]
    k += head // share * keys + i[None, :]
    block = (first // ROWS + s) * heads + head
    square = local[:, None] * ROWS + local[None, :]
    for at in tl.range(0, rows, ROWS):
        live = at + local < rows
        t = first + at + local
        key_mask = live[:, None] & (i < keys)[None, :]
        value_mask = live[:, None] & (j < values)[None, :]
        query = tl.load(q + t[:, None] * q_row, mask=key_mask, other=0.0).to(tl.float32)
        key = tl.load(k + t[:, None] * k_row, mask=key_mask, other=0.0).to(tl.float32)
        taken = tl.load(
            v + t[:, None] * v_row + head * values + j[None, :], mask=value_mask, other=0.0
        ).to(tl.float32)
        if DELTA:
            there = tl.load(known + t * heads + head, mask=live, other=0.0)
            taken -= tl.dot(key, now, input_precision=PRECISION) * there[:, None]
            inverse = tl.load(solve + block * ROWS * ROWS + square)
            taken = tl.dot(inverse, taken, input_precision=PRECISION)
        given = tl.load(read + t * heads + head, mask=live, other=0.0)
        y = tl.dot(query, now, input_precision=PRECISION) * given[:, None]
        weights = tl.load(mix + block * ROWS * ROWS + square)
        y = tl.dot(weights, taken, y, input_precision=PRECISION)
        y = tl.where(new >= 0, y, 0.0).to(out.dtype.element_ty)
        tl.store(out + (t * heads + head)[:, None] * values + j[None, :], y, mask=value_mask)
        left = tl.load(kept + t * heads + head, mask=live, other=0.0)
        now *= tl.load(total + block)
        now = tl.dot(tl.trans(key), taken * left[:, None], now, input_precision=PRECISION)
        block += heads
    if new >= 0:
        tl.store(places + new * state_block, now, mask=mask)


@triton.jit
def sequence_of(s, starts, before, saved):
    """The first row and the row count of sequence s, and the blocks of its first and last state."""
    first = tl.load(starts + s)
    stop = tl.load(starts + s + 1)
    last = tl.load(saved + stop - 1, mask=stop > first, other=-1)
    return first, (stop - first).to(tl.int32), tl.load(before + s), last


@triton.jit
def decays(logs, ROWS: tl.constexpr):
    """The decay [t, r] of row r's update after row t, 0 if t < r; logs [ROWS]: log decays."""
    t = tl.arange(0, ROWS)[:, None]
    r = tl.arange(0, ROWS)[None, :]
    sums = tl.cumsum(logs, 0)
    return tl.exp(tl.where(t >= r, sums[:, None] - sums[None, :], float("-inf")))


@triton.jit
def softplus(x):
    """log(1 + e^x), accurate also if e^x is far below 1 (Kahan's log1p)."""
    power = tl.exp(tl.minimum(x, 20.0))
    sum = 1.0 + power
    small = tl.where(sum == 1.0, power, tl.log(sum) * power / tl.maximum(sum - 1.0, 1e-20))
    return tl.where(x > 20.0, x, small)
