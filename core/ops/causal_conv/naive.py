"""Short causal convolution in plain torch, one sequence after the other."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro.core.ops.state_layout import StateLayout


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
    out = torch.empty_like(x)
    starts = places.starts.tolist()
    ends = zip(places.before.tolist(), places.after.tolist(), strict=True)
    for s, (before, after) in enumerate(ends):
        rows = x[starts[s] : starts[s + 1]].float()
        if after < 0:
            out[starts[s] : starts[s + 1]] = 0
            continue
        past = state[before] if before >= 0 else state.new_zeros(channels, width - 1)
        padded = torch.cat((past, rows.T), 1)
        y = F.conv1d(padded[None], weight[:, None], bias, groups=channels)[0].T
        out[starts[s] : starts[s + 1]] = F.silu(y) if act == "silu" else y
        state[after] = padded[:, padded.shape[1] - (width - 1) :]
    return out
