"""The request of FLUX: plain data, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ostro.errors import RequestError

if TYPE_CHECKING:
    from ostro.architectures.flux.config import Config

MAX_STEPS = 1000
MAX_TEXT = 512
MAX_SIDE, MAX_PIXELS = 8192, 2**22
"""Limits of the image size: four times the pixels of FLUX.1's training, since a denoising step is
one slice of work."""


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """n images with different texts or seeds, generated together.

    clip_tokens [n][k], t5_tokens [n][<= 512]: texts of one length for each encoder, padded by the
    tokenizers; width, height in pixels; steps of denoising; guidance for guidance-distilled
    models; seeds [n] of the noise; preview: the interval of previews in steps, 0 for none. `image`
    [n, height, width, 3] uint8 is an initial image; strength is the share of the steps that run
    on it, 1 ignores it.
    """

    clip_tokens: Sequence[Sequence[int]]
    t5_tokens: Sequence[Sequence[int]]
    seeds: Sequence[int]
    width: int = 1024
    height: int = 1024
    steps: int = 28
    guidance: float = 3.5
    preview: int = 0
    image: Any = None
    strength: float = 0.6

    def check(self, config: Config) -> None:
        """Raise RequestError for an invalid field."""
        for name in ("width", "height"):
            within(name, getattr(self, name), config.cell, MAX_SIDE)
            if getattr(self, name) % config.cell:
                raise RequestError(
                    f"{name}={getattr(self, name)} is not a multiple of {config.cell}", param=name
                )
        if self.width * self.height > MAX_PIXELS:
            raise RequestError(
                f"width={self.width} x height={self.height} is over {MAX_PIXELS} pixels",
                param="width",
            )
        within("steps", self.steps, 1, MAX_STEPS)
        within("guidance", self.guidance, 0, 1000)
        within("preview", self.preview, 0, MAX_STEPS)
        within("seeds", len(self.seeds), 1, 64)
        longest = config.text_encoder.max_position_embeddings
        self.check_tokens("clip_tokens", config.text_encoder.vocab_size, longest)
        self.check_tokens("t5_tokens", config.text_encoder_2.vocab_size, MAX_TEXT)
        if self.image is not None:
            self.check_image()

    def check_image(self) -> None:
        within("strength", self.strength, 1 / self.steps, 1)
        shape = (len(self.seeds), self.height, self.width, 3)
        if tuple(self.image.shape) != shape:
            raise RequestError(
                f"image has shape {tuple(self.image.shape)}, not {shape}", param="image"
            )

    def check_tokens(self, name: str, vocab: int, longest: int) -> None:
        texts = getattr(self, name)
        if len(texts) != len(self.seeds):
            raise RequestError(f"{len(texts)} {name} for {len(self.seeds)} seeds", param=name)
        lengths = {len(text) for text in texts}
        if len(lengths) > 1:
            raise RequestError(f"{name} are of lengths {sorted(lengths)}; pad them", param=name)
        within(f"the length of {name}", lengths.pop(), 1, longest)
        if not all(0 <= token < vocab for text in texts for token in text):
            raise RequestError(f"{name} holds an id outside 0..{vocab - 1}", param=name)


def within(name: str, value: float, least: float, most: float) -> None:
    """Raise RequestError for a number out of bounds, or NaN."""
    if not least <= value <= most:
        raise RequestError(f"{name}={value} is not within {least:g}..{most:g}", param=name)
