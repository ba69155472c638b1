"""Layer norm in plain torch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def layer_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    residual: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See the package."""
    if residual is not None:
        x = x + residual
    scale, shift = (None if w is None else w.float() for w in (weight, bias))
    return F.layer_norm(x.float(), x.shape[-1:], scale, shift, eps).to(x.dtype), x
