"""Mutants of phi: porting bugs that its parity test must detect."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from ostro import Mutant, Step, nn
from ostro.architectures.phi.model import Block
from ostro.testing import each, retable


def sequential(model: nn.Model) -> None:
    """Add the attention's output to the input of the MLP."""

    def change(block: Block) -> None:
        def forward(x: Tensor, residual: Tensor | None, step: Step) -> tuple[Tensor, Tensor]:
            x, residual = block.input_layernorm(x, residual)
            x = block.self_attn(x, step)
            return x + block.mlp(block.input_layernorm(x, residual)[0], step), residual

        block.forward = forward  # type: ignore[method-assign]

    each(model, Block, change)


def no_activation(model: nn.Model) -> None:
    def drop(mlp: nn.MLP) -> None:
        mlp.forward = lambda x, step: mlp.fc2(mlp.fc1(x, step), step)  # type: ignore[method-assign]

    each(model, nn.MLP, drop)


def whole_heads(model: nn.Model) -> None:
    each(model, nn.Rope, lambda rope: retable(rope, partial_rotary_factor=1.0))


def no_head_bias(model: nn.Model) -> None:
    each(model, nn.Head, lambda head: setattr(head, "bias", None))


def mutants() -> Iterator[Mutant]:
    yield Mutant(name="attention before the mlp", apply=sequential)
    yield Mutant(name="no activation", apply=no_activation)
    yield Mutant(name="rotation of whole heads", apply=whole_heads)
    yield Mutant(name="no bias of the head", apply=no_head_bias)
