"""Mutants of Phi-3-vision: porting bugs that its parity test must detect."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ostro import Medium, Mutant, Step
from ostro.architectures.clip.mutants import vision
from ostro.architectures.llava.mutants import TOWER, rows_late
from ostro.architectures.phi3_v.model import ImageEmbedding, Model
from ostro.testing import each


def embedding(change: Callable[[ImageEmbedding], object]) -> Callable[[Model], None]:
    """Change the module of images."""

    def apply(model: Model) -> None:
        each(model, ImageEmbedding, change)

    return apply


def whole_first(module: ImageEmbedding) -> None:
    def order(tiles: Tensor, separator: Tensor, whole: Tensor) -> Tensor:
        return torch.cat((whole, separator, tiles))

    module.order = order  # type: ignore[method-assign]


def cells_by_columns(module: ImageEmbedding) -> None:
    """Read the four patches of a cell column by column."""

    def gather(x: Tensor) -> Tensor:
        grid = x.unflatten(1, (module.cells, 2, module.cells, 2))
        return grid.permute(0, 1, 3, 4, 2, 5).flatten(3)

    module.gather = gather  # type: ignore[method-assign]


def separators_first(module: ImageEmbedding) -> None:
    lines = module.lines

    def spoil(grid: Tensor) -> Tensor:
        return lines(grid).unflatten(0, (len(grid), -1)).roll(1, 1).flatten(0, 1)

    module.lines = spoil  # type: ignore[method-assign]


def tile_by_tile(module: ImageEmbedding) -> None:
    """Read the tiles of a row of tiles column by column."""
    join = module.join

    def spoil(medium: Medium, x: Tensor) -> Tensor:
        rows, columns = medium.arrays["grid"].tolist()
        turned = x[1:].unflatten(0, (columns, rows)).transpose(0, 1).flatten(0, 1)
        return join(medium, torch.cat((x[:1], turned)))

    module.join = spoil  # type: ignore[method-assign]


def layer_before(module: ImageEmbedding) -> None:
    tower = module.img_processor.vision_model
    forward = tower.forward
    tower.forward = lambda pixels, step: forward(pixels, step)[:-1]  # type: ignore[method-assign]


def class_token_kept(module: ImageEmbedding) -> None:
    """Keep the class token, and omit the last patch."""
    processor = module.img_processor

    def spoil(pixels: Tensor, step: Step) -> Tensor:
        found: Tensor = processor.vision_model(pixels, step)[-1][:, :-1]
        return found

    processor.forward = spoil  # type: ignore[method-assign]


MUTANTS: dict[str, Callable[[ImageEmbedding], object]] = {
    "no separator after lines": lambda m: m.sub_GN.data.zero_(),
    "no separator before the whole image": lambda m: m.glb_GN.data.zero_(),
    "separators before lines": separators_first,
    "the whole image first": whole_first,
    "cells column by column": cells_by_columns,
    "tiles column by column": tile_by_tile,
    "features of the layer before": layer_before,
    "the class token kept": class_token_kept,
    "relu in the projection": lambda m: setattr(m.img_projection, "act", torch.relu),
}


def mutants() -> Iterator[Mutant]:
    yield from (mutant for mutant in vision() if mutant.name in TOWER)
    for name, change in MUTANTS.items():
        yield Mutant(name=name, apply=embedding(change))
    yield Mutant(name="features one row late", apply=rows_late)
