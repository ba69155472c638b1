"""Mutants of LLaVA: porting bugs that its parity test must detect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor, relu

from ostro import Mutant, Step, nn
from ostro.architectures.clip.mutants import vision
from ostro.architectures.llava.model import Model, Projector
from ostro.testing import each

TOWER = (
    "causal exchanged with not causal",
    "no class token",
    "no norm before the layers",
    "patches column by column",
)
"""Mutants of CLIP's vision encoder, besides the generic ones."""


def layers_off(by: int) -> Callable[[Model], None]:
    def change(model: Model) -> None:
        model.chosen = tuple(i + by for i in model.chosen)

    return change


def class_token_kept(model: Model) -> None:
    """Keep the class token, and omit the last patch."""
    encode = model.encode
    model.skipped = 0
    model.encode = lambda media, step: [(x[:-1],) for (x,) in encode(media, step)]  # type: ignore[method-assign]


def normed_features(model: Model) -> None:
    tower = model.vision_tower
    forward = tower.forward

    def spoil(pixels: Tensor, step: Step) -> list[Tensor]:
        return [F.layer_norm(state, state.shape[-1:]) for state in forward(pixels, step)]

    tower.forward = spoil


def relu_projector(model: nn.TokenModel) -> None:
    each(model, Projector, lambda projector: setattr(projector, "act", relu))


def no_projector_bias(model: nn.TokenModel) -> None:
    def change(projector: Projector) -> None:
        projector.linear_1.bias = projector.linear_2.bias = None

    each(model, Projector, change)


def rows_late(model: nn.TokenModel) -> None:
    """Place features one row too late."""
    embed = model.embed

    def spoil(step: Step) -> Tensor:
        if step.features is not None:
            rows = (step.features.rows + 1).clamp(max=len(step.tokens) - 1)
            step = replace(step, features=replace(step.features, rows=rows))
        return embed(step)

    model.embed = spoil  # type: ignore[method-assign]


def mutants() -> Iterator[Mutant]:
    yield from (mutant for mutant in vision() if mutant.name in TOWER)
    yield Mutant(name="features of the layer before", apply=layers_off(-1))
    yield Mutant(name="the class token kept", apply=class_token_kept)
    yield Mutant(name="features normed", apply=normed_features)
    yield Mutant(name="relu in the projector", apply=relu_projector)
    yield Mutant(name="no biases in the projector", apply=no_projector_bias)
    yield Mutant(name="features one row late", apply=rows_late)
