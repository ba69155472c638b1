"""Mutants of decoders with label scores: porting bugs that their parity test must detect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from ostro import Mutant, Step, nn
from ostro.architectures.sequence_classification.model import LastToken, Reranker


def first_token(model: nn.Model) -> None:
    assert isinstance(model, LastToken)
    model.last = lambda step: step.tokens.new_tensor(step.bounds[:-1])  # type: ignore[method-assign]


def token_before(model: nn.Model) -> None:
    assert isinstance(model, LastToken)
    last = model.last
    model.last = lambda step: (last(step) - 1).clamp(min=0)  # type: ignore[method-assign]


def late_positions(model: nn.Model) -> None:
    """Use the token types as a second row of positions."""
    assert isinstance(model, LastToken)
    hidden = model.hidden

    def shifted(step: Step) -> Tensor:
        return hidden(replace(step, positions=step.positions.flip(0)))

    model.hidden = shifted  # type: ignore[method-assign]


def mutants() -> Iterator[Mutant]:
    yield Mutant(name="scores of the first token", apply=first_token)
    yield Mutant(name="scores of the token before the last", apply=token_before)
    yield Mutant(name="token types as positions", apply=late_positions)


def swapped(model: nn.Model) -> None:
    assert isinstance(model, Reranker)
    model.label_token_ids.reverse()


def reranker_mutants() -> Iterator[Mutant]:
    yield from mutants()
    yield Mutant(name='"yes" before "no"', apply=swapped)
