"""Mutants of smollm3: porting bugs that its parity test must detect."""

from collections.abc import Iterator

from ostro import Mutant, nn
from ostro.testing import all_windows, each


def all_rotated(model: nn.Model) -> None:
    """Rotate q and k in all layers."""
    ropes = [m.rope for m in model.modules() if isinstance(m, nn.Attention) and m.rope is not None]
    each(model, nn.Attention, lambda attention: setattr(attention, "rope", ropes[0]))


def none_rotated(model: nn.Model) -> None:
    each(model, nn.Attention, lambda attention: setattr(attention, "rope", None))


def mutants() -> Iterator[Mutant]:
    yield Mutant(name="rotation in all layers", apply=all_rotated)
    yield Mutant(name="rotation in no layer", apply=none_rotated)
    yield Mutant(name="windows on all layers", apply=all_windows)
