"""Mutants of qwen2_5_vl: porting bugs that its parity test must detect, with images and a video in
the prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ostro import Mutant, Step, nn
from ostro.architectures.qwen2_5_vl.vision import Attention, AxialRope, Merger, Tower
from ostro.testing import each, no_bias

ChangePositions = Callable[[Tensor], Tensor]


def tower_scale(model: nn.TokenModel) -> None:
    each(model, Attention, lambda a: setattr(a, "scale", a.scale * 1.1))


def rope_positions(change: ChangePositions, kind: type[nn.Rope]) -> Callable[[nn.TokenModel], None]:
    """Change the positions [c, T] of ropes of a class."""

    def spoil(rope: nn.Rope) -> None:
        forward = rope.forward
        if type(rope) is kind:
            rope.forward = lambda q, k, positions: forward(q, k, change(positions))  # type: ignore[method-assign]

    return lambda model: each(model, nn.Rope, spoil)


def one_frequency(model: nn.TokenModel) -> None:
    """Rotate columns with the frequencies that follow those of rows."""

    def spoil(rope: AxialRope) -> None:
        nn.Rope.finalize(rope, rope.context, rope.table.device)

    each(model, AxialRope, spoil)


def see_all(model: nn.TokenModel) -> None:
    """Attend across frames."""

    def spoil(attention: Attention) -> None:
        forward = attention.forward

        def blind(x: Tensor, step: Step) -> Tensor:
            return forward(x, replace(step, bounds=[0, len(x)]))

        attention.forward = blind  # type: ignore[method-assign]

    each(model, Attention, spoil)


def stripes(model: nn.TokenModel) -> None:
    """Concatenate the patches of a cell in another order."""

    def spoil(merger: Merger) -> None:
        gather = merger.gather
        merger.gather = lambda x: gather(x.unflatten(0, (-1, merger.cell)).flip(1).flatten(0, 1))  # type: ignore[method-assign]

    each(model, Merger, spoil)


def no_gelu(model: nn.TokenModel) -> None:
    def spoil(merger: Merger) -> None:
        def forward(x: Tensor, step: Step) -> Tensor:
            return merger.linear_fc2(torch.relu(merger.linear_fc1(merger.gather(x), step)), step)

        merger.forward = forward  # type: ignore[method-assign]

    each(model, Merger, spoil)


def sections(model: nn.TokenModel) -> None:
    """Exchange the sizes of mrope sections."""

    def spoil(rope: nn.Rope) -> None:
        if type(rope) is nn.Rope and rope.sections:
            rope.sections = rope.sections[1:] + rope.sections[:1]
            rope.finalize(rope.context, rope.table.device)

    each(model, nn.Rope, spoil)


def features_late(model: nn.TokenModel) -> None:
    """Place features one row too late."""
    embed = model.embed

    def spoil(step: Step) -> Tensor:
        if step.features is not None:
            rows = (step.features.rows + 1).clamp(max=len(step.tokens) - 1)
            step = replace(step, features=replace(step.features, rows=rows))
        return embed(step)

    model.embed = spoil  # type: ignore[method-assign]


def vision_mutants() -> Iterator[Mutant]:
    """The mutants of all vision encoders of this family."""
    swap, first = (lambda at: at.flip(0)), (lambda at: at[:1].expand_as(at))
    yield Mutant(name="tower: scores scaled by 1.1", apply=tower_scale)
    yield Mutant(name="tower: rows and columns exchanged", apply=rope_positions(swap, AxialRope))
    yield Mutant(name="tower: no rope on columns", apply=rope_positions(first, AxialRope))
    yield Mutant(name="tower: other frequencies for columns", apply=one_frequency)
    yield Mutant(name="tower: attention across frames", apply=see_all)
    yield Mutant(name="tower: a cell's patches in another order", apply=stripes)
    yield Mutant(name="tower: another activation in the merger", apply=no_gelu)
    yield Mutant(name="text: time is the only position", apply=rope_positions(first, nn.Rope))
    yield Mutant(name="text: rows and time exchanged", apply=rope_positions(swap, nn.Rope))
    yield Mutant(name="text: sections of other sizes", apply=sections)
    yield Mutant(name="features one row late", apply=features_late)


def windows_nowhere(model: nn.TokenModel) -> None:
    each(model, Tower, lambda tower: setattr(tower, "whole", range(len(tower.blocks))))


def windows_everywhere(model: nn.TokenModel) -> None:
    each(model, Tower, lambda tower: setattr(tower, "whole", ()))


def window(by: int) -> Callable[[nn.TokenModel], None]:
    return lambda model: each(model, Tower, lambda t: setattr(t, "window", t.window + by))


def mutants() -> Iterator[Mutant]:
    yield from vision_mutants()
    yield Mutant(name="no biases on q, k, v", apply=no_bias)
    yield Mutant(name="tower: windows everywhere", apply=windows_everywhere)
    yield Mutant(name="tower: windows nowhere", apply=windows_nowhere)
    yield Mutant(name="tower: windows one cell wider", apply=window(1))
    yield Mutant(name="tower: windows one cell narrower", apply=window(-1))
