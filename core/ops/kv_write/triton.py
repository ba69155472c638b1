"""Write to KV cache pages in Triton: one program writes all heads of one row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostro.core.ops.kv_write.scaled import SCALED_LIMITS, Scaled, parts_of


def kv_write(
    k: Tensor, v: Tensor, k_cache: Tensor | Scaled, v_cache: Tensor | Scaled, slots: Tensor
) -> None:
    """See the package."""
    if not v.shape[2]:  # latent attention has no separate values: write the keys twice
        v, v_cache = k, k_cache
    rows, heads, k_dim = k.shape
    v_dim = v.shape[2]
    (k_elements, k_scales), (v_elements, v_scales) = parts_of(k_cache), parts_of(v_cache)
    dtype, scaled = k_elements.dtype, k_scales is not None
    if scaled:
        k_elements, v_elements = k_elements.view(torch.uint8), v_elements.view(torch.uint8)
    kv_write_kernel[(rows,)](
        k,
        v,
        k_elements,
        v_elements,
        k_scales,
        v_scales,
        slots,
        k_elements.shape[2],
        k_dim,
        v_dim,
        *k.stride(),
        *v.stride(),
        *k_elements.stride(),
        *v_elements.stride(),
        HEADS=triton.next_power_of_2(heads),
        N=heads,
        K_DIM=triton.next_power_of_2(k_dim),
        V_DIM=triton.next_power_of_2(v_dim),
        LIMIT=SCALED_LIMITS[dtype] if scaled else 0.0,
        FLOAT8=dtype == torch.float8_e4m3fn,
    )


@triton.jit
def kv_write_kernel(
    k,
    v,
    k_cache,
    v_cache,
    k_scales,
    v_scales,
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
    LIMIT: tl.constexpr,
    FLOAT8: tl.constexpr,
):
    """Write one row. LIMIT > 0: one-byte elements of at most LIMIT; scales [blocks, N, block]."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    if slot >= 0:
        page = slot // block
        place = slot % block
        head = tl.arange(0, HEADS).to(tl.int64)
        at = (page * N + head) * block + place
        keys = take(k + row * k_row, k_head, k_step, k_dim, HEADS, N, K_DIM)
        values = take(v + row * v_row, v_head, v_step, v_dim, HEADS, N, V_DIM)
        if LIMIT > 0:
            keys, scale = narrow(keys, LIMIT, FLOAT8)
            tl.store(k_scales + at, scale, head < N)
            values, scale = narrow(values, LIMIT, FLOAT8)
            tl.store(v_scales + at, scale, head < N)
        k_to = k_cache + page * k_block + place * k_place
        v_to = v_cache + page * v_block + place * v_place
        put(keys, k_to, k_cache_head, k_cache_step, k_dim, HEADS, N, K_DIM)
        put(values, v_to, v_cache_head, v_cache_step, v_dim, HEADS, N, V_DIM)


@triton.jit
def take(source, per_head, step, d, HEADS: tl.constexpr, N: tl.constexpr, DIM: tl.constexpr):
    """Load [N, d] of a row as [HEADS, DIM] float32, padded with 0."""
    head = tl.arange(0, HEADS)[:, None].to(tl.int64)
    i = tl.arange(0, DIM)[None, :]
    mask = (head < N) & (i < d)
    return tl.load(source + head * per_head + i * step, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def put(
    x, target, per_head, step, d, HEADS: tl.constexpr, N: tl.constexpr, DIM: tl.constexpr
):  # fmt: skip
    """Store [N, d] of x [HEADS, DIM], casting to the target's type."""
    head = tl.arange(0, HEADS)[:, None].to(tl.int64)
    i = tl.arange(0, DIM)[None, :]
    mask = (head < N) & (i < d)
    tl.store(target + head * per_head + i * step, x.to(target.dtype.element_ty), mask=mask)


@triton.jit
def narrow(x, LIMIT: tl.constexpr, FLOAT8: tl.constexpr):
    """Quantize x [HEADS, DIM]: the bytes of the elements, and the scale of each head."""
    # x * 0 is NaN for Inf and NaN, else 0. div_rn rounds as the other kernels do.
    scale = tl.div_rn(tl.max(tl.abs(x), 1), LIMIT) + tl.sum(x * 0.0, 1)
    real = scale > 0
    units = tl.div_rn(x, tl.where(real, scale, 1.0)[:, None] + tl.zeros_like(x))
    units = tl.where(real[:, None], units, 0.0)
    units = tl.minimum(tl.maximum(units, -LIMIT), LIMIT)
    if FLOAT8:
        units = to_float8(units)
    else:  # adding 1.5 * 2^23 rounds to an integer, in the low bits
        units = (units + 12582912.0).to(tl.uint32, bitcast=True)
    return (units & 0xFF).to(tl.uint8), scale


@triton.jit
def to_float8(x):
    """Round to the nearest float8_e4m3fn, as bits, |x| <= 448; not all targets have the type.

    Below 2^-6 it is subnormal, in steps of 2^-9.
    """
    size = tl.abs(x)
    bits = size.to(tl.uint32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - 960
    small = (size + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
    sign = (x.to(tl.uint32, bitcast=True) >> 24) & 0x80
    return tl.where(size < 0.015625, small, normal) | sign
