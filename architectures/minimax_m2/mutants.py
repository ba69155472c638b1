"""Mutants of minimax_m2: porting bugs that its parity test must detect."""

from collections.abc import Iterator

from ostro import Mutant, nn
from ostro.architectures.deepseek_v2.mutants import set_rule, sigmoid_routed
from ostro.architectures.mixtral.mutants import experts
from ostro.testing import each, retable


def whole_heads(model: nn.Model) -> None:
    """Rotate whole heads instead of their first rotary_dim dimensions."""
    each(model, nn.Rope, lambda rope: retable(rope, partial_rotary_factor=1.0))


def mutants() -> Iterator[Mutant]:
    yield from experts()
    yield from sigmoid_routed()
    yield set_rule(sigmoid=False)
    yield Mutant(name="rotation of whole heads", apply=whole_heads)
