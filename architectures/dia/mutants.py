"""Mutants of Dia: porting bugs that its parity test must detect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from ostro import Mutant, Step, nn
from ostro.architectures.dia.choice import Choice, Rules
from ostro.architectures.dia.codec import Conv, Decoder, Quantizer, Snake
from ostro.architectures.dia.model import Model
from ostro.architectures.dia.request import Speech
from ostro.architectures.dia.transformer import (
    ChannelEmbedding,
    CrossAttention,
    FrameAttention,
    TextAttention,
)
from ostro.testing import SMALL, retable
from ostro.testing import mutants as common

M = TypeVar("M")


def each(model: Model, kind: type[M], change: Callable[[M], object]) -> None:
    """Apply a change to every module of a kind."""
    common.each(cast(nn.Model, model), kind, change)


def delays(change: Callable[[int], int]) -> Callable[[Model], None]:
    """Change the delay of all channels but the first."""

    def apply(model: Model) -> None:
        first, *rest = model.config.delay_pattern
        model.config = replace(model.config, delay_pattern=(first, *map(change, rest)))

    return apply


def delayed_codes(model: Model) -> None:
    """Decode codes with their delays."""
    decode, late = model.codec.decode_pieces, model.config.delay_pattern

    def shifted(codes: Tensor) -> Iterator[Tensor]:
        moved = [codes[:, i].roll(delay, -1) for i, delay in enumerate(late)]
        return decode(torch.stack(moved, 1))

    model.codec.decode_pieces = shifted  # type: ignore[method-assign]


def chosen(change: Callable[[Tensor, Rules], tuple[Tensor, Rules]]) -> Callable[[Model], None]:
    """Change the logits or the sampling parameters."""

    def wrap(choice: Choice) -> None:
        forward = choice.forward
        choice.forward = lambda logits, rules: forward(*change(logits, rules))  # type: ignore[method-assign]

    return lambda model: each(model, Choice, wrap)


def no_filter(model: Model) -> None:
    each(model, Choice, lambda choice: setattr(choice, "ends", lambda scores: scores))


def other_empty_text(model: Model) -> None:
    read = model.readings

    def spaces(speech: Speech) -> Tensor:
        texts = read(speech)
        texts[1:] = 32
        return texts

    model.readings = spaces  # type: ignore[method-assign]


def first_channel(model: Model) -> None:
    def change(embedding: ChannelEmbedding) -> None:
        def forward(codes: Tensor, step: Step) -> Tensor:
            return embedding.embed(codes[:, 0], step)

        embedding.forward = forward  # type: ignore[method-assign]

    each(model, ChannelEmbedding, change)


def scaled(kind: type[Any]) -> Callable[[Model], None]:
    """Scale the scores by 1 / sqrt(head_dim), which Dia does not do."""
    return lambda model: each(model, kind, lambda a: setattr(a, "scale", a.head_dim**-0.5))


def values_for_keys(model: Model) -> None:
    def change(attention: CrossAttention) -> None:
        cache_states = attention.cache_states
        attention.cache_states = lambda *args: cache_states(*args)[::-1]  # type: ignore[method-assign]

    each(model, CrossAttention, change)


def causal_text(model: Model) -> None:
    def change(attention: TextAttention) -> None:
        attend = attention.attend.kernel
        attention.attend.kernel = lambda *given: attend(*given, causal=True)

    each(model, TextAttention, change)


def rope_theta(model: Model) -> None:
    each(model, nn.Rope, lambda r: retable(r, rope_theta=r.rule["rope_theta"] * 50))


def rope_layout(model: Model) -> None:
    each(model, nn.Rope, lambda r: setattr(r, "interleaved", True))


def norm_eps(model: Model) -> None:
    each(model, nn.RMSNorm, lambda n: setattr(n, "eps", n.eps * 10))


def gate_and_up(model: Model) -> None:
    def swap(mlp: nn.GatedMLP) -> None:
        forward, half = mlp.gate_up.forward, mlp.gate_up.n_out // 2
        mlp.gate_up.forward = lambda x, step: forward(x, step).roll(half, -1)  # type: ignore[method-assign]

    each(model, nn.GatedMLP, swap)


def no_alpha(model: Model) -> None:
    each(model, Snake, lambda snake: snake.alpha.data.fill_(1))


def no_dilation(model: Model) -> None:
    def change(conv: Conv) -> None:
        conv.dilation, conv.padding = (1,), (conv.kernel_size[0] // 2,)

    each(model, Conv, change)


def one_codebook_less(model: Model) -> None:
    each(model, Quantizer, lambda q: setattr(q, "quantizers", q.quantizers[:-1]))


def no_tanh(model: Model) -> None:
    def change(decoder: Decoder) -> None:
        forward = decoder.forward
        decoder.forward = lambda x: forward(x).atanh()  # type: ignore[method-assign]

    each(model, Decoder, change)


def mutants() -> Iterator[Mutant]:
    yield Mutant(name="delays one longer", apply=delays(lambda delay: delay + 1))
    yield Mutant(name="delays one shorter", apply=delays(lambda delay: delay - 1))
    yield Mutant(name="codes decoded with their delays", apply=delayed_codes)
    yield Mutant(name="guidance reversed", apply=chosen(lambda x, how: (x.flip(0), how)))
    yield Mutant(
        name="guidance from the empty text",
        apply=chosen(lambda x, how: (x, replace(how, guidance=how.guidance - 1))),
    )
    yield Mutant(
        name="guided scores drawn from",
        apply=chosen(lambda x, how: (x, replace(how, top_k=0))),
    )
    yield Mutant(name="marks drawn", apply=no_filter)
    yield Mutant(name="an empty text of spaces", apply=other_empty_text)
    yield Mutant(name="channels not summed", apply=first_channel)
    yield Mutant(
        name="one table for all channels",
        apply=lambda model: each(model, ChannelEmbedding, lambda e: setattr(e, "size", 0)),
    )
    for kind, what in (
        (TextAttention, "the text"),
        (FrameAttention, "the frames"),
        (CrossAttention, "the text seen by the frames"),
    ):
        yield Mutant(name=f"scores of {what} scaled", apply=scaled(kind))
    yield Mutant(name="values taken for keys", apply=values_for_keys)
    yield Mutant(name="causal text encoder", apply=causal_text)
    yield Mutant(name="rope theta x 50", apply=rope_theta)
    yield Mutant(name="rope pairs adjacent instead of halves", apply=rope_layout)
    yield Mutant(name="norm epsilon x 10", apply=norm_eps, std=SMALL)
    yield Mutant(name="gate and up exchanged", apply=gate_and_up)
    yield Mutant(name="snakes without alpha", apply=no_alpha)
    yield Mutant(name="no dilation", apply=no_dilation)
    yield Mutant(name="one codebook less", apply=one_codebook_less)
    yield Mutant(name="no tanh", apply=no_tanh)
