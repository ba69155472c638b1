"""Gemma's fused post norm, residual addition and next norm in plain torch, and its kernels.

    norm_add_norm(x, residual, after, before, eps) -> (y, residual)

x, residual [T, d]; after, before [d] float32 (1 + w if the checkpoint stores w). x is the output of
attention or MLP. It is normed with weights `after` and added to the residual. The sum, rounded to
x's dtype, is the new residual; y is the sum normed with weights `before`, the input of the next MLP
or attention. Norms are computed in float32 (`ops.rms_norm`).
"""

from __future__ import annotations

from torch import Tensor

from ostro import Kernel
from ostro.ops import naive_rms_norm as rms_norm

KERNELS = (
    Kernel(
        name="triton",
        call=f"{__package__}.kernels:norm_add_norm",
        devices=("cuda",),
        deterministic=True,
    ),
    Kernel(name="naive", call=f"{__name__}:norm_add_norm", deterministic=True),
)


def norm_add_norm(
    x: Tensor, residual: Tensor, after: Tensor, before: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    normed, _ = rms_norm(x, after, eps)
    return rms_norm(normed, before, eps, residual)
