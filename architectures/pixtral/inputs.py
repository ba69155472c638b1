"""Images of any size for Pixtral's vision encoder.

Reference classes PixtralImageProcessorPil and PixtralProcessor of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tokenizers import Tokenizer

from ostro import Array, Item, content_key
from ostro.architectures.siglip import pixels
from ostro.architectures.siglip.pixels import Floats, Pixels, Triple, check_area, resize
from ostro.checkpoints import read_config, read_regular
from ostro.errors import RequestError, TokenizerError

SIDE = 4096
"""The longest side of an image in patches."""

MARKS = {"image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"}
"""The tokens after a row and after an image: their names in processor_config.json."""


class Preprocessor(pixels.Preprocessor, frozen=True, kw_only=True):
    """The preprocessor settings; `size` has the largest "height" and "width", or "longest_edge".

    `do_pad` pads the images of a batch and does not change the result.
    """

    size: dict[str, int] = msgspec.field(default_factory=lambda: {"longest_edge": 1024})
    image_mean: Triple = (0.48145466, 0.4578275, 0.40821073)
    image_std: Triple = (0.26862954, 0.26130258, 0.27577711)

    def refusal(self) -> str | None:
        for name in ("do_resize", "do_rescale", "do_normalize"):
            if not getattr(self, name):
                return f"{name}=false is not implemented"
        if self.do_center_crop:
            return "do_center_crop=true is not implemented"
        if {*self.size} not in ({"height", "width"}, {"longest_edge"}):
            return f"size={self.size} is not implemented; expected longest_edge"
        if min(*self.size.values(), *self.image_std) <= 0:
            return "a size or image_std is not positive"
        return None

    def grid(self, height: int, width: int, cell: int) -> tuple[int, int]:
        """Rows and columns of cells of `cell` pixels, for an image of that size."""
        tall, wide = self.size.get("height", 0), self.size.get("width", 0)
        edge = self.size.get("longest_edge", 0)
        ratio = max(height / (tall or edge), width / (wide or edge))
        if ratio > 1:
            height, width = int(height / ratio), int(width / ratio)
        if min(height, width) < 1:
            raise RequestError(
                "an image that is resized to less than one pixel is too narrow; crop it",
                param="messages",
            )
        return -(-height // cell), -(-width // cell)

    def prepare(self, pixels: Pixels, cell: int) -> Floats:
        """uint8 [h, w, 3] -> normalised [3, height, width], multiples of `cell`."""
        rows, columns = self.grid(pixels.shape[0], pixels.shape[1], cell)
        check_area(rows * cell, columns * cell)
        return self.normalise(resize(pixels, rows * cell, columns * cell, self.resample))


class Pictures:
    """Makes items of images.

    raw: the parsed config.json; it may have "image_break_token_id" and "image_end_token_id", which
    are read from tokenizer.json otherwise. pad: the placeholder. merge: the side, in patches, of a
    cell that becomes one row.
    """

    def __init__(self, raw: Mapping[str, Any], folder: Path, pad: int, merge: int) -> None:
        self.folder, self.pad = folder, pad
        path, stated = folder, raw.get("preprocessor_config")
        if not stated:
            path, stated = pixels.find(folder)
        self.preprocessor = Preprocessor.of(stated, path)
        self.patch = int((raw.get("vision_config") or {}).get("patch_size", 16))
        self.cell = self.patch * merge
        found = [id for name in MARKS if isinstance(id := raw.get(f"{name}_id"), int)]
        self.line, self.end = found if len(found) == len(MARKS) else self.marks()

    def marks(self) -> list[int]:
        """The ids of the tokens after a row and after an image. Raises TokenizerError."""
        path, settings = self.folder / "tokenizer.json", self.folder / "processor_config.json"
        if not path.is_file():
            raise TokenizerError(f"{path} is missing, which has the tokens {[*MARKS.values()]}")
        stated = read_config(settings, missing_ok=True)
        tokenizer, ids = Tokenizer.from_buffer(read_regular(path)), list[int]()
        for name, default in MARKS.items():
            text = stated.get(name, default)
            text = text.get("content") if isinstance(text, dict) else text
            id = tokenizer.token_to_id(text) if isinstance(text, str) else None
            if id is None:
                raise TokenizerError(f"{path} has no token {text!r:.80} ({name})")
            ids.append(id)
        return ids

    def count_tokens(self, width: int, height: int) -> int:
        """The number of tokens of an image of that size in pixels."""
        rows, columns = self.preprocessor.grid(height, width, self.cell)
        return rows * (columns + 1)

    def item(self, pixels: Pixels) -> Item:
        """An image with a token after each row of cells, and another one after the last."""
        values = self.preprocessor.prepare(pixels, self.cell)
        rows, columns = (side // self.cell for side in values.shape[1:])
        if max(values.shape) // self.patch > SIDE:
            raise RequestError(
                f"an image of more than {SIDE} patches on a side is too large; resize it",
                param="messages",
            )
        tokens = [*[*[self.pad] * columns, self.line] * rows]
        tokens[-1] = self.end
        return Item(
            kind="image",
            key=content_key("pixels", np.ascontiguousarray(values)),
            arrays={"pixels": Array.of(values)},
            cost=values[0].size // self.patch**2,
            tokens=tuple(tokens),
            pad=self.pad,
        )
