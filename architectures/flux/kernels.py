"""FLUX's adaptive layer norm in Triton; each program computes one row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ostro.ops import dense_rows


def modulate(x: Tensor, shift: Tensor, scale: Tensor, eps: float) -> Tensor:
    """See `naive`."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    launch(x, x, shift, shift, scale, out, out, eps, gated=False, normed=True)
    return out


def gate_add(x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    """See `naive`."""
    total = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    launch(x, y, gate, gate, gate, total, total, 0.0, gated=True, normed=False)
    return total


def gate_modulate(
    x: Tensor, y: Tensor, gate: Tensor, shift: Tensor, scale: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """See `naive`."""
    out, total = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    launch(x, y, gate, shift, scale, out, total, eps, gated=True, normed=True)
    return out, total


def launch(
    x: Tensor,
    y: Tensor,
    gate: Tensor,
    shift: Tensor,
    scale: Tensor,
    out: Tensor,
    total: Tensor,
    eps: float,
    *,
    gated: bool,
    normed: bool,
) -> None:
    """Run one program per row of x. `gated` adds gate * y to x, `normed` norms and modulates.

    Arguments of a disabled step are placeholders: the kernel neither reads nor writes them.
    """
    x, y = x.contiguous(), y.contiguous()
    gate, shift, scale = map(dense_rows, (gate, shift, scale))
    rows, d = x.shape
    block = triton.next_power_of_2(d)
    adaptive_kernel[(rows,)](
        x,
        y,
        gate,
        shift,
        scale,
        out,
        total,
        rows // len(gate),
        d,
        gate.stride(0),
        shift.stride(0),
        scale.stride(0),
        eps,
        torch.finfo(x.dtype).max,
        GATED=gated,
        NORMED=normed,
        BLOCK=block,
        num_warps=min(16, max(1, block // 512)),
    )


@triton.jit(do_not_specialize=["each"])
def adaptive_kernel(
    x,
    y,
    gate,
    shift,
    scale,
    out,
    total,
    each,
    d,
    gate_image,
    shift_image,
    scale_image,
    eps,
    limit,
    GATED: tl.constexpr,
    NORMED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)  # row * d may exceed int32
    image = row // each
    column = tl.arange(0, BLOCK)
    inside = column < d
    kind = out.dtype.element_ty
    value = tl.load(x + row * d + column, mask=inside, other=0.0).to(tl.float32)
    if GATED:
        added = tl.load(y + row * d + column, mask=inside, other=0.0).to(tl.float32)
        share = tl.load(gate + image * gate_image + column, mask=inside, other=0.0).to(tl.float32)
        value = tl.minimum(tl.maximum(value + share * added, -limit), limit).to(kind)
        tl.store(total + row * d + column, value, mask=inside)
        # the norm's input is the rounded sum, as in `naive`
        value = value.to(tl.float32)
    if NORMED:
        centred = tl.where(inside, value - tl.sum(value, axis=0) / d, 0.0)
        normed = centred * tl.rsqrt(tl.sum(centred * centred, axis=0) / d + eps)
        factor = tl.load(scale + image * scale_image + column, mask=inside, other=0.0)
        offset = tl.load(shift + image * shift_image + column, mask=inside, other=0.0)
        value = normed * (1.0 + factor.to(tl.float32)) + offset.to(tl.float32)
        tl.store(out + row * d + column, value.to(kind), mask=inside)
