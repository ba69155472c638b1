"""Mutants of qwen2_moe: porting bugs that its parity test must detect."""

from collections.abc import Iterator

from torch import Tensor

from ostro import Mutant, Step
from ostro.architectures.mixtral.mutants import experts
from ostro.architectures.qwen2_moe.model import SharedMLP
from ostro.testing import all_windows, each


def open_gate(mlp: SharedMLP) -> None:
    """Weight the shared expert with sigmoid(0) in all rows."""
    forward = mlp.shared_expert_gate.forward

    def zero(x: Tensor, step: Step) -> Tensor:
        return forward(x, step) * 0

    mlp.shared_expert_gate.forward = zero  # type: ignore[method-assign]


def no_shared_expert(mlp: SharedMLP) -> None:
    mlp.shared_expert.forward = lambda x, step: x * 0  # type: ignore[method-assign]


def shared() -> Iterator[Mutant]:
    """Mutants of families with a gated shared expert."""
    yield Mutant(
        name="no gate on the shared expert", apply=lambda model: each(model, SharedMLP, open_gate)
    )
    yield Mutant(
        name="no shared expert", apply=lambda model: each(model, SharedMLP, no_shared_expert)
    )


def mutants() -> Iterator[Mutant]:
    yield from experts()
    yield from shared()
    yield Mutant(name="windows on all layers", apply=all_windows)
