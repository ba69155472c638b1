"""Feed-forward blocks."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module

from ostro.core.errors import ConfigError
from ostro.core.nn.linear import Linear
from ostro.core.ops import Op, act_mul
from ostro.core.ops.act_mul.naive import ACTS
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


UNGATED: dict[str, Callable[[Tensor], Tensor]] = ACTS | {
    "relu2": lambda x: F.relu(x).square(),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
}
"""Activations of `MLP`."""


class MLP(Module):
    """fc2(act(fc1(x))).

    act is a config's hidden_act, or a name in UNGATED. Raises ConfigError if it is unknown.
    """

    def __init__(self, d: int, hidden: int, act: str = "gelu", *, bias: bool = True) -> None:
        super().__init__()
        self.fc1 = Linear(d, hidden, bias=bias)
        self.fc2 = Linear(hidden, d, bias=bias, shard="rowwise")
        self.act = act if act in UNGATED else activation(act)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        return self.fc2(UNGATED[self.act](self.fc1(x, step)), step)
