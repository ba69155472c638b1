"""The gated activation on CPU: in row blocks that stay in the cache.

bf16, two cores, [512, 2 * 3072], silu: 0.84 ms; in one piece 1.32 ms.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ostro.core.ops.act_mul.naive import act_mul as naive

ROWS = 64


def act_mul(x: Tensor, act: str) -> Tensor:
    """See the package. Raises ConfigError on an unknown activation."""
    rows = x.view(-1, x.shape[-1])
    if len(rows) <= ROWS:
        return naive(x, act)
    out = torch.empty(len(rows), x.shape[-1] // 2, dtype=x.dtype)
    for start in range(0, len(rows), ROWS):
        out[start : start + ROWS] = naive(rows[start : start + ROWS], act)
    return out.view(*x.shape[:-1], -1)
