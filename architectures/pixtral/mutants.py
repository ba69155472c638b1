"""Mutants of Pixtral's vision encoder: porting bugs that its parity test must detect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ostro import Mutant, Step, nn
from ostro.architectures.pixtral.model import Attention, Layer, PatchConv, Rope, VisionTower
from ostro.testing import SMALL, each


def scale(model: nn.Model) -> None:
    each(model, Attention, lambda a: setattr(a, "scale", a.scale * 1.1))


def axes_exchanged(model: nn.Model) -> None:
    """Rotate by the column first."""

    def change(attention: Attention) -> None:
        forward = attention.forward
        attention.forward = lambda x, step: forward(  # type: ignore[method-assign]
            x, replace(step, positions=step.positions.flip(0))
        )

    each(model, Attention, change)


def no_rope(model: nn.Model) -> None:
    def change(attention: Attention) -> None:
        forward = attention.forward
        attention.forward = lambda x, step: forward(  # type: ignore[method-assign]
            x, replace(step, positions=torch.zeros_like(step.positions))
        )

    each(model, Attention, change)


def frequencies_in_halves(model: nn.Model) -> None:
    """Rotate by the row with the first frequencies instead of the even ones."""

    def change(rope: Rope) -> None:
        rope.table = rope.table.unflatten(-1, (2, 2, -1)).mT.flatten(-3)

    each(model, Rope, change)


def images_attend_to_each_other(model: nn.Model) -> None:
    def change(attention: Attention) -> None:
        forward = attention.forward

        def spoil(x: Tensor, step: Step) -> Tensor:
            return forward(x, replace(step, bounds=[0, len(x)]))

        attention.forward = spoil  # type: ignore[method-assign]

    each(model, Attention, change)


def norm_eps(model: nn.Model) -> None:
    def change(layer: Layer) -> None:
        layer.attention_norm.eps = layer.ffn_norm.eps = 0.1

    each(model, Layer, change)


def no_first_norm(model: nn.Model) -> None:
    each(
        model,
        VisionTower,
        lambda tower: setattr(tower.ln_pre, "forward", lambda x, residual=None: (x, x)),
    )


def patches_turned(model: nn.Model) -> None:
    def change(conv: PatchConv) -> None:
        conv.weight.data = conv.weight.data.mT.contiguous()

    each(model, PatchConv, change)


def mutants() -> Iterator[Mutant]:
    yield Mutant(name="tower: scores scaled by 1.1", apply=scale)
    yield Mutant(name="tower: rows and columns exchanged", apply=axes_exchanged)
    yield Mutant(name="tower: no rotation", apply=no_rope)
    yield Mutant(name="tower: frequencies in halves", apply=frequencies_in_halves)
    yield Mutant(name="tower: images attend to each other", apply=images_attend_to_each_other)
    yield Mutant(name="tower: norm epsilon 0.1", apply=norm_eps, std=SMALL)
    yield Mutant(name="tower: no norm before the layers", apply=no_first_norm)
    yield Mutant(name="tower: patches turned", apply=patches_turned)
