"""Mutants of Ministral 3: porting bugs that its parity test must detect."""

from collections.abc import Iterator

from ostro import Mutant, nn
from ostro.architectures.ministral3.model import Attention
from ostro.testing import each


def no_scale(model: nn.Model) -> None:
    each(model, Attention, lambda attention: setattr(attention, "beta", 0.0))


def late_stretches(model: nn.Model) -> None:
    each(model, Attention, lambda attention: setattr(attention, "trained", 16))


def every_position(model: nn.Model) -> None:
    """Scale by the position instead of by its stretch."""
    each(model, Attention, lambda attention: setattr(attention, "trained", 1))


def mutants() -> Iterator[Mutant]:
    yield Mutant(name="queries not scaled", apply=no_scale)
    yield Mutant(name="stretches twice as long", apply=late_stretches)
    yield Mutant(name="queries scaled by every position", apply=every_position)
