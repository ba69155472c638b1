"""Mutants of gemma3: porting bugs that its parity test must detect."""

from collections.abc import Iterator
from typing import Any

from ostro import Mutant, nn
from ostro.architectures.gemma2.mutants import head_scale, windows_shifted
from ostro.testing import embedding_scale


def one_rope(model: nn.Model, kind: type[Any] = nn.Attention) -> None:
    """Use the local rope in all layers."""
    attentions = [m for m in model.modules() if isinstance(m, kind)]
    for attention in attentions:
        attention.rope = attentions[0].rope


def mutants() -> Iterator[Mutant]:
    yield Mutant(name="embeddings scaled by 1.05", apply=embedding_scale)
    yield Mutant(name="scores scaled by the head's size", apply=head_scale)
    yield Mutant(name="windows on other layers", apply=windows_shifted)
    yield Mutant(name="the local rope on every layer", apply=one_rope)
