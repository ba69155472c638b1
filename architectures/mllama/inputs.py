"""Mllama's inputs: images split into tiles according to their shape.

Reference class MllamaImageProcessorPil of transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import floor
from typing import ClassVar

import numpy as np
from msgspec.structs import replace

from ostro import Array, Item, Prompt, content_key
from ostro.architectures.llava import inputs as llava
from ostro.architectures.siglip import pixels
from ostro.architectures.siglip.pixels import Floats, Pixels, find, resize
from ostro.errors import ConfigError, RequestError

GROUP = 8
"""The rows of a tile are padded to a multiple of this."""

Cut = tuple[int, int]


class Preprocessor(pixels.Preprocessor, frozen=True, kw_only=True):
    """The preprocessor settings, with Mllama's defaults; `size` is that of a tile."""

    resample: int = 2
    do_pad: bool = True
    max_image_tiles: int = 4
    pads: ClassVar[bool] = True

    def tiles(self, pixels: Pixels, cuts: Sequence[Cut]) -> tuple[Floats, Cut]:
        """uint8 [height, width, 3] -> [tiles, 3, size, size], and the tiling (rows, columns)."""
        size, shape = self.size["height"], pixels.shape[:2]
        rows, columns = cut = choose(
            [c for c in cuts if c[0] * c[1] <= self.max_image_tiles], shape, size
        )
        height, width = fit(shape, (rows * size, columns * size), size)
        canvas = np.zeros((rows * size, columns * size, 3), np.uint8)
        canvas[:height, :width] = resize(pixels, height, width, self.resample)
        values = self.normalise(canvas).reshape(3, rows, size, columns, size)
        return values.transpose(1, 3, 0, 2, 4).reshape(-1, 3, size, size), cut


def choose(cuts: Sequence[Cut], shape: Sequence[int], size: int) -> Cut:
    """The tiling with the smallest upscaling of an image [height, width], else with the smallest
    downscaling; the smallest of equals.
    """
    scales = [min(r * size / shape[0], c * size / shape[1]) for r, c in cuts]
    enlarging = [scale for scale in scales if scale >= 1]
    best = min(enlarging) if enlarging else max(scales)
    equals = [cut for cut, scale in zip(cuts, scales, strict=True) if scale == best]
    return min(equals, key=lambda cut: cut[0] * cut[1])


def fit(shape: Sequence[int], canvas: Sequence[int], size: int) -> tuple[int, int]:
    """The height and width of an image within a canvas, with its aspect ratio; small images are
    enlarged to the size of a tile if the canvas allows it.
    """
    (height, width), (high, wide) = shape, canvas
    high, wide = min(max(height, size), high), min(max(width, size), wide)
    down, across = high / height, wide / width
    if across < down:
        return min(floor(height * across) or 1, high), wide
    return high, min(floor(width * down) or 1, wide)


class Inputs(llava.Inputs):
    """Images as items of cross attention, with the arrays "pixels" [tiles, 3, size, size] float32
    and "ratio" [1] int64.
    """

    settings = Preprocessor
    image_token, image_size, patch_size = 128256, 448, 14

    @property
    def cuts(self) -> list[Cut]:
        """The supported tilings (rows, columns) of an image."""
        most = int(self.vision.get("max_num_tiles", 4))
        every = [(r, c) for r in range(1, most + 1) for c in range(1, most // r + 1)]
        return [(r, c) for r, c in self.vision.get("supported_aspect_ratios") or every]

    def image_tokens(self, width: int, height: int) -> int:
        return 1

    def image(self, pixels: Pixels) -> Item:
        preprocessor = self.preprocessor
        assert isinstance(preprocessor, Preprocessor)
        most = int(self.vision.get("max_num_tiles", 4))
        if preprocessor.max_image_tiles > most:
            raise ConfigError(
                f"{find(self.folder)[0]}: max_image_tiles={preprocessor.max_image_tiles}, but "
                f"config.json has max_num_tiles={most}"
            )
        tiles, cut = preprocessor.tiles(pixels, self.cuts)
        ratio = np.array([1 + self.cuts.index(cut)], np.int64)
        rows = 1 + self.patches
        return Item(
            kind="image",
            key=content_key("mllama", tiles, ratio),
            arrays={"pixels": Array.of(tiles), "ratio": Array.of(ratio)},
            length=len(tiles) * rows,
            cost=most * -(-rows // GROUP) * GROUP,
            tokens=(self.placeholders["image"],),
        )

    def expand_placeholders(self, tokens: Sequence[int], items: Sequence[Item]) -> Prompt:
        """As the base class; rows attend to an image from its placeholder on.

        Raises RequestError for adjacent images without text, since a row attends to one image.
        """
        prompt, image = super().expand_placeholders(tokens, items), self.placeholders["image"]
        firsts = [i for i, token in enumerate(prompt.tokens) if token == image]
        if any(b - a == 1 for a, b in pairwise(firsts)):
            raise RequestError(
                "this model attends to one image at a time; put text between adjacent images",
                param="messages",
            )
        placed = zip(prompt.items, firsts, strict=True)
        return replace(prompt, items=[replace(item, since=first) for item, first in placed])
