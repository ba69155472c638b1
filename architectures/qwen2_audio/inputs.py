"""Qwen2-Audio's inputs: a spectrogram of audio, with one placeholder per four frames."""

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
"""Samples of silence after audio: more than the receptive field of its last row."""


class Inputs(Base):
    """The chat template writes one audio token, which is repeated for every row."""

    def __init__(self, raw: Mapping[str, Any], folder: Path) -> None:
        super().__init__(raw, folder)
        stated = raw.get("preprocessor_config")
        self.mel = (
            Mel(bins=stated["feature_size"], seconds=stated["chunk_length"])
            if stated
            else read_mel(folder)
        )
        self.token = int(raw.get("audio_token_index", raw.get("audio_token_id", 151646)))

    @property
    def placeholders(self) -> Mapping[str, int]:
        return {"audio": self.token}

    def audio(self, samples: np.ndarray[Any, Any]) -> Item:
        """An item of audio within the window. The silence after it is cut to the receptive field of
        the last row. Raises RequestError for audio that is too long or too short.
        """
        frames = -(-len(samples) // self.mel.hop)
        rows = -(-frames // 2)
        if len(samples) > self.mel.window:
            raise RequestError(
                f"the audio has {len(samples) / self.rate:.1f} s, the model supports at most "
                f"{self.mel.seconds} s",
                param="messages",
            )
        if rows < 2:
            raise RequestError(
                f"the audio has {len(samples) / self.rate:.3f} s, which is too short",
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
