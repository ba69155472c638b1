"""Mutants of starcoder2: porting bugs that its parity test must detect."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from ostro import Mutant, Step, nn
from ostro.architectures.phi.model import Block
from ostro.architectures.phi.mutants import no_activation
from ostro.testing import each


def parallel(model: nn.Model) -> None:
    """Give attention and MLP the same input."""

    def change(block: Block) -> None:
        def forward(x: Tensor, residual: Tensor | None, step: Step) -> tuple[Tensor, Tensor]:
            x, residual = block.input_layernorm(x, residual)
            return block.self_attn(x, step) + block.mlp(x, step), residual

        block.forward = forward  # type: ignore[method-assign]

    each(model, Block, change)


def mutants() -> Iterator[Mutant]:
    yield Mutant(name="attention beside the mlp", apply=parallel)
    yield Mutant(name="no activation", apply=no_activation)
