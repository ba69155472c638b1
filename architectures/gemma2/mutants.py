"""Mutants of gemma2: porting bugs that its parity test must detect."""

from collections.abc import Iterator
from typing import Any

from ostro import Mutant, nn
from ostro.testing import (
    all_windows,
    each,
    embedding_scale,
)


def no_logit_cap(model: nn.Model) -> None:
    model.softcap = 0.0  # type: ignore[assignment]


def head_scale(model: nn.Model) -> None:
    """Scale scores by head_dim instead of query_pre_attn_scalar."""
    each(model, nn.Attention, lambda a: setattr(a, "scale", a.head_dim**-0.5))


def windows_shifted(model: nn.Model, kind: type[Any] = nn.Attention) -> None:
    """Give each layer the window of the next layer."""
    attentions = [m for m in model.modules() if isinstance(m, kind)]
    widths = [a.window for a in attentions]
    for attention, width in zip(attentions, [*widths[1:], widths[0]], strict=True):
        attention.window = width


def mutants() -> Iterator[Mutant]:
    yield Mutant(name="no cap on the logits", apply=no_logit_cap)
    yield Mutant(name="embeddings scaled by 1.05", apply=embedding_scale)
    yield Mutant(name="scores scaled by the head's size", apply=head_scale)
    yield Mutant(name="windows on the other layers", apply=windows_shifted)
    yield Mutant(name="windows on all layers", apply=all_windows)
