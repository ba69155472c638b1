"""Idefics 3's inputs: the tiles of an image, row by row, and the whole image last.

Reference classes Idefics3ImageProcessorPil and Idefics3Processor of transformers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar

import msgspec
import numpy as np
from tokenizers import Tokenizer

import ostro
from ostro import Array, Item, content_key
from ostro.architectures.idefics3 import FAKE, WHOLE
from ostro.architectures.siglip import pixels
from ostro.architectures.siglip.pixels import Pixels, check_area, resize
from ostro.checkpoints import read_regular
from ostro.errors import ConfigError, RequestError, TokenizerError

LONGEST = 4096
"""The longest side in pixels of a resized image."""

IMAGE = "<image>"


class Preprocessor(pixels.Preprocessor, frozen=True, kw_only=True):
    """The preprocessor settings; `max_image_size` has the side of tiles.

    `do_pad` pads the images of a batch and does not change the result.
    """

    size: dict[str, int] = msgspec.field(default_factory=lambda: {"longest_edge": 4 * 364})
    max_image_size: dict[str, int] = msgspec.field(default_factory=lambda: {"longest_edge": 364})
    resample: int = 1
    do_image_splitting: bool = True

    def refusal(self) -> str | None:
        for name in ("do_resize", "do_rescale", "do_normalize"):
            if not getattr(self, name):
                return f"{name}=false is not implemented"
        if self.do_center_crop:
            return "do_center_crop=true is not implemented"
        for name in ("size", "max_image_size"):
            value = getattr(self, name)
            if {*value} != {"longest_edge"} or not 0 < value["longest_edge"] < 1 << 16:
                return f"{name}={value} is not implemented; expected longest_edge"
        return "image_std is not positive" if min(self.image_std) <= 0 else None

    @property
    def side(self) -> int:
        """The side of a tile in pixels."""
        return self.max_image_size["longest_edge"]

    def split(self, pixels: Pixels) -> tuple[list[Pixels], tuple[int, int]]:
        """The tiles of an image, row by row, then the whole; the number of rows and columns.

        An image of one tile has no rows.
        """
        side, method = self.side, self.resample
        size, (rows, columns) = self.layout(*pixels.shape[:2])
        pixels = resize(pixels, *size, method)
        if not rows:
            return [resize(pixels, side, side, method)], (0, 0)
        pixels = resize(pixels, rows * side, columns * side, method)
        tiles = pixels.reshape(rows, side, columns, side, 3).swapaxes(1, 2)
        whole = resize(pixels, side, side, method)
        return [*tiles.reshape(-1, side, side, 3), whole], (rows, columns)

    def layout(self, height: int, width: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """The size of an image before it is cut, and its rows and columns of tiles.

        An image of one tile has no rows.
        """
        size = target(height, width, self.size["longest_edge"])
        check_area(*size)
        if not self.do_image_splitting:
            return size, (0, 0)
        height, width = multiple(*size, self.side)
        if min(height, width) < 1:
            raise RequestError("an image is too narrow for tiles; crop it", param="messages")
        check_area(height, width)
        if max(height, width) <= self.side:
            return size, (0, 0)
        return size, (height // self.side, width // self.side)


def target(height: int, width: int, edge: int) -> tuple[int, int]:
    """The size of an image whose longer side is scaled to `edge`, then limited to LONGEST."""
    ratio = width / height
    if width >= height:
        width, height = edge, int(edge / ratio)
        height += height % 2
    else:
        height, width = edge, int(edge * ratio)
        width += width % 2
    height, width = max(height, 1), max(width, 1)
    ratio = width / height
    if width >= height and width > LONGEST:
        width, height = LONGEST, int(LONGEST / ratio)
    elif height > width and height > LONGEST:
        height, width = LONGEST, int(LONGEST * ratio)
    return max(height, 1), max(width, 1)


def multiple(height: int, width: int, side: int) -> tuple[int, int]:
    """The size of an image that is scaled to whole tiles, by its longer side first."""
    ratio = width / height
    if width >= height:
        width = math.ceil(width / side) * side
        return math.ceil(int(width / ratio) / side) * side, width
    height = math.ceil(height / side) * side
    return height, math.ceil(int(height * ratio) / side) * side


class Inputs(ostro.Inputs):
    """Images as items whose array is "pixels" [tiles, 3, image_size, image_size] float32.

    The config may have "image_marks", the ids of the tokens around images; they are those of
    tokenizer.json otherwise.
    """

    image_token: ClassVar[int] = 128257

    @property
    def placeholders(self) -> Mapping[str, int]:
        return {"image": int(self.raw.get("image_token_id", self.image_token))}

    @property
    def vision(self) -> Mapping[str, Any]:
        return self.raw.get("vision_config") or {}

    @property
    def side(self) -> int:
        """The side of a tile in patches."""
        return int(self.vision.get("image_size", 224)) // int(self.vision.get("patch_size", 32))

    @property
    def rows(self) -> int:
        """The rows of a tile's features."""
        return (self.side // int(self.raw.get("scale_factor", 2))) ** 2

    @cached_property
    def preprocessor(self) -> Preprocessor:
        path, stated = self.folder, self.raw.get("preprocessor_config")
        if not stated:
            path, stated = pixels.find(self.folder)
        found = Preprocessor.of(stated, path)
        if found.side != (size := self.vision.get("image_size", 224)):
            raise ConfigError(
                f"{path} makes tiles of {found.side} pixels, but config.json has image_size={size}"
            )
        return found

    @cached_property
    def tokenizer(self) -> Tokenizer:
        path = self.folder / "tokenizer.json"
        if not path.is_file():
            raise TokenizerError(f"{path} is missing, which has the tokens around images")
        return Tokenizer.from_buffer(read_regular(path))

    def image_tokens(self, width: int, height: int) -> int:
        _, grid = self.preprocessor.layout(height, width)
        return len(self.tokens(*grid))

    def image(self, pixels: Pixels) -> Item:
        tiles, grid = self.preprocessor.split(pixels)
        values = np.stack([self.preprocessor.normalise(tile) for tile in tiles])
        return Item(
            kind="image",
            key=content_key("tiles", values, grid),
            arrays={"pixels": Array.of(values)},
            cost=len(tiles) * self.side**2,
            tokens=tuple(self.tokens(*grid)),
            pad=self.placeholders["image"],
        )

    def tokens(self, rows: int, columns: int) -> list[int]:
        """The tokens of an image with so many tiles."""
        parts, pad = list(self.parts(rows, columns)), self.placeholders["image"]
        if marks := self.raw.get("image_marks"):
            known = {IMAGE: [pad], **{text: [id] for text, id in marks.items()}}
            known.setdefault("\n\n", known.get("\n", []) * 2)
            if lacking := {*parts} - {text for text, ids in known.items() if ids}:
                raise TokenizerError(f"the vocabulary has no {min(lacking)!r}")
            return [id for part in parts for id in known[part]]
        found: list[int] = self.tokenizer.encode("".join(parts), add_special_tokens=False).ids
        count = parts.count(IMAGE)
        if found.count(pad) != count:
            raise TokenizerError(
                f"{self.folder / 'tokenizer.json'}: {IMAGE} is not the token image_token_id={pad}"
            )
        return found

    def parts(self, rows: int, columns: int) -> Iterator[str]:
        """The text of an image with so many tiles."""
        for i in range(rows):
            for j in range(columns):
                yield from (FAKE, f"<row_{i + 1}_col_{j + 1}>", *[IMAGE] * self.rows)
            yield "\n" if i + 1 < rows else "\n\n"
        yield from (FAKE, WHOLE, *[IMAGE] * self.rows, FAKE)
