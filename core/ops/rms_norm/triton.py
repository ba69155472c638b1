"""Root-mean-square norm in Triton: each program normalizes a few whole rows in registers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostro.core.ops.rows import check_contiguous, dense_rows


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """See the package. More than two leading dimensions must flatten to two without a copy."""
    check_contiguous("rms_norm", weight=weight)
    d = x.shape[-1]
    rows = fold(x)
    outer, inner = rows.shape[:2]
    added = rows if residual is None else fold(residual)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = x if residual is None else torch.empty_like(y)
    block = triton.next_power_of_2(d)
    tile = max(1, 1024 // block)
    grid = (triton.cdiv(outer * inner, tile),)
    rms_norm_kernel[grid](
        rows,
        added,
        weight,
        y,
        total,
        outer * inner,
        inner,
        d,
        eps,
        rows.stride(0),
        rows.stride(1),
        added.stride(0),
        added.stride(1),
        ADD=residual is not None,
        ROWS=tile,
        BLOCK=block,
        num_warps=min(16, max(1, tile * block // 512)),
    )
    return y, total


def fold(x: Tensor) -> Tensor:
    """View x [..., d] as [outer, inner, d], whose last dimension is contiguous."""
    x = dense_rows(x)
    if x.dim() == 3:
        return x
    return x.reshape(-1, 1, x.shape[-1]) if x.dim() < 3 else x.flatten(0, -3)


@triton.jit(do_not_specialize=["n"])
def rms_norm_kernel(
    x,
    residual,
    weight,
    y,
    total,
    n,
    inner,
    d,
    eps,
    x_outer,
    x_inner,
    residual_outer,
    residual_inner,
    ADD: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)[None, :]
    mask = (row < n)[:, None] & (column < d)
    i = (row // inner)[:, None]
    j = (row % inner)[:, None]
    value = tl.load(x + i * x_outer + j * x_inner + column, mask=mask, other=0.0).to(tl.float32)
    out = row[:, None] * d + column
    if ADD:
        place = i * residual_outer + j * residual_inner + column
        value += tl.load(residual + place, mask=mask, other=0.0).to(tl.float32)
        rounded = value.to(total.dtype.element_ty)
        tl.store(total + out, rounded, mask=mask)
        value = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, axis=1) / d + eps)
    w = tl.load(weight + column, mask=column < d, other=0.0).to(tl.float32)
    tl.store(y + out, (value * scale[:, None] * w).to(y.dtype.element_ty), mask=mask)
