"""Mutants of olmoe and flex_olmo: porting bugs that their parity tests must detect."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ostro import Mutant, Step, nn
from ostro.architectures.mixtral.mutants import experts
from ostro.architectures.olmoe import flex
from ostro.architectures.olmoe.model import ClippedAttention, ClippedNorm
from ostro.testing import SMALL, each


def norm_each_head(model: nn.Model) -> None:
    """Norm every head of q and k by itself, with its part of the weight."""

    def change(attention: nn.Attention) -> None:
        for norm in (attention.q_norm, attention.k_norm):
            assert norm is not None
            norm.norm = per_head(attention.head_dim)

    each(model, nn.Attention, change)


def per_head(d: int) -> Any:
    def norm(x: Tensor, weight: Tensor, eps: float, residual: None) -> tuple[Tensor, Tensor]:
        heads = x.unflatten(-1, (-1, d))
        scale = torch.rsqrt(heads.square().mean(-1, keepdim=True) + eps)
        return (heads * scale).flatten(-2) * weight, x

    return norm


def no_clip_of_values(model: nn.Model) -> None:
    each(model, ClippedAttention, lambda attention: setattr(attention, "limit", math.inf))


def no_clip_of_queries(model: nn.Model) -> None:
    each(model, ClippedNorm, lambda norm: setattr(norm, "limit", math.inf))


def norm_before(model: nn.Model) -> None:
    """Norm the inputs of attention and experts instead of their outputs, as Llama does."""

    def change(block: flex.Block) -> None:
        first, second = block.post_attention_layernorm, block.post_feedforward_layernorm

        def forward(x: Tensor, residual: Tensor | None, step: Step) -> tuple[Tensor, Tensor]:
            x, residual = first(x, residual)
            x, residual = second(block.self_attn(x, step), residual)
            return block.mlp(x, step), residual

        block.forward = forward  # type: ignore[method-assign]

    each(model, flex.Block, change)


def other_softmax(model: nn.Model) -> None:
    """Renormalise the weights, or do not. The norm after the experts hides it but for epsilon."""

    def change(router: nn.Router) -> None:
        router.rule = router.rule._replace(renormalise=not router.rule.renormalise)

    each(model, nn.Router, change)


def shared() -> Iterator[Mutant]:
    yield from experts()
    yield Mutant(name="a norm per head of q and k", apply=norm_each_head)


def olmoe() -> Iterator[Mutant]:
    yield from shared()
    yield Mutant(name="no clip of v", apply=no_clip_of_values)
    yield Mutant(name="no clip of q and k", apply=no_clip_of_queries)


def flex_olmo() -> Iterator[Mutant]:
    yield from shared()
    yield Mutant(name="norms before attention and experts", apply=norm_before)
    yield Mutant(
        name="softmax over all experts instead of the chosen", apply=other_softmax, std=SMALL
    )
