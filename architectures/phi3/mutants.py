"""Mutants of phi3: porting bugs that its parity test must detect."""

from collections.abc import Iterator

import torch
from torch import Tensor

from ostro import Mutant, Step, nn
from ostro.testing import each, retable


def short_factors(model: nn.Model) -> None:
    """Use the short factors for long contexts."""
    each(model, nn.Rope, lambda rope: retable(rope, long_factor=rope.rule["short_factor"]))


def no_attention_factor(model: nn.Model) -> None:
    each(model, nn.Rope, lambda rope: retable(rope, attention_factor=1.0))


def keys_and_values(model: nn.Model) -> None:
    """Read the rows of the fused tensor in the order q, v, k."""

    def swap(attention: nn.Attention) -> None:
        forward, d = attention.qkv.forward, attention.head_dim
        rows = attention.heads * d, attention.kv_heads * d, attention.kv_heads * d

        def swapped(x: Tensor, step: Step) -> Tensor:
            q, k, v = forward(x, step).split(rows, -1)
            return torch.cat((q, v, k), -1)

        attention.qkv.forward = swapped  # type: ignore[method-assign]

    each(model, nn.Attention, swap)


def mutants() -> Iterator[Mutant]:
    yield Mutant(name="short factors for long contexts", apply=short_factors)
    yield Mutant(name="no attention factor", apply=no_attention_factor)
    yield Mutant(name="values before keys", apply=keys_and_values)
