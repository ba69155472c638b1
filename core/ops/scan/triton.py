"""The scan of Mamba 2 in Triton.

Short sequences are computed row by row; each program updates some rows of one head's state over a
whole sequence. Long sequences are computed in chunks (Dao & Gu 2024, section 6), see
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
    places: StateLayout,
    *,
    deterministic: bool = False,
) -> Tensor:
    """See the package. Matrix products of a chunk use tf32, which represents 16-bit inputs exactly.

    `deterministic`: compute all sequences row by row, so that the bits of a row do not depend on
    how its prompt is split into steps.
    """
    check_contiguous("scan", a=a, d=d, dt_bias=dt_bias)
    x, dt, b, c = map(packed_rows, (x, dt, b, c))
    heads, p = x.shape[1:]
    groups, n = b.shape[1:]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    wide = triton.next_power_of_2(n)
    tile = min(max(1, ELEMENTS // wide), triton.next_power_of_2(p))
    chunks = None if deterministic else choose_chunks(x, n, places, delta=False)
    bounds = [float(bound) for bound in limit]
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
        places.saved,
        out,
        *bounds,
        heads,
        heads // groups,
        p,
        n,
        x.stride(0),
        dt.stride(0),
        b.stride(0),
        c.stride(0),
        len(x) if chunks is None else SHORT_SEQUENCE,
        P=tile,
        N=wide,
    )
    if chunks is not None:
        prepare(dt, a, b, c, d, dt_bias, bounds, places, chunks)
        advance_chunks(c, b, x, chunks, state.transpose(2, 3), places, out)
    return out


scan_deterministic = partial(scan, deterministic=True)


def prepare(
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor,
    dt_bias: Tensor,
    bounds: list[float],
    places: StateLayout,
    chunks: Chunks,
) -> None:
    """Fill the tensors of `chunks`, except those of delta rules only."""
    heads, (groups, n) = dt.shape[1], b.shape[1:]
    prepare_kernel[(chunks.blocks, heads)](
        dt, a, b, c, d, dt_bias, places.starts,
        chunks.mix, chunks.read, chunks.kept, chunks.total,
        *bounds, len(places.before), heads, heads // groups, n,
        dt.stride(0), b.stride(0), c.stride(0),
        SHORT=SHORT_SEQUENCE,
        ROWS=chunks.tiles.rows,
        N=max(16, triton.next_power_of_2(n)),
        PRECISION=chunks.precision,
        num_warps=chunks.tiles.warps,
    )  # fmt: skip


# most_rows changes between steps: specialised values would recompile the kernel
@triton.jit(do_not_specialize=["most_rows"])
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
    saved,
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
    most_rows,
    P: tl.constexpr,
    N: tl.constexpr,
):
    s = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    i = tl.program_id(2) * P + tl.arange(0, P)
    j = tl.arange(0, N)
    mask = (i < p)[:, None] & (j < n)[None, :]
    places = i[:, None].to(tl.int64) * n + j[None, :]
    first, rows, old, new = sequence_of(s, starts, before, saved)
    if rows > most_rows:  # computed in chunks
        return
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
    saved_at = saved + first
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
        block = tl.load(saved_at)
        if block >= 0:
            tl.store(state + (block * heads + head) * p * n + places, now, mask=mask)
        x_at += x_row
        dt_at += dt_row
        b_at += b_row
        c_at += c_row
        out_at += heads * p
        saved_at += 1


# the number of sequences changes between steps
@triton.jit(do_not_specialize=["sequences"])
def prepare_kernel(
    dt, a, b, c, d, dt_bias, starts, mix, read, kept, total,
    least, most, sequences, heads, share, n, dt_row, b_row, c_row,
    SHORT: tl.constexpr, ROWS: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr,
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
    step = tl.load(dt + t * dt_row + head, mask=live, other=0.0).to(tl.float32)
    step = softplus(step + tl.load(dt_bias + head))
    # rows after the end of the sequence have step 0: they neither decay nor change the state
    step = tl.where(live, tl.minimum(tl.maximum(step, least), most), 0.0)
    logs = step * tl.load(a + head)
    between = decays(logs, ROWS)
    since, all = tl.cumsum(logs, 0), tl.sum(logs, 0)
    tl.store(read + t * heads + head, tl.exp(since), mask=live)
    tl.store(kept + t * heads + head, tl.exp(all - since) * step, mask=live)
    tl.store(total + block.to(tl.int64) * heads + head, tl.exp(all))

    j = tl.arange(0, N)
    inside = live[:, None] & (j < n)[None, :]
    group = head // share * n + j[None, :]
    taken = tl.load(b + t[:, None] * b_row + group, mask=inside, other=0.0).to(tl.float32)
    given = tl.load(c + t[:, None] * c_row + group, mask=inside, other=0.0).to(tl.float32)
    scores = tl.dot(given, tl.trans(taken), input_precision=PRECISION)
    skip = tl.where(local[:, None] == local[None, :], tl.load(d + head), 0.0)
    square = local[:, None] * ROWS + local[None, :]
    weights = scores * between * step[None, :] + skip
    tl.store(mix + (block.to(tl.int64) * heads + head) * ROWS * ROWS + square, weights)
