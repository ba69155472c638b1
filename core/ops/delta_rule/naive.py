"""The gated delta rule in plain torch, row by row."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro.core.ops.state_layout import StateLayout


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    b: Tensor,
    a: Tensor,
    rate: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    places: StateLayout,
) -> Tensor:
    """See the package."""
    share = v.shape[1] // k.shape[1]
    q, k = (unit(each.float()).repeat_interleave(share, 1) for each in (q, k))
    q = q * q.shape[-1] ** -0.5
    decay = torch.exp(rate * F.softplus(a.float() + dt_bias))[..., None, None]
    beta = b.float().sigmoid()[..., None]
    out = torch.zeros(v.shape, dtype=v.dtype, device=v.device)
    starts = places.starts.tolist()
    ends = zip(places.before.tolist(), places.after.tolist(), strict=True)
    for s, (before, after) in enumerate(ends):
        if after < 0:
            continue
        now = state[before].clone() if before >= 0 else torch.zeros_like(state[after])
        for t in range(starts[s], starts[s + 1]):
            now = decay[t] * now
            delta = beta[t] * (v[t] - (now * k[t, :, :, None]).sum(1))
            now = now + k[t, :, :, None] * delta[:, None]
            out[t] = (now * q[t, :, :, None]).sum(1)
        state[after] = now
    return out


def unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)
