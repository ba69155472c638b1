"""Mutants of XLM-RoBERTa: porting bugs that its parity test must detect."""

from collections.abc import Iterator

from ostro import Mutant, nn
from ostro.architectures.bert import mutants as bert
from ostro.architectures.xlm_roberta.model import Embeddings
from ostro.testing import each


def from_zero(model: nn.Model) -> None:
    each(model, Embeddings, lambda e: setattr(e, "places", lambda step: step.positions[0]))


def padding_counted(model: nn.Model) -> None:
    def change(embeddings: Embeddings) -> None:
        first = embeddings.padding + 1
        embeddings.places = lambda step: step.positions[0] + first  # type: ignore[method-assign]

    each(model, Embeddings, change)


def mutants() -> Iterator[Mutant]:
    yield from bert.mutants()
    yield Mutant(name="positions from 0", apply=from_zero)
    yield Mutant(name="positions of padding counted", apply=padding_counted)
