"""What FLUX makes of a prompt: ids for CLIP and for T5, cut and padded; torch is not needed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ostro import Inputs as Base
from ostro.pipelines import Tokenizer, load_tokenizer

CLIP_LENGTH = 77
DEV, SCHNELL = 512, 256
"""Ids of T5 that the two models were trained with."""


class Inputs(Base):
    """The two tokenizers of a folder. Raises TokenizerError where one is missing or malformed."""

    def __init__(self, raw: Mapping[str, Any], folder: Path) -> None:
        super().__init__(raw, folder)
        self.clip = load_tokenizer(folder / "tokenizer")
        self.t5 = load_tokenizer(folder / "tokenizer_2")
        encoder = raw.get("text_encoder") or {}
        self.clip_length = int(encoder.get("max_position_embeddings", CLIP_LENGTH))
        self.guided = bool((raw.get("transformer") or {}).get("guidance_embeds", False))
        self.t5_length = DEV if self.guided else SCHNELL

    def texts(self, prompt: str, second: str | None = None) -> tuple[list[int], list[int]]:
        """Ids of CLIP and of T5 for a prompt; `second` is what T5 reads instead, if anything.

        Raises RequestError for text that is not Unicode. What is too long is cut; `cut` tells.
        """
        texts = (self.clip, prompt, self.clip_length), (self.t5, second or prompt, self.t5_length)
        clip, t5 = (fit(tokenizer, text, length) for tokenizer, text, length in texts)
        return clip, t5

    def drawing(self, prompt: str, second: str | None, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The texts of one image, and its sizes; 28 steps for dev, 4 for schnell."""
        clip, t5 = self.texts(prompt, second)
        usual = {"width": 1024, "height": 1024, "steps": 28 if self.guided else 4, "guidance": 3.5}
        return {**usual, **asked, "clip_tokens": [clip], "t5_tokens": [t5]}

    def cut(self, prompt: str) -> bool:
        """Whether T5, which reads more of it, reads only the beginning of a prompt."""
        return len(self.t5.encode(prompt)) > self.t5_length


def fit(tokenizer: Tokenizer, text: str, length: int) -> list[int]:
    """The ids of a text between its marks, cut and padded to `length`."""
    ids = tokenizer.encode(text, special=False)
    room = length - len(tokenizer.prefix) - len(tokenizer.suffix)
    ids = [*tokenizer.prefix, *ids[:room], *tokenizer.suffix]
    return ids + [padding(tokenizer)] * (length - len(ids))


def padding(tokenizer: Tokenizer) -> int:
    """The id that fills up a text; the end of text where no other is named."""
    named = tokenizer.special_tokens.get("pad_token")
    found = None if named is None else tokenizer.backend.token_to_id(named)
    return tokenizer.suffix[-1] if found is None else found
