"""Phi-3-vision's inputs: the whole image, then its tiles row by row.

An image is scaled to the largest number of tiles of its shape, and centred on white. The published
chat templates write text only; a template for images writes <|image|> for each.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import ClassVar

import numpy as np

from ostro import Array, Item, content_key
from ostro.architectures.llava import inputs as llava
from ostro.architectures.siglip import pixels
from ostro.architectures.siglip.pixels import Floats, Pixels, Triple, resize
from ostro.errors import RequestError

MAX_TILES = 64
"""The largest num_crops."""

BILINEAR = 2
"""Pillow's number of the resampling method."""

TAPS = (-0.09375, 0.59375, 0.59375, -0.09375)
"""The weights of the four samples around a midpoint in cubic convolution with a = -0.75."""


class Preprocessor(pixels.Preprocessor, frozen=True, kw_only=True):
    """The preprocessor settings. num_crops: the most tiles of an image besides the whole."""

    image_mean: Triple = (0.48145466, 0.4578275, 0.40821073)
    image_std: Triple = (0.26862954, 0.26130258, 0.27577711)
    num_crops: int = 1

    def refusal(self) -> str | None:
        if not 0 < self.num_crops <= MAX_TILES:
            return f"num_crops={self.num_crops} is not within 1..{MAX_TILES}"
        for name in ("do_resize", "do_rescale", "do_normalize"):
            if not getattr(self, name):
                return f"{name}=false is not implemented"
        if self.do_center_crop or self.do_pad:
            return "do_center_crop=true and do_pad=true are not implemented"
        return "image_std is not positive" if min(self.image_std) <= 0 else None

    def canvas(self, pixels: Pixels, side: int) -> Pixels:
        """An image scaled to whole tiles: uint8 [rows * side, columns * side, 3]."""
        if pixels.shape[1] < pixels.shape[0]:
            turned = np.ascontiguousarray(pixels.swapaxes(0, 1))
            return self.canvas(turned, side).swapaxes(0, 1)
        height, width = self.scaled(pixels.shape[0], pixels.shape[1], side)
        out = np.full((math.ceil(height / side) * side, width, 3), 255, np.uint8)
        top = (len(out) - height) // 2
        out[top : top + height] = resize(pixels, height, width, BILINEAR)
        return out

    def scaled(self, height: int, width: int, side: int) -> tuple[int, int]:
        """The size of an image, as wide as high at least, that is scaled to whole tiles."""
        ratio = width / height
        columns = self.columns(ratio)
        width, height = columns * side, int(columns * side / ratio)
        if height < 1:
            raise RequestError("an image is too narrow for tiles; crop it", param="messages")
        return height, width

    def grid(self, height: int, width: int, side: int) -> tuple[int, int]:
        """The rows and columns of tiles of an image of that size in pixels."""
        if width < height:
            rows, columns = self.grid(width, height, side)
            return columns, rows
        height, width = self.scaled(height, width, side)
        return math.ceil(height / side), width // side

    def columns(self, ratio: float) -> int:
        """The tiles along the longer side of an image that is `ratio` times as long as short."""
        numbers = range(self.num_crops, 0, -1)
        return next(n for n in numbers if n * math.ceil(n / ratio) <= self.num_crops)


def reduced(values: Floats, axis: int, by: int) -> Floats:
    """One sample of each run of `by` along an axis, by cubic convolution at its middle."""
    if by % 2:
        return values.take(np.arange(by // 2, values.shape[axis], by), axis)
    middles = np.arange(by // 2, values.shape[axis], by)
    last = values.shape[axis] - 1
    parts = [
        values.take((middles + i).clip(0, last), axis) * np.float32(weight)
        for i, weight in enumerate(TAPS, -2)
    ]
    return sum(parts[1:], parts[0])


class Inputs(llava.Inputs):
    """Images as items with the arrays "pixels" [1 + tiles, 3, S, S] float32, the whole image first,
    and "grid" [2] int64: the rows and columns of tiles.
    """

    settings = Preprocessor
    image_token: ClassVar[int] = 32044
    image_size: ClassVar[int] = 336
    patch_size: ClassVar[int] = 14

    @cached_property
    def preprocessor(self) -> Preprocessor:
        return Preprocessor.read(self.folder)

    def count(self, rows: int, columns: int) -> int:
        """The number of tokens of an image of so many tiles."""
        cells = self.across // 2
        return (rows * columns + 1) * cells**2 + (rows + 1) * cells + 1

    def image_tokens(self, width: int, height: int) -> int:
        return self.count(*self.preprocessor.grid(height, width, self.side))

    def image(self, pixels: Pixels) -> Item:
        side, settings = self.side, self.preprocessor
        values = settings.normalise(settings.canvas(pixels, side))
        rows, columns = values.shape[1] // side, values.shape[2] // side
        whole = reduced(reduced(values, 2, columns), 1, rows)
        tiles = values.reshape(3, rows, side, columns, side).transpose(1, 3, 0, 2, 4)
        stacked = np.concatenate((whole[None], tiles.reshape(-1, 3, side, side)))
        grid, pad = np.array([rows, columns], np.int64), self.placeholders["image"]
        return Item(
            kind="image",
            key=content_key("phi3_v", stacked, grid),
            arrays={"pixels": Array.of(stacked), "grid": Array.of(grid)},
            cost=len(stacked) * (1 + self.patches),
            tokens=(pad,) * self.count(rows, columns),
            pad=pad,
        )
