"""Weights of a short depthwise convolution."""

from __future__ import annotations

import torch
from torch.nn import Module, Parameter


class Filters(Module):
    """One filter of `width` taps per channel: weight [c, 1, w] as in checkpoints, bias [c].

    `ops.causal_conv` expects the weight without the middle dimension.
    """

    def __init__(self, channels: int, width: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = Parameter(torch.zeros(channels, 1, width), requires_grad=False)
        self.bias = Parameter(torch.zeros(channels), requires_grad=False) if bias else None
