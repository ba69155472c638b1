"""Mutants of EmbeddingGemma: porting bugs that its parity test must detect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from ostro import Mutant, nn
from ostro.architectures.gemma2.mutants import windows_shifted
from ostro.architectures.gemma3.mutants import one_rope
from ostro.testing import each
from ostro.testing import mutants as common

ATTENTION = nn.EncoderAttention


def window(change: Callable[[int], int]) -> Callable[[nn.Model], None]:
    def apply(attention: nn.EncoderAttention) -> None:
        if attention.window:
            attention.window = change(attention.window)

    return lambda model: each(model, ATTENTION, apply)


def causal(model: nn.Model) -> None:
    def change(attention: nn.EncoderAttention) -> None:
        attend = attention.attend.kernel
        attention.attend.kernel = lambda *args: attend(*args, causal=True)

    each(model, ATTENTION, change)


def no_head_norms(model: nn.Model) -> None:
    def drop(attention: nn.EncoderAttention) -> None:
        attention.q_norm = attention.k_norm = None

    each(model, ATTENTION, drop)


def mutants() -> Iterator[Mutant]:
    yield Mutant(name="embeddings scaled by 1.05", apply=common.embedding_scale)
    yield Mutant(name="no norms on the heads", apply=no_head_norms)
    yield Mutant(name="causal attention", apply=causal)
    yield Mutant(name="window one longer", apply=window(lambda w: w + 1))
    yield Mutant(name="window one shorter", apply=window(lambda w: w - 1))
    yield Mutant(name="the whole window on both sides", apply=window(lambda w: 2 * (w - 1)))
    yield Mutant(name="no window", apply=window(lambda w: 0))
    yield Mutant(name="windows on other layers", apply=partial(windows_shifted, kind=ATTENTION))
    yield Mutant(name="the local rope on every layer", apply=partial(one_rope, kind=ATTENTION))
