"""Mutants of Ministral: porting bugs that its parity test must detect."""

from collections.abc import Iterator

from ostro import Mutant, nn
from ostro.testing import all_windows


def attentions(model: nn.Model) -> list[nn.Attention]:
    return [module for module in model.modules() if isinstance(module, nn.Attention)]


def no_window(model: nn.Model) -> None:
    for attention in attentions(model):
        attention.window = 0


def exchanged_layers(model: nn.Model) -> None:
    """Windows on the layers with full attention, and full attention on the others."""
    width = max(attention.window for attention in attentions(model))
    for attention in attentions(model):
        attention.window = width - attention.window


def mutants() -> Iterator[Mutant]:
    yield Mutant(name="windows on all layers", apply=all_windows)
    yield Mutant(name="no window", apply=no_window)
    yield Mutant(name="windows on the other layers", apply=exchanged_layers)
