"""Mutants of glm4_moe: porting bugs that its parity test must detect."""

from collections.abc import Iterator

from ostro import Mutant, nn
from ostro.architectures.deepseek_v2.mutants import mixture, sigmoid_routed
from ostro.architectures.mixtral.mutants import experts
from ostro.testing import each, retable


def whole_heads(model: nn.Model) -> None:
    """Rotate whole heads instead of their first half."""
    each(model, nn.Rope, lambda rope: retable(rope, partial_rotary_factor=1.0))


def mutants() -> Iterator[Mutant]:
    yield from experts()
    yield from mixture()
    yield from sigmoid_routed()
    yield Mutant(name="rotation of whole heads", apply=whole_heads)
