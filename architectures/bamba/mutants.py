"""Mutants of bamba: porting bugs that its parity test must detect."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ostro import Mutant, nn
from ostro.architectures.mamba2.mutants import gate_after_norm, one_group, scanned
from ostro.testing import each, filters_backwards


def rotate_all(model: nn.Model) -> None:
    """Rotate whole heads instead of their first half."""

    def change(attention: nn.Attention) -> None:
        assert attention.rope is not None
        rope = attention.rope
        rope.rule["partial_rotary_factor"] = 1.0
        rope.finalize(rope.context, rope.table.device)

    each(model, nn.Attention, change)


def mixers() -> Iterator[Mutant]:
    """Mutants of families with Mamba 2 layers."""
    yield Mutant(name="filters backwards", apply=filters_backwards)
    yield Mutant(name="one norm over all groups", apply=one_group)
    yield Mutant(name="gate after the norm", apply=gate_after_norm)
    yield Mutant(name="B and C exchanged", apply=scanned(b=lambda a: a["c"], c=lambda a: a["b"]))
    yield Mutant(name="no D", apply=scanned(d=lambda a: a["d"] * 0))
    yield Mutant(name="no limit to the time step", apply=scanned(limit=lambda a: (0.0, math.inf)))


def mutants() -> Iterator[Mutant]:
    yield from mixers()
    yield Mutant(name="rotation of whole heads", apply=rotate_all)
