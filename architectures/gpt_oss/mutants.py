"""Mutants of gpt_oss: porting bugs that its parity test must detect."""

from __future__ import annotations

from collections.abc import Iterator

from ostro import Mutant, nn
from ostro.architectures.gemma2.mutants import windows_shifted
from ostro.architectures.gpt_oss.model import Experts
from ostro.architectures.mixtral.mutants import experts
from ostro.nn import ExpertLinear, Router
from ostro.testing import each, no_bias, retable


def truncated(model: nn.Model) -> None:
    each(model, nn.Rope, lambda rope: retable(rope, truncate=True))


def no_clamp(model: nn.Model) -> None:
    each(model, Experts, lambda e: setattr(e, "limit", float("inf")))


def alpha(model: nn.Model) -> None:
    each(model, Experts, lambda e: setattr(e, "alpha", 1.0))


def no_expert_biases(model: nn.Model) -> None:
    each(model, ExpertLinear, lambda s: setattr(s, "bias", None))


def no_router_bias(model: nn.Model) -> None:
    each(model, Router, lambda r: setattr(r, "bias", None))


def mutants() -> Iterator[Mutant]:
    yield from experts()
    yield Mutant(name="windows on other layers", apply=windows_shifted)
    yield Mutant(name="the bounds of yarn truncated", apply=truncated)
    yield Mutant(name="gate and up unclamped", apply=no_clamp)
    yield Mutant(name="a plain sigmoid in the activation", apply=alpha)
    yield Mutant(name="no biases", apply=no_bias)
    yield Mutant(name="no biases of the experts", apply=no_expert_biases)
    yield Mutant(name="no bias of the router", apply=no_router_bias)
