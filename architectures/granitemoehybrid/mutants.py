"""Mutants of granitemoehybrid: porting bugs that its parity test must detect."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Mutant, nn
from ostro.architectures.bamba.mutants import mixers
from ostro.architectures.granitemoe.mutants import mutants as granitemoe
from ostro.testing import each


def rotate(model: nn.Model) -> None:
    def change(attention: nn.Attention) -> None:
        rule = {"rope_type": "default", "rope_theta": 10000.0}
        attention.rope = rope = nn.Rope(rule, attention.head_dim, 256)
        rope.finalize(256, attention.o_proj.active_storages[0].device)

    each(model, nn.Attention, change)


def mutants() -> Iterator[Mutant]:
    yield from granitemoe()
    yield from mixers()
    yield Mutant(name="rotation in layers without one", apply=rotate)
