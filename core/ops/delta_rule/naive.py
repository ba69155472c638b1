"""The gated delta rule in plain torch, row by row."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro.core.ops.state_layout import StateLayout, active_sequences


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
    saved = places.saved.tolist()
    for before, rows in active_sequences(places):
        now = state[before].clone() if before >= 0 else state.new_zeros(state.shape[1:])
        for t in rows:
            now = decay[t] * now
            delta = beta[t] * (v[t] - (now * k[t, :, :, None]).sum(1))
            now = now + k[t, :, :, None] * delta[:, None]
            out[t] = (now * q[t, :, :, None]).sum(1)
            if saved[t] >= 0:
                state[saved[t]] = now
    return out


def unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)
