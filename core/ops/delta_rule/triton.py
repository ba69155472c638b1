"""The gated delta rule in Triton.

Short sequences are computed row by row; each program updates some columns of one head's state over
a whole sequence. Long sequences are computed in chunks (Yang et al. 2024, section 3.3), see
`ops.chunked_scan`.
"""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostro.core.ops.attention.triton import locate_sequence
from ostro.core.ops.chunked_scan.triton import (
    SHORT_SEQUENCE,
    Chunks,
    advance_chunks,
    choose_chunks,
    decays,
    sequence_of,
    softplus,
)
from ostro.core.ops.rows import check_contiguous, packed_rows
from ostro.core.ops.state_layout import StateLayout

ELEMENTS = 2048  # state elements per program of the row-by-row kernel


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    b: Tensor,
    a: Tensor,
    rate: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    places: StateLayout,
    *,
    deterministic: bool = False,
) -> Tensor:
    """See the package. Matrix products of a chunk use tf32, which represents 16-bit inputs exactly.

    `deterministic`: compute all sequences row by row, so that the bits of a row do not depend on
    how its prompt is split into steps.
    """
    check_contiguous("delta_rule", rate=rate, dt_bias=dt_bias)
    q, k, v, b, a = map(packed_rows, (q, k, v, b, a))
    heads, dv = v.shape[1:]
    key_heads, dk = k.shape[1:]
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    wide = triton.next_power_of_2(dk)
    tile = min(max(1, ELEMENTS // wide), triton.next_power_of_2(dv))
    chunks = None if deterministic else choose_chunks(v, dk, places, delta=True)
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
        places.saved,
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
        len(v) if chunks is None else SHORT_SEQUENCE,
        K=wide,
        V=tile,
    )
    if chunks is not None:
        prepare(q, k, b, a, rate, dt_bias, places, chunks)
        advance_chunks(q, k, v, chunks, state, places, out)
    return out


delta_rule_deterministic = partial(delta_rule, deterministic=True)


def prepare(
    q: Tensor,
    k: Tensor,
    b: Tensor,
    a: Tensor,
    rate: Tensor,
    dt_bias: Tensor,
    places: StateLayout,
    chunks: Chunks,
) -> None:
    """Fill the tensors of `chunks`."""
    heads, (key_heads, dk) = a.shape[1], k.shape[1:]
    prepare_kernel[(chunks.blocks, heads)](
        q, k, b, a, rate, dt_bias, places.starts,
        chunks.mix, chunks.solve, chunks.read, chunks.known, chunks.kept, chunks.total,
        dk**-0.5, len(places.before), heads, heads // key_heads, dk,
        q.stride(0), k.stride(0), b.stride(0), a.stride(0),
        SHORT=SHORT_SEQUENCE,
        ROWS=chunks.tiles.rows,
        K=max(16, triton.next_power_of_2(dk)),
        PRECISION=chunks.precision,
        num_warps=chunks.tiles.warps,
    )  # fmt: skip


# most_rows changes between steps: specialised values would recompile the kernel
@triton.jit(do_not_specialize=["most_rows"])
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
    saved,
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
    most_rows,
    K: tl.constexpr,
    V: tl.constexpr,
):
    s = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    i = tl.arange(0, K)
    j = tl.program_id(2) * V + tl.arange(0, V)
    mask = (i < dk)[:, None] & (j < dv)[None, :]
    places = i[:, None].to(tl.int64) * dv + j[None, :]
    first, rows, old, new = sequence_of(s, starts, before, saved)
    if rows > most_rows:  # computed in chunks
        return
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
    saved_at = saved + first
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
        block = tl.load(saved_at)
        if block >= 0:
            tl.store(state + (block * heads + head) * dk * dv + places, now, mask=mask)
        q_at += q_row
        k_at += k_row
        v_at += v_row
        b_at += b_row
        a_at += a_row
        out_at += heads * dv
        saved_at += 1


