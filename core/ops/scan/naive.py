"""The scan of Mamba 2 in plain torch, row by row."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro.core.ops.state_layout import StateLayout, active_sequences


def scan(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor,
    dt_bias: Tensor,
    limit: tuple[float, float],
    state: Tensor,
    places: StateLayout,
) -> Tensor:
    """See the package."""
    heads = x.shape[1]
    step = F.softplus(dt.float() + dt_bias).clamp(*limit)
    b, c = (each.float().repeat_interleave(heads // each.shape[1], 1) for each in (b, c))
    out = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    saved = places.saved.tolist()
    for before, rows in active_sequences(places):
        now = state[before].clone() if before >= 0 else state.new_zeros(state.shape[1:])
        for t in rows:
            taken = (step[t, :, None] * x[t])[:, :, None] * b[t, :, None]
            now = torch.exp(step[t] * a)[:, None, None] * now + taken
            out[t] = (now * c[t, :, None]).sum(-1) + d[:, None] * x[t]
            if saved[t] >= 0:
                state[saved[t]] = now
    return out
