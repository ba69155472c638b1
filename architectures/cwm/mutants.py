"""Mutants of cwm: porting bugs that its parity test must detect."""

from collections.abc import Iterator

from ostro import Mutant, nn
from ostro.testing import all_windows, each, retable


def last_of_four(model: nn.Model) -> None:
    """Full attention in the last of four layers instead of the first."""
    attentions = [m for m in model.modules() if isinstance(m, nn.Attention)]
    width = max(attention.window for attention in attentions)
    for layer, attention in enumerate(attentions):
        attention.window = width if (layer + 1) % 4 else 0


def default_rope(model: nn.Model) -> None:
    each(model, nn.Rope, lambda rope: retable(rope, rope_type="default"))


def mutants() -> Iterator[Mutant]:
    yield Mutant(name="windows on all layers", apply=all_windows)
    yield Mutant(name="full attention in the last of four layers", apply=last_of_four)
    yield Mutant(name="rope not scaled", apply=default_rope)
