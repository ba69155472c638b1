"""What Qwen2-Audio makes of sound: a spectrum of what is heard, and a token per four frames."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ostro import Array, Item, content_key
from ostro import Inputs as Base
from ostro.architectures.whisper.spectrum import Mel, read_mel
from ostro.errors import RequestError

SILENCE = 800
"""Samples of silence behind a sound: more than any of its rows sees."""


class Inputs(Base):
    """The chat template writes one audio token between its brackets; it becomes as many as there
    are rows.
    """

    def __init__(self, raw: Mapping[str, Any], folder: Path) -> None:
        super().__init__(raw, folder)
        told = raw.get("preprocessor_config")
        self.mel = (
            Mel(bins=told["feature_size"], seconds=told["chunk_length"])
            if told
            else read_mel(folder)
        )
        self.token = int(raw.get("audio_token_index", raw.get("audio_token_id", 151646)))

    @property
    def placeholders(self) -> Mapping[str, int]:
        return {"audio": self.token}

    def audio(self, samples: np.ndarray[Any, Any]) -> Item:
        """A sound no longer than the window. Of what follows it, silence, only what its last row
        sees is sent along. Raises RequestError for one that is longer, or too short to be heard.
        """
        frames = -(-len(samples) // self.mel.hop)
        rows = -(-frames // 2)
        if len(samples) > self.mel.window:
            raise RequestError(
                f"the sound is {len(samples) / self.rate:.1f} s long, where the model hears "
                f"{self.mel.seconds} s at a time",
                param="messages",
            )
        if rows < 2:
            raise RequestError(
                f"the sound is {len(samples) / self.rate:.3f} s long: too short to be heard",
                param="messages",
            )
        silence = min(SILENCE, self.mel.window - len(samples))
        spectrum = self.mel.spectrum(np.pad(samples, (0, silence)))[:, : 2 * rows + 1]
        return Item(
            kind="audio",
            key=content_key("qwen2_audio", spectrum),
            arrays={"spectrum": Array.of(spectrum)},
            cost=rows,
            tokens=(self.token,) * (rows // 2),
            pad=self.token,
        )
