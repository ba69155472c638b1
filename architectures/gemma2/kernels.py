"""Gemma's fused post norm, residual addition and next norm in Triton; each program computes a few
rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostro.ops import check_contiguous, dense_rows


def norm_add_norm(
    x: Tensor, residual: Tensor, after: Tensor, before: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """See `naive`. The weights are contiguous."""
    check_contiguous("norm_add_norm", after=after, before=before)
    x, residual = dense_rows(x), dense_rows(residual)
    n, d = x.shape
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(d)
    tile = max(1, 1024 // block)  # narrow rows share a program
    norm_add_norm_kernel[(triton.cdiv(n, tile),)](
        x,
        residual,
        after,
        before,
        y,
        total,
        n,
        d,
        eps,
        x.stride(0),
        residual.stride(0),
        ROWS=tile,
        BLOCK=block,
        num_warps=min(16, max(1, tile * block // 512)),
    )
    return y, total


@triton.jit(do_not_specialize=["n"])
def norm_add_norm_kernel(
    x,
    residual,
    after,
    before,
    y,
    total,
    n,
    d,
    eps,
    x_row,
    residual_row,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = column < d
    mask = (row < n) & inside
    value = tl.load(x + row * x_row + column, mask=mask, other=0.0).to(tl.float32)
    held = tl.load(residual + row * residual_row + column, mask=mask, other=0.0).to(tl.float32)
    first = tl.load(after + column, mask=inside, other=0.0).to(tl.float32)
    kind = y.dtype.element_ty
    # rounded to the output's dtype before the sum and after it, as separate norms would
    normed = (value * tl.rsqrt(tl.sum(value * value, axis=1) / d + eps)[:, None] * first).to(kind)
    joined = (normed.to(tl.float32) + held).to(kind)
    tl.store(total + row * d + column, joined, mask=mask)
    value = joined.to(tl.float32)
    second = tl.load(before + column, mask=inside, other=0.0).to(tl.float32)
    value *= tl.rsqrt(tl.sum(value * value, axis=1) / d + eps)[:, None]
    tl.store(y + row * d + column, (value * second).to(kind), mask=mask)
