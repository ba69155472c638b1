"""The gated delta rule in Triton: a program takes some columns of one head's state through a
sequence.

It goes token by token, which is right for decoding; for long prompts a form in chunks, out of
matrix products, would be faster.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostro.core.ops.places import Places

ELEMENTS = 2048  # of a state, per program


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    b: Tensor,
    a: Tensor,
    rate: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    places: Places,
) -> Tensor:
    """See the package."""
    heads, dv = v.shape[1:]
    key_heads, dk = k.shape[1:]
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    wide = triton.next_power_of_2(dk)
    tile = min(max(1, ELEMENTS // wide), triton.next_power_of_2(dv))
    delta_rule_kernel[(len(places.before), heads, triton.cdiv(dv, tile))](
        q,
        k,
        v,
        b,
        a,
        rate,
        dt_bias,
        state,
        places.starts,
        places.before,
        places.after,
        out,
        dk**-0.5,
        heads,
        heads // key_heads,
        dk,
        dv,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        b.stride(0),
        a.stride(0),
        K=wide,
        V=tile,
    )
    return out


@triton.jit
def delta_rule_kernel(
    q,
    k,
    v,
    b,
    a,
    rate,
    dt_bias,
    state,
    starts,
    before,
    after,
    out,
    scale,
    heads,
    share,
    dk,
    dv,
    q_row,
    k_row,
    v_row,
    b_row,
    a_row,
    K: tl.constexpr,
    V: tl.constexpr,
):
    s = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    i = tl.arange(0, K)
    j = tl.program_id(2) * V + tl.arange(0, V)
    mask = (i < dk)[:, None] & (j < dv)[None, :]
    places = i[:, None].to(tl.int64) * dv + j[None, :]
    old = tl.load(before + s)
    new = tl.load(after + s)
    first = tl.load(starts + s)
    rows = (tl.load(starts + s + 1) - first).to(tl.int32)
    now = tl.zeros((K, V), tl.float32)
    if (old >= 0) & (new >= 0):
        now = tl.load(state + (old * heads + head) * dk * dv + places, mask=mask, other=0.0)
    speed = tl.load(rate + head)
    shift = tl.load(dt_bias + head)
    q_at = q + first * q_row + head // share * dk + i
    k_at = k + first * k_row + head // share * dk + i
    v_at = v + first * v_row + head * dv + j
    b_at = b + first * b_row + head
    a_at = a + first * a_row + head
    out_at = out + (first * heads + head) * dv + j
    for _ in range(rows):
        query = unit(tl.load(q_at, mask=i < dk, other=0.0).to(tl.float32)) * scale
        key = unit(tl.load(k_at, mask=i < dk, other=0.0).to(tl.float32))
        value = tl.load(v_at, mask=j < dv, other=0.0).to(tl.float32)
        step = softplus(tl.load(a_at).to(tl.float32) + shift)
        beta = 1.0 / (1.0 + tl.exp(-tl.load(b_at).to(tl.float32)))
        now = tl.exp(speed * step) * now
        delta = beta * (value - tl.sum(now * key[:, None], 0))
        now += key[:, None] * delta[None, :]
        y = tl.where(new >= 0, tl.sum(now * query[:, None], 0), 0.0)
        tl.store(out_at, y.to(out.dtype.element_ty), mask=j < dv)
        q_at += q_row
        k_at += k_row
        v_at += v_row
        b_at += b_row
        a_at += a_row
        out_at += heads * dv
    if new >= 0:
        tl.store(state + (new * heads + head) * dk * dv + places, now, mask=mask)


@triton.jit
def unit(x):
    return x * tl.rsqrt(tl.sum(x * x, 0) + 1e-6)


@triton.jit
def softplus(x):
    """log(1 + e^x), exact to the last digits also where e^x is far below 1 (Kahan's log1p)."""
    power = tl.exp(tl.minimum(x, 20.0))
    sum = 1.0 + power
    small = tl.where(sum == 1.0, power, tl.log(sum) * power / tl.maximum(sum - 1.0, 1e-20))
    return tl.where(x > 20.0, x, small)
