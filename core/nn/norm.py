"""RMS norm and layer norm, fused with the residual addition before them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Buffer, Module, Parameter

from ostro.core.ops import Op, layer_norm, rms_norm


class RMSNorm(Module):
    """Root-mean-square norm over the last dimension (Zhang & Sennrich 2019); weight in float32.

    For checkpoints that store w - 1 (Gemma), the transform `Add` of the name pair adds the 1. With
    `weight=False` the weight is 1, and checkpoints do not store it.
    """

    def __init__(self, d: int, eps: float, *, weight: bool = True) -> None:
        super().__init__()
        ones = torch.ones(d, dtype=torch.float32)
        self.weight = Parameter(ones, False) if weight else Buffer(ones, persistent=False)
        self.eps = eps
        self.norm = Op(rms_norm.KERNELS)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x [..., d] -> (norm(x + residual), x + residual)."""
        y: tuple[Tensor, Tensor] = self.norm(x, self.weight, self.eps, residual)
        return y


class LayerNorm(Module):
    """Layer norm over the last dimension (Ba et al. 2016), with or without weight and bias, which
    are in float32.
    """

    def __init__(self, d: int, eps: float, *, weight: bool = True, bias: bool = True) -> None:
        super().__init__()
        ones, zeros = torch.ones(d, dtype=torch.float32), torch.zeros(d, dtype=torch.float32)
        self.weight = Parameter(ones, requires_grad=False) if weight else None
        self.bias = Parameter(zeros, requires_grad=False) if bias else None
        self.eps = eps
        self.norm = Op(layer_norm.KERNELS)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x [..., d] -> (norm(x + residual), x + residual)."""
        y: tuple[Tensor, Tensor] = self.norm(x, self.weight, self.bias, self.eps, residual)
        return y
