"""Layer norm in Triton: each program normalizes a few whole rows in registers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostro.core.ops.rms_norm.triton import fold
from ostro.core.ops.rows import check_contiguous


def layer_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    residual: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See the package. More than two leading dimensions must flatten to two without a copy."""
    check_contiguous("layer_norm", weight=weight, bias=bias)
    d = x.shape[-1]
    rows = fold(x)
    outer, inner = rows.shape[:2]
    added = rows if residual is None else fold(residual)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = x if residual is None else torch.empty_like(y)
    block = triton.next_power_of_2(d)
    tile = max(1, 1024 // block)
    grid = (triton.cdiv(outer * inner, tile),)
    layer_norm_kernel[grid](
        rows,
        added,
        rows if weight is None else weight,
        rows if bias is None else bias,
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
        WEIGHT=weight is not None,
        BIAS=bias is not None,
        ROWS=tile,
        BLOCK=block,
        num_warps=min(16, max(1, tile * block // 512)),
    )
    return y, total


@triton.jit(do_not_specialize=["n"])
def layer_norm_kernel(
    x,
    residual,
    weight,
    bias,
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
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
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
    mean = tl.sum(value, axis=1) / d
    value = tl.where(mask, value - mean[:, None], 0.0)
    normed = value * tl.rsqrt(tl.sum(value * value, axis=1) / d + eps)[:, None]
    if WEIGHT:
        normed *= tl.load(weight + column, mask=column < d, other=0.0).to(tl.float32)
    if BIAS:
        normed += tl.load(bias + column, mask=column < d, other=0.0).to(tl.float32)
    tl.store(y + out, normed.to(y.dtype.element_ty), mask=mask)
