"""FLUX's inputs: token ids of a prompt for CLIP and T5, truncated and padded; without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ostro import Inputs as Base
from ostro.pipelines import Tokenizer, load_tokenizer

CLIP_LENGTH = 77
DEV, SCHNELL = 512, 256
"""The lengths of T5 inputs of the two models."""
VAE_WIDTHS = (128, 256, 512, 512)
"""The default of `block_out_channels`; all but the last level halve the image."""


class Inputs(Base):
    """The two tokenizers of a folder. Raises TokenizerError for a missing or malformed one."""

    def __init__(self, raw: Mapping[str, Any], folder: Path) -> None:
        super().__init__(raw, folder)
        self.clip = load_tokenizer(folder / "tokenizer")
        self.t5 = load_tokenizer(folder / "tokenizer_2")
        encoder = raw.get("text_encoder") or {}
        self.clip_length = int(encoder.get("max_position_embeddings", CLIP_LENGTH))
        self.guided = bool((raw.get("transformer") or {}).get("guidance_embeds", False))
        self.t5_length = DEV if self.guided else SCHNELL
        widths = (raw.get("vae") or {}).get("block_out_channels", VAE_WIDTHS)
        self.cell = 2 ** len(widths)

    def texts(self, prompt: str, second: str | None = None) -> tuple[list[int], list[int]]:
        """Ids of CLIP and of T5 for a prompt; `second` replaces the prompt for T5, if given.

        Raises RequestError for text that is not Unicode. Long prompts are truncated, see `cut`.
        """
        texts = (self.clip, prompt, self.clip_length), (self.t5, second or prompt, self.t5_length)
        clip, t5 = (fit(tokenizer, text, length) for tokenizer, text, length in texts)
        return clip, t5

    def drawing(
        self, prompt: str, second: str | None, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The fields of `Drawing` for one image; by default 28 steps for dev, 4 for schnell."""
        clip, t5 = self.texts(prompt, second)
        usual = {"width": 1024, "height": 1024, "steps": 28 if self.guided else 4, "guidance": 3.5}
        return {**usual, **options, "clip_tokens": [clip], "t5_tokens": [t5]}

    def count_tokens(
        self, prompt: str, second: str | None, width: int, height: int
    ) -> tuple[int, int]:
        """T5's tokens of a prompt, without padding, and the patches of an image."""
        text = len(self.t5.encode(second or prompt))
        return min(text, self.t5_length), width * height // self.cell**2

    def cut(self, prompt: str) -> bool:
        """Whether a prompt is truncated for T5."""
        return len(self.t5.encode(prompt)) > self.t5_length


def fit(tokenizer: Tokenizer, text: str, length: int) -> list[int]:
    """The ids of a text with special tokens, truncated and padded to `length`."""
    ids = tokenizer.encode(text, special=False)
    room = length - len(tokenizer.prefix) - len(tokenizer.suffix)
    ids = [*tokenizer.prefix, *ids[:room], *tokenizer.suffix]
    return ids + [padding(tokenizer)] * (length - len(ids))


def padding(tokenizer: Tokenizer) -> int:
    """The padding id, by default the end of text."""
    named = tokenizer.special_tokens.get("pad_token")
    found = None if named is None else tokenizer.backend.token_to_id(named)
    return tokenizer.suffix[-1] if found is None else found
