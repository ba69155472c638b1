"""LLaVA-OneVision's inputs: tiles of a single image, squares of several, videos."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec
import numpy as np

from ostro import Array, Item, Prompt
from ostro.architectures.llava.inputs import square
from ostro.architectures.llava_next import inputs as llava_next
from ostro.architectures.llava_next.tiles import Size, limited
from ostro.architectures.siglip import pixels
from ostro.architectures.siglip.pixels import Pixels, resize
from ostro.errors import ConfigError

SIDES = (384, 768, 1152, 1536, 1920, 2304)
PREFIX = "anyres_max_"
ORIGINAL = "original"
"""The array with the pixels of an image until the number of images is known."""


def tiles_of(ratio: str) -> int:
    """The tiles to which the features of all tiles are scaled down. Raises ConfigError."""
    number = ratio.removeprefix(PREFIX)
    if number == ratio or not number.isascii() or not number.isdigit() or not 0 < int(number) < 999:
        raise ConfigError(
            f"vision_aspect_ratio={ratio!r:.80} is not implemented; expected {PREFIX}9"
        )
    return int(number)


class Preprocessor(llava_next.Preprocessor, frozen=True, kw_only=True):
    """The preprocessor settings, with LLaVA-OneVision's defaults."""

    size: dict[str, int] = msgspec.field(default_factory=lambda: {"height": 384, "width": 384})
    do_center_crop: bool = False
    image_grid_pinpoints: tuple[Size, ...] = tuple((h, w) for h in SIDES for w in SIDES)


class Inputs(llava_next.Videos, llava_next.Inputs):
    """Images as items with the arrays of LLaVA-NeXT. Of several images in a prompt each is one
    square, padded with the mean colour, with a grid of zeros.
    """

    settings: ClassVar[type[pixels.Preprocessor]] = Preprocessor
    video_settings: ClassVar[type[llava_next.Preprocessor]] = Preprocessor
    image_token: ClassVar[int] = 151646
    video_token: ClassVar[int] = 151647
    patch_size: ClassVar[int] = 16

    def joined(self, rows: int, columns: int) -> Size:
        most = tiles_of(str(self.raw.get("vision_aspect_ratio", f"{PREFIX}9")))
        return limited((rows, columns), most * self.patches)

    def image_tokens(self, width: int, height: int) -> int:
        """The tokens of one of several images; the only one of a prompt has more."""
        return self.patches + 1

    def image(self, pixels: Pixels) -> Item:
        item = super().image(pixels)
        return msgspec.structs.replace(item, arrays={**item.arrays, ORIGINAL: Array.of(pixels)})

    def expand_placeholders(self, tokens: Sequence[int], items: Sequence[Item]) -> Prompt:
        """As the base class, with tiles for an image that is the only one."""
        several = sum(item.kind == "image" for item in items) > 1
        # Equal items share their arrays, which are read once.
        distinct = {item.key: item for item in items}
        formed = {key: self.form(item, several) for key, item in distinct.items()}
        return super().expand_placeholders(tokens, [formed[item.key] for item in items])

    def form(self, item: Item, several: bool) -> Item:
        """An item as one of several images, or as the only one."""
        arrays = dict(item.arrays)
        original = arrays.pop(ORIGINAL, None)
        if original is None or not several:
            return msgspec.structs.replace(item, arrays=arrays)
        settings, side = self.preprocessor, self.side
        whole = resize(square(original.numpy(), settings.image_mean), side, side, settings.resample)
        grid = np.zeros(4, np.int64)
        values = settings(whole)[None]
        return llava_next.item_of(self, "image", self.patches + 1, pixels=values, grid=grid)

    def video_rows(self, frames: int) -> int:
        return frames * (-(-self.across // 2)) ** 2 + 1
