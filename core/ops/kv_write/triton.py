"""Writing into pages in Triton: a program moves all heads of one row."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


def kv_write(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """See the package."""
    if not v.shape[2]:  # latent attention has no values of its own
        v, v_cache = k, k_cache
    rows, heads, k_dim = k.shape
    v_dim = v.shape[2]
    kv_write_kernel[(rows,)](
        k,
        v,
        k_cache,
        v_cache,
        slots,
        k_cache.shape[2],
        k_dim,
        v_dim,
        *k.stride(),
        *v.stride(),
        *k_cache.stride(),
        *v_cache.stride(),
        HEADS=triton.next_power_of_2(heads),
        N=heads,
        K_DIM=triton.next_power_of_2(k_dim),
        V_DIM=triton.next_power_of_2(v_dim),
    )


@triton.jit
def kv_write_kernel(
    k,
    v,
    k_cache,
    v_cache,
    slots,
    block,
    k_dim,
    v_dim,
    k_row,
    k_head,
    k_step,
    v_row,
    v_head,
    v_step,
    k_block,
    k_cache_head,
    k_place,
    k_cache_step,
    v_block,
    v_cache_head,
    v_place,
    v_cache_step,
    HEADS: tl.constexpr,
    N: tl.constexpr,
    K_DIM: tl.constexpr,
    V_DIM: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    if slot >= 0:
        page = slot // block
        place = slot % block
        k_from = k + row * k_row
        v_from = v + row * v_row
        k_to = k_cache + page * k_block + place * k_place
        v_to = v_cache + page * v_block + place * v_place
        copy(k_from, k_head, k_step, k_to, k_cache_head, k_cache_step, k_dim, HEADS, N, K_DIM)
        copy(v_from, v_head, v_step, v_to, v_cache_head, v_cache_step, v_dim, HEADS, N, V_DIM)


@triton.jit
def copy(
    source,
    source_head,
    source_step,
    target,
    target_head,
    target_step,
    d,
    HEADS: tl.constexpr,
    N: tl.constexpr,
    DIM: tl.constexpr,
):
    """Copy [N, d] from strided to strided, casting to the target's type."""
    head = tl.arange(0, HEADS)[:, None].to(tl.int64)
    i = tl.arange(0, DIM)[None, :]
    mask = (head < N) & (i < d)
    value = tl.load(source + head * source_head + i * source_step, mask=mask, other=0.0)
    value = value.to(tl.float32).to(target.dtype.element_ty)
    tl.store(target + head * target_head + i * target_step, value, mask=mask)
