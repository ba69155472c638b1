"""The scan of Mamba 2 in Triton: a program takes some rows of one head's state through a sequence.

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


def scan(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor,
    dt_bias: Tensor,
    limit: tuple[float, float],
    state: Tensor,
    places: Places,
) -> Tensor:
    """See the package."""
    heads, p = x.shape[1:]
    groups, n = b.shape[1:]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    wide = triton.next_power_of_2(n)
    tile = min(max(1, ELEMENTS // wide), triton.next_power_of_2(p))
    scan_kernel[(len(places.before), heads, triton.cdiv(p, tile))](
        x,
        dt,
        a,
        b,
        c,
        d,
        dt_bias,
        state,
        places.starts,
        places.before,
        places.after,
        out,
        *(float(bound) for bound in limit),
        heads,
        heads // groups,
        p,
        n,
        x.stride(0),
        dt.stride(0),
        b.stride(0),
        c.stride(0),
        P=tile,
        N=wide,
    )
    return out


@triton.jit
def scan_kernel(
    x,
    dt,
    a,
    b,
    c,
    d,
    dt_bias,
    state,
    starts,
    before,
    after,
    out,
    least,
    most,
    heads,
    share,
    p,
    n,
    x_row,
    dt_row,
    b_row,
    c_row,
    P: tl.constexpr,
    N: tl.constexpr,
):
    s = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    i = tl.program_id(2) * P + tl.arange(0, P)
    j = tl.arange(0, N)
    mask = (i < p)[:, None] & (j < n)[None, :]
    places = i[:, None].to(tl.int64) * n + j[None, :]
    old = tl.load(before + s)
    new = tl.load(after + s)
    first = tl.load(starts + s)
    rows = (tl.load(starts + s + 1) - first).to(tl.int32)
    now = tl.zeros((P, N), tl.float32)
    if (old >= 0) & (new >= 0):
        now = tl.load(state + (old * heads + head) * p * n + places, mask=mask, other=0.0)
    decay = tl.load(a + head)
    skip = tl.load(d + head)
    shift = tl.load(dt_bias + head)
    x_at = x + first * x_row + head * p + i
    dt_at = dt + first * dt_row + head
    b_at = b + first * b_row + head // share * n + j
    c_at = c + first * c_row + head // share * n + j
    out_at = out + (first * heads + head) * p + i
    for _ in range(rows):
        value = tl.load(x_at, mask=i < p, other=0.0).to(tl.float32)
        step = softplus(tl.load(dt_at).to(tl.float32) + shift)
        step = tl.minimum(tl.maximum(step, least), most)
        taken = tl.load(b_at, mask=j < n, other=0.0).to(tl.float32)
        given = tl.load(c_at, mask=j < n, other=0.0).to(tl.float32)
        now = tl.exp(step * decay) * now + (step * value)[:, None] * taken[None, :]
        y = tl.sum(now * given[None, :], 1) + skip * value
        y = tl.where(new >= 0, y, 0.0)
        tl.store(out_at, y.to(out.dtype.element_ty), mask=i < p)
        x_at += x_row
        dt_at += dt_row
        b_at += b_row
        c_at += c_row
        out_at += heads * p
    if new >= 0:
        tl.store(state + (new * heads + head) * p * n + places, now, mask=mask)


@triton.jit
def softplus(x):
    """log(1 + e^x), exact to the last digits also where e^x is far below 1 (Kahan's log1p)."""
    power = tl.exp(tl.minimum(x, 20.0))
    sum = 1.0 + power
    small = tl.where(sum == 1.0, power, tl.log(sum) * power / tl.maximum(sum - 1.0, 1e-20))
    return tl.where(x > 20.0, x, small)
