"""The filters of a short convolution."""

from __future__ import annotations

import torch
from torch.nn import Module, Parameter


class Filters(Module):
    """One filter of `width` taps per channel, as checkpoints hold them: weight [c, 1, w], bias [c].

    `ops.causal_conv` takes them without the middle dimension.
    """

    def __init__(self, channels: int, width: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = Parameter(torch.zeros(channels, 1, width), requires_grad=False)
        self.bias = Parameter(torch.zeros(channels), requires_grad=False) if bias else None
