"""Mutants of qwen3_vl: porting bugs that its parity test must detect, with images and a video in
the prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import cast

from torch import Tensor

from ostro import Mutant, Step, nn
from ostro.architectures.qwen2_5_vl.mutants import vision_mutants
from ostro.architectures.qwen3_vl.vision import LevelMerger
from ostro.testing import SMALL, each


def chunked(model: nn.TokenModel) -> None:
    """Use consecutive instead of interleaved mrope sections."""
    each(model, nn.Rope, lambda rope: setattr(rope, "woven", False))


def no_positions(model: nn.TokenModel) -> None:
    positions = model.visual.positions
    model.visual.positions = lambda *args: 0 * positions(*args)


def other_corners(model: nn.TokenModel) -> None:
    """Interpolate positions without the last row and column."""
    model.visual.side -= 1


def levels(change: Callable[[list[Tensor]], list[Tensor]]) -> Callable[[nn.TokenModel], None]:
    """Change the deepstack features of the language model's layers."""

    def apply(model: nn.TokenModel) -> None:
        hidden = model.hidden

        def spoil(step: Step) -> Tensor:
            if step.features is not None:
                changed = change(list(step.features.levels))
                step = replace(step, features=replace(step.features, levels=changed))
            return hidden(step)

        model.hidden = spoil  # type: ignore[method-assign]

    return apply


def early_norm(model: nn.TokenModel) -> None:
    """Norm patches instead of cells in deepstack mergers."""

    def spoil(merger: LevelMerger) -> None:
        norm, width = cast(nn.LayerNorm, merger.norm), merger.width // merger.cell
        plain = nn.LayerNorm(width, norm.eps)
        plain.weight, plain.bias = (nn.Parameter(w.data[:width]) for w in (norm.weight, norm.bias))
        merger.gather = lambda x: plain(x)[0].view(-1, merger.width)  # type: ignore[method-assign]

    each(model, LevelMerger, spoil)


def early_layers(model: nn.TokenModel) -> None:
    """Take the deepstack features of other layers."""
    model.visual.speaking = tuple(i + 1 for i in model.visual.speaking)


def no_activation(model: nn.TokenModel) -> None:
    def spoil(mlp: nn.MLP) -> None:
        mlp.forward = lambda x, step: mlp.fc2(mlp.fc1(x, step), step)  # type: ignore[method-assign]

    each(model, nn.MLP, spoil)


def layer_norm_eps(model: nn.TokenModel) -> None:
    each(model, nn.LayerNorm, lambda norm: setattr(norm, "eps", 0.1))


def tower_mutants() -> Iterator[Mutant]:
    """The mutants of this vision encoder without deepstack features, and of interleaved mrope."""
    yield from vision_mutants()
    yield Mutant(name="text: sections one after the other", apply=chunked)
    yield Mutant(name="tower: no learned positions", apply=no_positions)
    yield Mutant(name="tower: learned positions cut off", apply=other_corners)
    yield Mutant(name="tower: another epsilon in the norms", apply=layer_norm_eps, std=SMALL)
    yield Mutant(name="tower: no activation", apply=no_activation)


def mutants() -> Iterator[Mutant]:
    yield from tower_mutants()
    yield Mutant(name="levels: none", apply=levels(lambda features: []))
    yield Mutant(name="levels: in another order", apply=levels(lambda features: features[::-1]))
    yield Mutant(name="levels: of other layers", apply=early_layers)
    yield Mutant(name="levels: single patches normed", apply=early_norm)
