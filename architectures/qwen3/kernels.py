"""Qwen3's fused q/k norm, rope and K/V cache write in Triton.

Each program computes some heads of one row: the first programs of a row its query heads, the others
its key heads with the copy of their values. With 4 heads of 128 per warp, a decode step of the 8B
has 10 small programs per row.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostro.errors import Unsupported
from ostro.ops import check_contiguous, dense_rows


def norm_rope_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    eps: float,
    positions: Tensor,
    table: Tensor,
    pages: Any,
) -> Tensor:
    """See `naive`. The weights and the last dimensions of the caches are contiguous."""
    check_contiguous("norm_rope_write", q_weight=q_weight, k_weight=k_weight)
    q, k, v = map(dense_rows, (q, k, v))
    rows, q_heads, d = q.shape
    k_heads = k.shape[1]
    if table.shape[1] != d:
        raise Unsupported(f"norm_rope_write turns whole heads of {d}, not {table.shape[1]} of them")
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    half = triton.next_power_of_2(d // 2)
    # 256 pairs per program are 8 per thread of its single warp
    tile = min(max(1, 256 // half), triton.next_power_of_2(max(q_heads, k_heads)))
    q_tiles = triton.cdiv(q_heads, tile)
    norm_rope_write_kernel[(rows, q_tiles + triton.cdiv(k_heads, tile))](
        q,
        k,
        v,
        q_weight,
        k_weight,
        eps,
        positions,
        table,
        pages.batch.slots,
        out,
        pages.k,
        pages.v,
        q_heads,
        k_heads,
        q_tiles,
        d // 2,
        *q.stride()[:2],
        *k.stride()[:2],
        *v.stride()[:2],
        positions.stride(1),
        table.stride(0),
        pages.k.shape[2],
        *pages.k.stride()[:3],
        *pages.v.stride()[:3],
        HEADS=tile,
        HALF=half,
        num_warps=max(1, tile * half // 256),
    )
    return out


@triton.jit
def norm_rope_write_kernel(
    q,
    k,
    v,
    q_weight,
    k_weight,
    eps,
    positions,
    table,
    slots,
    out,
    k_cache,
    v_cache,
    q_heads,
    k_heads,
    q_tiles,
    half,
    q_row,
    q_head,
    k_row,
    k_head,
    v_row,
    v_head,
    step,
    table_row,
    block,
    k_block,
    k_cache_head,
    k_place,
    v_block,
    v_cache_head,
    v_place,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    angles = table + tl.load(positions + row * step) * table_row
    if tile < q_tiles:
        head = (tile * HEADS + tl.arange(0, HEADS)).to(tl.int64)[:, None]
        source = q + row * q_row + head * q_head
        target = out + (row * q_heads + head) * (2 * half)
        norm_rope(source, target, q_weight, eps, angles, head < q_heads, half, HALF)
    else:
        slot = tl.load(slots + row)
        if slot >= 0:  # other rows are not written
            head = ((tile - q_tiles) * HEADS + tl.arange(0, HEADS)).to(tl.int64)[:, None]
            page = slot // block
            place = slot % block
            source = k + row * k_row + head * k_head
            target = k_cache + page * k_block + place * k_place + head * k_cache_head
            norm_rope(source, target, k_weight, eps, angles, head < k_heads, half, HALF)
            source = v + row * v_row + head * v_head
            target = v_cache + page * v_block + place * v_place + head * v_cache_head
            move(source, target, head < k_heads, half, HALF)


@triton.jit
def norm_rope(source, target, weight, eps, angles, valid, half, HALF: tl.constexpr):
    """Norm and rotate heads from `source` to `target`, pointers [HEADS, 1]; both halves of a head
    are in registers.
    """
    j = tl.arange(0, HALF)[None, :]
    inside = j < half
    mask = valid & inside
    a = tl.load(source + j, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(source + half + j, mask=mask, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(a * a + b * b, axis=1) / (2 * half) + eps)[:, None]
    a = a * scale * tl.load(weight + j, mask=inside, other=0.0).to(tl.float32)
    b = b * scale * tl.load(weight + half + j, mask=inside, other=0.0).to(tl.float32)
    cos = tl.load(angles + j, mask=inside, other=0.0)
    sin = tl.load(angles + half + j, mask=inside, other=0.0)
    kind = target.dtype.element_ty
    tl.store(target + j, (a * cos - b * sin).to(kind), mask=mask)
    tl.store(target + half + j, (b * cos + a * sin).to(kind), mask=mask)


@triton.jit
def move(source, target, valid, half, HALF: tl.constexpr):
    """Copy heads from `source` to `target`, pointers [HEADS, 1], in the dtype of the target."""
    j = tl.arange(0, 2 * HALF)[None, :]
    mask = valid & (j < 2 * half)
    value = tl.load(source + j, mask=mask, other=0.0).to(tl.float32)
    tl.store(target + j, value.to(target.dtype.element_ty), mask=mask)