@triton.jit
def unit(x):
    return x * tl.rsqrt(tl.sum(x * x, 0) + 1e-6)


# the number of sequences changes between steps
@triton.jit(do_not_specialize=["sequences"])
def prepare_kernel(
    q, k, b, a, rate, dt_bias, starts, mix, solve, read, known, kept, total,
    scale, sequences, heads, share, dk, q_row, k_row, b_row, a_row,
    SHORT: tl.constexpr, ROWS: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Program (block, head): the decays and mixing weights among the rows of one chunk."""
    block = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    _, start, first, rows = locate_sequence(starts, block, sequences, ROWS, False)
    if (first >= rows) | (rows <= SHORT):
        return
    local = tl.arange(0, ROWS)
    live = first + local < rows
    t = start + first + local
    step = tl.load(a + t * a_row + head, mask=live, other=0.0).to(tl.float32)
    step = softplus(step + tl.load(dt_bias + head))
    logs = tl.where(live, step, 0.0) * tl.load(rate + head)
    beta = tl.load(b + t * b_row + head, mask=live, other=0.0).to(tl.float32)
    beta = 1.0 / (1.0 + tl.exp(-beta))
    between = decays(logs, ROWS)

    i = tl.arange(0, K)
    inside = live[:, None] & (i < dk)[None, :]
    part = head // share * dk + i[None, :]
    query = tl.load(q + t[:, None] * q_row + part, mask=inside, other=0.0).to(tl.float32)
    key = tl.load(k + t[:, None] * k_row + part, mask=inside, other=0.0).to(tl.float32)
    q_scale = tl.rsqrt(tl.sum(query * query, 1) + 1e-6) * scale
    k_scale = tl.rsqrt(tl.sum(key * key, 1) + 1e-6)
    other = between * k_scale[None, :]
    square = (block.to(tl.int64) * heads + head) * ROWS * ROWS
    square += local[:, None] * ROWS + local[None, :]
    weights = tl.dot(query, tl.trans(key), input_precision=PRECISION) * q_scale[:, None] * other
    tl.store(mix + square, weights)
    weights = tl.dot(key, tl.trans(key), input_precision=PRECISION) * (beta * k_scale)[:, None]
    weights = tl.where(local[:, None] > local[None, :], weights * other, 0.0)
    tl.store(solve + square, inverse(weights, ROWS, PRECISION) * beta[None, :])

    since, all = tl.cumsum(logs, 0), tl.sum(logs, 0)
    tl.store(read + t * heads + head, tl.exp(since) * q_scale, mask=live)
    tl.store(known + t * heads + head, tl.exp(since) * k_scale, mask=live)
    tl.store(kept + t * heads + head, tl.exp(all - since) * k_scale, mask=live)
    tl.store(total + block.to(tl.int64) * heads + head, tl.exp(all))


@triton.jit
def inverse(lower, ROWS: tl.constexpr, PRECISION: tl.constexpr):
    """Compute (1 + lower)^-1 of a strictly lower triangular matrix [ROWS, ROWS].

    Inverted diagonal blocks are merged in pairs: the corner of the merged inverse is
    -(lower inverse) corner (upper inverse). Unlike a power series, intermediate values stay small.
    """
    # the products accumulate rounding errors, for which a single tf32 product is too coarse
    EXACT: tl.constexpr = "ieee" if PRECISION == "ieee" else "tf32x3"
    t = tl.arange(0, ROWS)[:, None]
    r = tl.arange(0, ROWS)[None, :]
    found = tl.where(t == r, 1.0, 0.0) - tl.where(t // 2 == r // 2, lower, 0.0)
    size = 2
    while size < ROWS:
        corners = tl.where(
            (t // size != r // size) & (t // size // 2 == r // size // 2), lower, 0.0
        )
        found -= tl.dot(found, tl.dot(corners, found, input_precision=EXACT), input_precision=EXACT)
        size *= 2
    return found
