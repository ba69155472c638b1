"""Experts of transformers' classes as ostro's stacked linears, through the experts interface.

A class that transformers decorates with `use_experts_implementation` stores the weights of all
experts of a layer in two parameters, and calls a function of the interface. Here the parameters
become two `ExpertLinear`, which read weight formats and take adapters, and the function runs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from ostro import nn
from ostro.architectures.transformers.config import no_body
from ostro.architectures.transformers.modules import Call, ExpertLinear
from ostro.config import MAX_EXPERTS
from ostro.errors import ConfigError
from ostro.ops import Op, moe_route

EXPERTS = "ostro"
"""The name of `run` in transformers' registry."""


GATED, WHOLE, UNGATED = ("gate_proj", "up_proj"), ("gate_up_proj",), ("up_proj",)
"""The parts of the first linear. Interleaved gate and up, and those with biases, are one part."""


@dataclass(frozen=True)
class Stack:
    """The experts of a layer: their number, the sizes of their linears, and their layout.

    `parts` are those of the first linear, n rows together. `transposed` weights are [experts, k, n]
    in checkpoints of the class.
    """

    count: int
    d: int
    n: int
    hidden: int
    parts: tuple[str, ...]
    bias: bool
    transposed: bool

    @property
    def first(self) -> Mapping[str, int]:
        """The rows of each part of the first linear."""
        return {part: self.n // len(self.parts) for part in self.parts}


def is_mixture(module: nn.Module) -> bool:
    """Whether a module's class is decorated with `use_experts_implementation`."""
    return hasattr(module, "is_concatenated") and hasattr(module, "_apply_gate")


def read_stack(module: Any, name: str) -> Stack:
    """The layout of a mixture's experts. Raises Unsupported for parameters of other shapes,
    ConfigError for a number of experts out of range."""
    own = dict(module.named_parameters(recurse=False))
    first = own.pop("gate_up_proj" if module.has_gate else "up_proj", None)
    down = own.pop("down_proj", None)
    biases = [own.pop(key, None) for key in ("gate_up_proj_bias", "up_proj_bias", "down_proj_bias")]
    if own or first is None or down is None or first.dim() != 3 or down.dim() != 3:
        raise no_body(name, f"its {type(module).__name__} stores its experts in another layout")
    swap = (-2, -1) if module.is_transposed else (-1, -2)
    (d, n), (hidden, out) = ([t.shape[axis] for axis in swap] for t in (first, down))
    bias = any(each is not None for each in biases)
    whole = bias or not module.is_concatenated
    parts = UNGATED if not module.has_gate else WHOLE if whole else GATED
    if d != out or n % len(parts):
        raise no_body(name, f"its {type(module).__name__} stores its experts in another layout")
    if not 0 < len(first) <= MAX_EXPERTS:
        raise ConfigError(
            f"config.json: a layer of {name} has {len(first)} experts; expected 1..{MAX_EXPERTS}"
        )
    return Stack(len(first), d, n, hidden, parts, bias, module.is_transposed)


def replace(module: Any, call: Call, name: str) -> None:
    """Replace the parameters of a mixture by two stacked linears."""
    stack = read_stack(module, name)
    for key, _ in list(module.named_parameters(recurse=False)):
        delattr(module, key)
    module.gate_up = ExpertLinear(stack.count, stack.d, dict(stack.first), bias=stack.bias)
    module.down = ExpertLinear(stack.count, stack.hidden, {"down_proj": stack.d}, bias=stack.bias)
    module.gate_up.call = module.down.call = call
    module.sort = Op(moe_route.SORT)


def run(module: Any, hidden_states: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """The function for transformers' experts interface: x [T, d], chosen [T, k], weights [T, k] ->
    [T, d], with sums in float32.
    """
    if hidden_states.is_meta:
        return torch.empty_like(hidden_states)
    step = module.gate_up.call.of_rows(len(hidden_states))
    expert_of_copy, row_of_copy, positions = module.sort(chosen, module.gate_up.experts)
    rows = step.rows(row_of_copy)
    y = module.gate_up(hidden_states[row_of_copy], expert_of_copy, rows)
    y = module.down(
        module._apply_gate(y) if module.has_gate else module.act_fn(y), expert_of_copy, rows
    )
    if module.has_post_expert_norm:
        y = module.post_expert_norm(y)
    return (y[positions].float() * weights.float()[..., None]).sum(1).to(hidden_states.dtype)


ALL_EXPERTS_FUNCTIONS.register(EXPERTS, run)
