"""Mutants of glm: porting bugs that its parity test must detect."""

from collections.abc import Iterator

from ostro import Mutant, nn
from ostro.testing import each, no_bias, retable


def whole_heads(model: nn.Model) -> None:
    each(model, nn.Rope, lambda rope: retable(rope, partial_rotary_factor=1.0))


def mutants() -> Iterator[Mutant]:
    yield Mutant(name="whole heads rotated", apply=whole_heads)
    yield Mutant(name="no biases on q, k, v", apply=no_bias)
