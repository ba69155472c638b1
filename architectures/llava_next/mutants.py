"""Mutants of LLaVA-NeXT: porting bugs that its parity test must detect."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch.nn.functional as F
from torch import Tensor

from ostro import Medium, Mutant
from ostro.architectures.llava import mutants as llava
from ostro.architectures.llava_next.model import Model, VideoModel

LLAVA = ("the class token kept",)
"""Mutants of LLaVA that do not apply to tiles."""


def no_newline(model: Model) -> None:
    model.image_newline.data.zero_()


def newline_first(model: Model) -> None:
    """Place the newline before each row."""
    lines = model.lines

    def spoil(grid: Tensor) -> Tensor:
        columns = grid.shape[1] + 1
        return lines(grid).unflatten(0, (-1, columns)).roll(1, 1).flatten(0, 1)

    model.lines = spoil  # type: ignore[method-assign]


def joined(change: Callable[[Medium, Tensor], Tensor]) -> Callable[[Model], None]:
    """Change the tiles [1 + n, rows, d] before they are joined."""

    def apply(model: Model) -> None:
        join = model.join
        model.join = lambda medium, x: join(medium, change(medium, x))  # type: ignore[method-assign]

    return apply


def whole_last(model: Model) -> None:
    """Place the whole image after its tiles."""
    join, count = model.join, model.side**2
    model.join = lambda medium, x: join(medium, x).roll(-count, 0)  # type: ignore[method-assign]


def tile_by_tile(model: Model) -> None:
    """Read the patches of one tile after the other."""

    def spoil(medium: Medium, x: Tensor) -> Tensor:
        if medium.kind == "video" or len(x) == 1:
            return x
        rows, columns, *_ = medium.arrays["grid"].tolist()
        shape = rows, model.side, columns, model.side
        tiles = x[1:].flatten(0, 1).view(*shape, -1).transpose(1, 2).flatten(0, 1).flatten(1, 2)
        return F.pad(tiles, (0, 0, 0, 0, 1, 0)) + F.pad(x[:1], (0, 0, 0, 0, 0, len(tiles)))

    joined(spoil)(model)


def mutants() -> Iterator[Mutant]:
    yield from (mutant for mutant in llava.mutants() if mutant.name not in LLAVA)
    yield Mutant(name="tiles: no newline", apply=no_newline)
    yield Mutant(name="tiles: newlines before rows", apply=newline_first)
    yield Mutant(name="tiles: the whole image last", apply=whole_last)
    yield Mutant(name="tiles: in reverse", apply=joined(lambda medium, x: x.flip(0)))
    yield Mutant(name="tiles: one after the other", apply=tile_by_tile)


def max_pooling(model: VideoModel) -> None:
    model.pooling = F.max_pool2d


def frames_reversed(medium: Medium, x: Tensor) -> Tensor:
    return x.flip(0) if medium.kind == "video" else x


def video_mutants() -> Iterator[Mutant]:
    yield from mutants()
    yield Mutant(name="video: maximum instead of mean", apply=max_pooling)
    yield Mutant(name="video: frames in reverse", apply=joined(frames_reversed))
