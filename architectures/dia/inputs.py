"""What Dia makes of a text: its bytes, with a number for each of two speakers; torch is not needed.

Reference class DiaTokenizer of transformers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ostro import Inputs as Base
from ostro.architectures.dia.folder import read
from ostro.errors import RequestError

SPEAKERS = {"S1": 1, "S2": 2}
TAG = re.compile(r"(\[S[12]\])")
USUAL: Mapping[str, Any] = {"temperature": 1.8, "top_p": 0.9, "top_k": 45, "guidance": 3.0}
"""What Nari Labs suggest, where a model's generation config does not."""


class Inputs(Base):
    def speech(self, text: str, voice: str | None, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of `Speech` for a text: as asked for, or as the model's own files suggest.

        `voice` is who speaks where the text does not begin with [S1] or [S2]. Raises RequestError
        for a voice that there is not, and for text that is not Unicode.
        """
        if voice is not None and voice not in SPEAKERS:
            raise RequestError(
                f"there is no voice {voice!r:.40}: this model's speakers are "
                f"{' and '.join(SPEAKERS)}, and sound different with every seed",
                param="voice",
            )
        text = text.strip()
        if not TAG.match(text):
            text = f"[{voice or 'S1'}] {text}"
        return {**self.usual(), **asked, "tokens": encode(text)}

    def usual(self) -> dict[str, Any]:
        """How to draw where a request does not say it."""
        said = read(self.folder / "generation_config.json")
        if said.get("do_sample") is False:
            said["temperature"] = 0.0
        said["guidance"] = said.get("guidance_scale")
        given = {
            name: type(usual)(said[name])
            for name, usual in USUAL.items()
            if isinstance(said.get(name), type(usual) | int)
        }
        return {**USUAL, **given}


def encode(text: str) -> list[int]:
    """The bytes of a text in UTF-8, and the numbers of its speakers."""
    try:
        parts = [part.encode() for part in TAG.split(text)]
    except UnicodeEncodeError as error:
        raise RequestError(f"the text is not Unicode: {error.reason}", param="input") from None
    ids = {f"[{name}]".encode(): [number] for name, number in SPEAKERS.items()}
    return [token for part in parts for token in ids.get(part, list(part))]
