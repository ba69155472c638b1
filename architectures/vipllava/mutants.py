"""Mutants of ViP-LLaVA: porting bugs that its parity test must detect."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Mutant, nn
from ostro.architectures.llava import mutants as llava
from ostro.architectures.vipllava.model import Model, Projector
from ostro.testing import SMALL, each


def layers_reversed(model: Model) -> None:
    model.chosen = model.chosen[::-1]


def no_norm(model: nn.TokenModel) -> None:
    def change(projector: Projector) -> None:
        setattr(projector.projector_layernorm, "forward", lambda x: (x, x))  # noqa: B010

    each(model, Projector, change)


def norm_eps(model: nn.TokenModel) -> None:
    each(model, Projector, lambda p: setattr(p.projector_layernorm, "eps", 0.1))


def mutants() -> Iterator[Mutant]:
    yield from (mutant for mutant in llava.mutants() if "before" not in mutant.name)
    yield Mutant(name="layers in another order", apply=layers_reversed)
    yield Mutant(name="no norm before the projector", apply=no_norm)
    yield Mutant(name="norm epsilon 0.1 in the projector", apply=norm_eps, std=SMALL)
