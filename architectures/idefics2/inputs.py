"""Idefics 2's inputs: four quarters of an image and the whole, each of any size.

Reference classes Idefics2ImageProcessorPil and Idefics2Processor of transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import msgspec
import numpy as np

from ostro import Array, Item, Prompt, content_key
from ostro.architectures.idefics3 import FAKE
from ostro.architectures.idefics3 import inputs as idefics3
from ostro.architectures.siglip import pixels
from ostro.architectures.siglip.pixels import Pixels, check_area, resize
from ostro.errors import ConfigError, RequestError

EDGES = {"shortest_edge": 378, "longest_edge": 980}


class Preprocessor(pixels.Preprocessor, frozen=True, kw_only=True):
    """The preprocessor settings; `size` limits both sides of a tile.

    `do_pad` pads the images of a batch and does not change the result.
    """

    size: dict[str, int] = msgspec.field(default_factory=lambda: dict(EDGES))
    resample: int = 2
    do_image_splitting: bool = False

    def refusal(self) -> str | None:
        for name in ("do_resize", "do_rescale", "do_normalize"):
            if not getattr(self, name):
                return f"{name}=false is not implemented"
        if self.do_center_crop:
            return "do_center_crop=true is not implemented"
        if {*self.size} != {*EDGES} or not 0 < min(self.size.values()):
            return f"size={self.size} is not implemented; expected {' and '.join(EDGES)}"
        if max(self.size.values()) >= 1 << 16:
            return f"size={self.size} is too large"
        return "image_std is not positive" if min(self.image_std) <= 0 else None

    def tiles(self, pixels: Pixels) -> list[Pixels]:
        """The quarters of an image and the whole, or the whole alone, resized."""
        height, width = pixels.shape[:2]
        parts = [pixels]
        if self.do_image_splitting:
            if min(height, width) < 2:
                raise RequestError(
                    "an image of one pixel on a side cannot be split; enlarge it", param="messages"
                )
            y, x = height // 2, width // 2
            parts = [pixels[:y, :x], pixels[:y, x:], pixels[y:, :x], pixels[y:, x:], pixels]
        sizes = [self.fit(part.shape[0], part.shape[1]) for part in parts]
        for size in sizes:
            check_area(*size)
        return [resize(part, *size, self.resample) for part, size in zip(parts, sizes, strict=True)]

    def fit(self, height: int, width: int) -> tuple[int, int]:
        """The size of a tile between the shortest and the longest edge."""
        least, most, ratio = self.size["shortest_edge"], self.size["longest_edge"], width / height
        if width >= height and width > most:
            height, width = int(most / ratio), most
        elif height > width and height > most:
            height, width = most, int(most * ratio)
        return max(height, least), max(width, least)


class Inputs(idefics3.Inputs):
    """Images as items with the arrays "pixels" [tiles, 3, height, width] float32, padded with
    zeros to the largest tile, and "sizes" [tiles, 2] int64.
    """

    image_token = 32001

    @property
    def rows(self) -> int:
        perceiver = self.raw.get("perceiver_config") or {}
        return int(perceiver.get("resampler_n_latents", 64))

    @cached_property
    def settings(self) -> Preprocessor:
        found = Preprocessor.read(self.folder)
        if min(found.size.values()) < (patch := int(self.vision.get("patch_size", 32))):
            raise ConfigError(
                f"{self.folder}: the preprocessor's size={found.size} is less than "
                f"patch_size={patch}"
            )
        return found

    @property
    def split(self) -> int:
        """The rows and columns of quarters, 0 without them."""
        return 2 * self.settings.do_image_splitting

    def image_tokens(self, width: int, height: int) -> int:
        """The tokens of an image after another one, with which it shares a token."""
        return len(self.tokens(self.split, self.split)) - 1

    def image(self, pixels: Pixels) -> Item:
        tiles = self.settings.tiles(pixels)
        sizes = np.array([tile.shape[:2] for tile in tiles], np.int64)
        values = np.zeros((len(tiles), 3, *sizes.max(0)), np.float32)
        for out, tile in zip(values, tiles, strict=True):
            out[:, : tile.shape[0], : tile.shape[1]] = self.settings.normalise(tile)
        patch = int(self.vision.get("patch_size", 32))
        return Item(
            kind="image",
            key=content_key("sizes", values, sizes),
            arrays={"pixels": Array.of(values), "sizes": Array.of(sizes)},
            cost=int((sizes // patch).prod(1).sum()),
            tokens=tuple(self.tokens(self.split, self.split)),
            pad=self.placeholders["image"],
        )

    def parts(self, rows: int, columns: int) -> Iterator[str]:
        """The text of an image: one token separates and surrounds its tiles."""
        for _ in range(rows * columns + 1):
            yield from (FAKE, *[idefics3.IMAGE] * self.rows)
        yield FAKE

    def expand_placeholders(self, tokens: Sequence[int], items: Sequence[Item]) -> Prompt:
        """As the base class; one token separates adjacent images."""
        mark, found, before = self.placeholders["image"], list(items), None
        places = iter(range(len(found)))
        for token in tokens:
            place = next(places, None) if token == mark else None
            if place is not None and before == mark:
                item = found[place]
                found[place] = msgspec.structs.replace(item, tokens=item.tokens[1:])
            before = token
        return super().expand_placeholders(tokens, found)
