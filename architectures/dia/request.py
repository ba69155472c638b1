"""The request of Dia: plain data, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from ostro.errors import RequestError

if TYPE_CHECKING:
    from ostro.architectures.dia.config import Config


@dataclass(frozen=True, kw_only=True)
class Speech:
    """A text to speak.

    tokens: the bytes of the text, 1 and 2 for its speakers; max_seconds of audio, None for the
    model's maximum; top_k 0 for all; guidance: the scale of classifier-free guidance, 1 for none.
    """

    tokens: Sequence[int]
    max_seconds: float | None = None
    temperature: float = 1.8
    top_p: float = 0.9
    top_k: int = 45
    guidance: float = 3.0
    seed: int = 0

    def check(self, config: Config, context: int) -> None:
        """Raise RequestError for an invalid field; `context` is the number of positions."""
        longest = min(context, config.encoder_config.max_position_embeddings)
        if not 1 <= len(self.tokens) <= longest:
            raise RequestError(
                f"the text has {len(self.tokens)} bytes, expected 1..{longest}; split the text "
                "into several requests",
                param="input",
            )
        vocab = config.encoder_config.vocab_size
        if not all(0 <= token < vocab for token in self.tokens):
            raise RequestError(f"the text holds an id outside 0..{vocab - 1}", param="input")
        within("temperature", self.temperature, 0, 100)
        within("top_p", self.top_p, 1e-6, 1)
        within("top_k", self.top_k, 0, 2**20)
        within("guidance", self.guidance, 1, 100)
        within("seed", self.seed, 0, 2**63 - 1)
        rate = config.codec.sampling_rate / config.codec.hop
        if self.max_seconds is not None:
            within("max_seconds", self.max_seconds, 1 / rate, self.most(config, context) / rate)

    def frames(self, config: Config, context: int) -> int:
        """The largest number of frames of the request."""
        most = self.most(config, context)
        if self.max_seconds is None:
            return most
        return min(most, ceil(self.max_seconds * config.codec.sampling_rate / config.codec.hop))

    @staticmethod
    def most(config: Config, context: int) -> int:
        """The number of frames that fit the context, with special codes and delays."""
        places = min(context, config.decoder_config.max_position_embeddings)
        most = places - max(config.delay_pattern) - 1
        if most < 1:
            raise RequestError(
                f"a context of {places} positions is too short for speech; load the model with a "
                "larger one"
            )
        return most


def within(name: str, value: float, least: float, most: float) -> None:
    """Raise RequestError for a number out of bounds, or NaN."""
    if not least <= value <= most:
        raise RequestError(f"{name}={value} is not within {least:g}..{most:g}", param=name)
