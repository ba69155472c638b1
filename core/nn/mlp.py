"""Feed-forward blocks."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module

from ostro.core.errors import ConfigError
from ostro.core.nn.linear import Linear
from ostro.core.ops import Op, act_mul
from ostro.core.step import Step

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
"""Names of activations in configs, and in `ops.act_mul`."""


def activation(name: str) -> str:
    """The name in `ops.act_mul` of a config's hidden_act. Raises ConfigError if unknown."""
    if name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ConfigError(f"hidden_act={name!r} is not supported; expected one of {known}")
    return ACTIVATIONS[name]


class GatedMLP(Module):
    """down(act(gate(x)) * up(x)), gate and up fused (Shazeer 2020)."""

    def __init__(self, d: int, hidden: int, act: str, *, bias: bool = False) -> None:
        super().__init__()
        self.gate_up = Linear(d, {"gate_proj": hidden, "up_proj": hidden}, bias=bias)
        self.down_proj = Linear(hidden, d, bias=bias, shard="rowwise")
        self.act = activation(act)
        self.act_mul = Op(act_mul.KERNELS)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        return self.down_proj(self.act_mul(self.gate_up(x, step), self.act), step)


class MLP(Module):
    """fc2(gelu(fc1(x))), with biases."""

    def __init__(self, d: int, hidden: int, *, approximate: str = "none") -> None:
        super().__init__()
        self.fc1 = Linear(d, hidden, bias=True)
        self.fc2 = Linear(hidden, d, bias=True, shard="rowwise")
        self.approximate = approximate

    def forward(self, x: Tensor, step: Step) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x, step), approximate=self.approximate), step)
