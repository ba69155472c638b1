"""Mutants of granitemoehybrid: porting bugs that its parity test must detect."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Mutant, nn
from ostro.architectures.bamba.mutants import mixers
from ostro.architectures.granite.mutants import mutants as factors
from ostro.architectures.granitemoehybrid.model import SharedMLP
from ostro.architectures.mixtral.mutants import experts
from ostro.testing import each


def rotate(model: nn.Model) -> None:
    def change(attention: nn.Attention) -> None:
        rule = {"rope_type": "default", "rope_theta": 10000.0}
        attention.rope = rope = nn.Rope(rule, attention.head_dim, 256)
        rope.finalize(256, attention.o_proj.active_storages[0].device)

    each(model, nn.Attention, change)


def no_shared_expert(model: nn.Model) -> None:
    def change(mlp: SharedMLP) -> None:
        forward = mlp.shared.forward
        mlp.shared.forward = lambda x, step: forward(x, step) * 0  # type: ignore[method-assign]

    each(model, SharedMLP, change)


def mutants() -> Iterator[Mutant]:
    yield from factors()
    yield from mixers()
    yield from experts()
    yield Mutant(name="rotation in layers without one", apply=rotate)
    yield Mutant(name="no shared expert", apply=no_shared_expert)
