"""Short causal convolution in plain torch, one sequence after the other."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro.core.ops.state_layout import StateLayout, active_sequences


def causal_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor,
    places: StateLayout,
    act: str = "",
) -> Tensor:
    """See the package."""
    channels, width = weight.shape
    out = torch.zeros_like(x)
    saved = places.saved.tolist()
    for before, rows in active_sequences(places):
        span = slice(rows.start, rows.stop)
        past = state[before] if before >= 0 else state.new_zeros(channels, width - 1)
        padded = torch.cat((past, x[span].float().T), 1)
        y = F.conv1d(padded[None], weight[:, None], bias, groups=channels)[0].T
        out[span] = F.silu(y) if act == "silu" else y
        for i, t in enumerate(rows, 1):
            if saved[t] >= 0:
                state[saved[t]] = padded[:, i : i + width - 1]
    return out
