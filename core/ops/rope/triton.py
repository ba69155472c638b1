"""Rotary position embedding in Triton: a program rotates a tile of heads of one row of q or k."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostro.core.ops.rows import dense_rows


def rope(
    q: Tensor,
    k: Tensor,
    positions: Tensor,
    table: Tensor,
    interleaved: bool = False,
    sections: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """See the package."""
    q, k, table = dense_rows(q), dense_rows(k), dense_rows(table)
    rows, q_heads, d = q.shape
    k_heads = k.shape[1]
    rotated = table.shape[1]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    k_out = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    half = triton.next_power_of_2(rotated // 2)
    tile = min(max(1, 2048 // half), triton.next_power_of_2(max(q_heads, k_heads)))
    q_tiles = triton.cdiv(q_heads, tile)
    first, second, _ = (*(sections or (rotated, 0)), 0, 0)[:3]
    rope_kernel[(rows, q_tiles + triton.cdiv(k_heads, tile))](
        q,
        k,
        out,
        k_out,
        positions,
        table,
        q_heads,
        k_heads,
        q_tiles,
        rotated // 2,
        d - rotated,
        q.stride(0),
        q.stride(1),
        k.stride(0),
        k.stride(1),
        positions.stride(0),
        positions.stride(1),
        table.stride(0),
        first,
        first + second,
        INTERLEAVED=interleaved,
        SECTIONS=sections is not None,
        HEADS=tile,
        HALF=half,
        REST=triton.next_power_of_2(d - rotated) if d > rotated else 0,
    )
    return out, k_out


@triton.jit(do_not_specialize=["axis"])
def rope_kernel(
    q,
    k,
    q_out,
    k_out,
    positions,
    table,
    q_heads,
    k_heads,
    q_tiles,
    half,
    rest,
    q_row,
    q_head,
    k_row,
    k_head,
    axis,
    step,
    table_row,
    first,
    second,
    INTERLEAVED: tl.constexpr,
    SECTIONS: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    j = tl.arange(0, HALF)
    inside = j < half
    if SECTIONS:
        section = (j >= first).to(tl.int64) + (j >= second).to(tl.int64)
        position = tl.load(positions + section * axis + row * step, mask=inside, other=0)
    else:
        position = tl.load(positions + row * step) + tl.zeros((HALF,), tl.int64)
    cos = tl.load(table + position * table_row + j, mask=inside, other=0.0)
    sin = tl.load(table + position * table_row + half + j, mask=inside, other=0.0)
    if tile < q_tiles:
        head = tile * HEADS + tl.arange(0, HEADS)
        source = q + row * q_row + head.to(tl.int64)[:, None] * q_head
        target = q_out + (row * q_heads + head[:, None]) * (2 * half + rest)
        turn(source, target, cos, sin, head < q_heads, half, rest, INTERLEAVED, HALF, REST)
    else:
        head = (tile - q_tiles) * HEADS + tl.arange(0, HEADS)
        source = k + row * k_row + head.to(tl.int64)[:, None] * k_head
        target = k_out + (row * k_heads + head[:, None]) * (2 * half + rest)
        turn(source, target, cos, sin, head < k_heads, half, rest, INTERLEAVED, HALF, REST)


@triton.jit
def turn(
    source,
    target,
    cos,
    sin,
    valid,
    half,
    rest,
    INTERLEAVED: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
):
    """Rotate heads from source to target, pointers [HEADS, 1]; copy the dimensions from r on."""
    j = tl.arange(0, HALF)[None, :]
    mask = valid[:, None] & (j < half)
    low = 2 * j if INTERLEAVED else j
    high = 2 * j + 1 if INTERLEAVED else j + half
    a = tl.load(source + low, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(source + high, mask=mask, other=0.0).to(tl.float32)
    kind = target.dtype.element_ty
    tl.store(target + low, (a * cos[None, :] - b * sin[None, :]).to(kind), mask=mask)
    tl.store(target + high, (b * cos[None, :] + a * sin[None, :]).to(kind), mask=mask)
    if REST > 0:
        j = tl.arange(0, REST)[None, :]
        mask = valid[:, None] & (j < rest)
        value = tl.load(source + 2 * half + j, mask=mask, other=0.0)
        tl.store(target + 2 * half + j, value, mask=mask)
