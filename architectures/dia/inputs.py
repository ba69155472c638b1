"""Dia's inputs: the bytes of a text, with an id for each of two speakers; without torch.

Reference class DiaTokenizer of transformers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ostro import Inputs as Base
from ostro.checkpoints import read_config
from ostro.errors import RequestError

SPEAKERS = {"S1": 1, "S2": 2}
TAG = re.compile(r"(\[S[12]\])")
USUAL: Mapping[str, Any] = {"temperature": 1.8, "top_p": 0.9, "top_k": 45, "guidance": 3.0}
"""Nari Labs' sampling defaults, for models without a generation config."""


class Inputs(Base):
    voices = tuple(SPEAKERS)

    def speech(self, text: str, voice: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of `Speech` for a text, from `options` or the model's defaults.

        `voice` is the speaker of text that does not begin with [S1] or [S2]. Raises RequestError
        for an unknown voice, and for text that is not Unicode.
        """
        if voice is not None and voice not in SPEAKERS:
            raise RequestError(
                f"unknown voice {voice!r:.40}; expected {' or '.join(SPEAKERS)}, "
                "which sound different with every seed",
                param="voice",
            )
        text = text.strip()
        if not TAG.match(text):
            text = f"[{voice or 'S1'}] {text}"
        return {**self.usual(), **options, "tokens": encode(text)}

    def usual(self) -> dict[str, Any]:
        """The sampling defaults of the model."""
        defaults = read_config(self.folder / "generation_config.json", missing_ok=True)
        if defaults.get("do_sample") is False:
            defaults["temperature"] = 0.0
        defaults["guidance"] = defaults.get("guidance_scale")
        given = {
            name: type(usual)(defaults[name])
            for name, usual in USUAL.items()
            if isinstance(defaults.get(name), type(usual) | int)
        }
        return {**USUAL, **given}


def encode(text: str) -> list[int]:
    """The UTF-8 bytes of a text, with ids in place of speaker tags."""
    try:
        parts = [part.encode() for part in TAG.split(text)]
    except UnicodeEncodeError as error:
        raise RequestError(f"the text is not Unicode: {error.reason}", param="input") from None
    ids = {f"[{name}]".encode(): [number] for name, number in SPEAKERS.items()}
    return [token for part in parts for token in ids.get(part, list(part))]
