"""Qwen3's way from q, k, v to attention on CPU: q and k as one row of heads, in row blocks.

bf16, two cores, microseconds for 1 and 512 rows of 16 + 8 heads of 128: 125 and 1670; the plain
composition takes 153 and 2370.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro.core.ops.kv_write.cpu import kv_write

ROWS = 64  # in float32, 64 rows of 24 heads of 128 are 0.8 MB
FEW = 16


def norm_rope_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    eps: float,
    positions: Tensor,
    table: Tensor,
    pages: Any,
) -> Tensor:
    """See `naive`."""
    h, d = q.shape[1:]
    cos, sin = table[positions[0]].chunk(2, -1)
    cos, sin = torch.cat((cos, cos), -1)[:, None], torch.cat((-sin, sin), -1)[:, None]
    weight = torch.cat((q_weight.expand(h, d), k_weight.expand(k.shape[1], d)))
    if len(q) <= ROWS:
        out = turn(torch.cat((q, k), 1), weight, eps, cos, sin).to(q.dtype)
    else:
        out = torch.empty(len(q), len(weight), d, dtype=q.dtype)
        for start in range(0, len(q), ROWS):
            rows = slice(start, start + ROWS)
            out[rows] = turn(torch.cat((q[rows], k[rows]), 1), weight, eps, cos[rows], sin[rows])
    kv_write(out[:, h:], v, pages.k, pages.v, pages.batch.slots)
    return out[:, :h]


def turn(x: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor) -> Tensor:
    """Norm and rotate heads x [T, h + kv, d] in float32; cos and signed sin [T, 1, d]."""
    d = x.shape[-1]
    x = x.float()
    if len(x) <= FEW:  # as in ops.rms_norm.cpu: the layer norm of (x, -x)
        x = F.layer_norm(torch.cat((x, -x), -1), (2 * d,), eps=eps)[..., :d] * weight
    else:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        x.mul_(length.square_().mul_(1 / d).add_(eps).rsqrt_()).mul_(weight)
    return (x * cos).addcmul_(x.roll(d // 2, -1), sin)
