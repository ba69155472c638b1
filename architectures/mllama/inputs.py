"""What Mllama makes of images: tiles, of which there are as many as the image's shape asks for.

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
"""The rows of a tile are padded to a multiple of so many."""

Cut = tuple[int, int]


class Preprocessor(pixels.Preprocessor, frozen=True, kw_only=True):
    """With the defaults of Mllama; `size` is that of a tile."""

    resample: int = 2
    do_pad: bool = True
    max_image_tiles: int = 4
    pads: ClassVar[bool] = True

    def tiles(self, pixels: Pixels, cuts: Sequence[Cut]) -> tuple[Floats, Cut]:
        """uint8 [height, width, 3] -> [tiles, 3, size, size], and their rows and columns."""
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
    """The cut that enlarges an image [height, width] least, or else shrinks it least; of equals the
    smallest.
    """
    scales = [min(r * size / shape[0], c * size / shape[1]) for r, c in cuts]
    enlarging = [scale for scale in scales if scale >= 1]
    best = min(enlarging) if enlarging else max(scales)
    equals = [cut for cut, scale in zip(cuts, scales, strict=True) if scale == best]
    return min(equals, key=lambda cut: cut[0] * cut[1])


def fit(shape: Sequence[int], canvas: Sequence[int], size: int) -> tuple[int, int]:
    """The height and width of an image within a canvas, its shape kept; a side below a tile's is
    enlarged as far as the other side lets it.
    """
    (height, width), (high, wide) = shape, canvas
    high, wide = min(max(height, size), high), min(max(width, size), wide)
    down, across = high / height, wide / width
    if across < down:
        return min(floor(height * across) or 1, high), wide
    return high, min(floor(width * down) or 1, wide)


class Inputs(llava.Inputs):
    """Images as items that layers look at, whose arrays are "pixels" [tiles, 3, size, size] float32
    and "ratio" [1] int64.
    """

    settings = Preprocessor
    image_token, image_size, patch_size = 128256, 448, 14

    @property
    def cuts(self) -> list[Cut]:
        """Rows and columns of tiles that an image may be cut into."""
        most = int(self.vision.get("max_num_tiles", 4))
        every = [(r, c) for r in range(1, most + 1) for c in range(1, most // r + 1)]
        return [(r, c) for r, c in self.vision.get("supported_aspect_ratios") or every]

    def image(self, pixels: Pixels) -> Item:
        made = self.preprocessor
        assert isinstance(made, Preprocessor)
        most = int(self.vision.get("max_num_tiles", 4))
        if made.max_image_tiles > most:
            raise ConfigError(
                f"{find(self.folder)[0]}: max_image_tiles={made.max_image_tiles}, where "
                f"config.json says max_num_tiles={most}"
            )
        tiles, cut = made.tiles(pixels, self.cuts)
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

    def place(self, tokens: Sequence[int], items: Sequence[Item]) -> Prompt:
        """As the base does; an image is seen from its token on.

        Raises RequestError for images that follow each other without text, since a row sees one.
        """
        prompt, image = super().place(tokens, items), self.placeholders["image"]
        firsts = [i for i, token in enumerate(prompt.tokens) if token == image]
        if any(b - a == 1 for a, b in pairwise(firsts)):
            raise RequestError(
                "this model looks at one image at a time, and two follow each other; put a word "
                "between them",
                param="messages",
            )
        placed = zip(prompt.items, firsts, strict=True)
        return replace(prompt, items=[replace(item, since=first) for item, first in placed])
