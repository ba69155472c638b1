"""Whisper's inputs: windows of the log-mel spectrogram of audio."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ostro import Array, Item, content_key
from ostro import Inputs as Base
from ostro.architectures.whisper.spectrum import read_mel
from ostro.errors import ConfigError, RequestError

Samples = np.ndarray[Any, Any]


class Inputs(Base):
    """The audio window is an item of cross attention, without placeholders in the prompt."""

    def __init__(self, raw: Mapping[str, Any], folder: Path) -> None:
        super().__init__(raw, folder)
        self.mel = read_mel(folder)
        self.rows = int(raw.get("max_source_positions", 1500))
        self.frames = 2 * self.rows
        bins = raw.get("num_mel_bins", self.mel.bins)
        shape = (self.mel.bins, self.mel.window // self.mel.hop)
        if shape != (bins, self.frames):
            raise ConfigError(
                f"preprocessor_config.json gives {shape[1]} frames of {shape[0]} bins, but "
                f"config.json has {self.frames} of {bins}"
            )

    def audio(self, samples: Samples) -> Item:
        """An item of audio within the window, padded with silence.

        Raises RequestError for longer audio; the transcription pipeline splits it.
        """
        if len(samples) > self.mel.window:
            raise RequestError(
                f"the audio has {len(samples) / self.rate:.1f} s, the model supports at most "
                f"{self.mel.seconds} s"
            )
        silence = (0, self.mel.window - len(samples))
        return self.window(self.spectrum(np.pad(samples, silence)), 0)

    def spectrum(self, samples: Samples) -> Samples:
        """The log-mel spectrogram float32 [bins, n // hop] of audio float32 [n] of any length."""
        return self.mel.spectrum(samples)

    def window(self, spectrum: Samples, start: int) -> Item:
        """The item of one window of a spectrogram, from frame `start` on, padded with zeros."""
        shape = spectrum[:, start : start + self.frames]
        frames = np.zeros((self.mel.bins, self.frames), np.float32)
        frames[:, : shape.shape[1]] = shape
        return Item(
            kind="audio",
            key=content_key("whisper", frames),
            arrays={"spectrum": Array.of(frames)},
            since=0,
            length=self.rows,
            cost=self.rows,
        )
