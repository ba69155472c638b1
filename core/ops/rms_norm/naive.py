"""Root-mean-square norm in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """See the package."""
    if residual is not None:
        x = x + residual
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(x.dtype), x
