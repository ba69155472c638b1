"""Gemma 3's inputs: square images, with placeholders between special tokens and newlines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from tokenizers import Tokenizer

from ostro import Item, Prompt
from ostro.architectures.llava import inputs as llava
from ostro.architectures.siglip import pixels
from ostro.architectures.siglip.pixels import Pixels
from ostro.checkpoints import read_regular
from ostro.errors import TokenizerError


class Preprocessor(pixels.Preprocessor, frozen=True, kw_only=True):
    """The preprocessor settings, with Gemma 3's defaults."""

    resample: int = 2
    do_pan_and_scan: bool = False

    def refusal(self) -> str | None:
        if self.do_pan_and_scan:
            return "do_pan_and_scan is not implemented"
        return super().refusal()


class Inputs(llava.Inputs):
    """The chat template writes the begin-of-image token in place of an image.

    Empty lines surround an image. The vocabulary has tokens of one and of several newlines, and the
    tokenizer uses the longest: newlines of the text and around an image are merged accordingly.
    """

    settings = Preprocessor
    patch_size = 16

    @property
    def placeholders(self) -> Mapping[str, int]:
        return {"image": self.token("boi", 255999)}

    @cached_property
    def lines(self) -> dict[int, int]:
        """The tokens of newlines, by their number of newlines."""
        if (listed := self.raw.get("line_token_ids")) and listed[0] is not None:
            return {n: id for n, id in enumerate(listed, 1) if id is not None}
        path = self.folder / "tokenizer.json"
        if not path.is_file():
            raise TokenizerError(f"{path} is missing, which has the newline tokens around images")
        tokenizer = Tokenizer.from_buffer(read_regular(path))
        found = {n: tokenizer.token_to_id("\n" * n) for n in range(1, 32)}
        known = {n: id for n, id in found.items() if id is not None}
        if 1 not in known:
            raise TokenizerError(f"{path} has no newline token")
        return known

    @property
    def rows(self) -> int:
        """The rows of an image's features."""
        return int(self.raw.get("mm_tokens_per_image", 256))

    def image_tokens(self, width: int, height: int) -> int:
        return self.rows + 2

    def image(self, pixels: Pixels) -> Item:
        pad = self.token("image", 262144)
        tokens = (self.placeholders["image"], *(pad,) * self.rows, self.token("eoi", 256000))
        return llava.seen(self.preprocessor(pixels), self.patches, tokens, pad, atomic=True)

    def expand_placeholders(self, tokens: Sequence[int], items: Sequence[Item]) -> Prompt:
        """As the base class, with empty lines around images."""
        if not items:
            return super().expand_placeholders(tokens, items)
        mark, empty, spaced = self.placeholders["image"], self.split(2), list[int]()
        for token in tokens:
            spaced += [*empty, mark, *empty] if token == mark else [token]
        return super().expand_placeholders(self.join(spaced), items)

    def join(self, tokens: Iterable[int]) -> list[int]:
        """Tokens with adjacent newlines merged."""
        counts = {id: n for n, id in self.lines.items()}
        out, lines = list[int](), 0
        for token in tokens:
            if token in counts:
                lines += counts[token]
                continue
            out += [*self.split(lines), token]
            lines = 0
        return out + self.split(lines)

    def split(self, count: int) -> list[int]:
        """The longest newline tokens for `count` newlines."""
        out = list[int]()
        while count:
            longest = max(n for n in self.lines if n <= count)
            out.append(self.lines[longest])
            count -= longest
        return out
