"""What Whisper makes of sound: one window of its log-mel spectrum at a time."""

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
    """All layers of the decoder look at the window, whatever stands in the prompt."""

    def __init__(self, raw: Mapping[str, Any], folder: Path) -> None:
        super().__init__(raw, folder)
        self.mel = read_mel(folder)
        self.rows = int(raw.get("max_source_positions", 1500))
        self.frames = 2 * self.rows
        bins = raw.get("num_mel_bins", self.mel.bins)
        heard = (self.mel.bins, self.mel.window // self.mel.hop)
        if heard != (bins, self.frames):
            raise ConfigError(
                f"preprocessor_config.json makes {heard[1]} frames of {heard[0]} bins, where "
                f"config.json says {self.frames} of {bins}"
            )

    def audio(self, samples: Samples) -> Item:
        """A sound no longer than the window; silence follows it.

        Raises RequestError for a longer one: whoever transcribes it cuts it.
        """
        if len(samples) > self.mel.window:
            raise RequestError(
                f"the sound is {len(samples) / self.rate:.1f} s long, where the model hears "
                f"{self.mel.seconds} s at a time"
            )
        silence = (0, self.mel.window - len(samples))
        return self.window(self.spectrum(np.pad(samples, silence)), 0)

    def spectrum(self, samples: Samples) -> Samples:
        """The log-mel spectrum float32 [bins, n // hop] of a sound float32 [n] of any length."""
        return self.mel.spectrum(samples)

    def window(self, spectrum: Samples, start: int) -> Item:
        """The item of one window of a spectrum, from frame `start` on; zeros where it ends."""
        heard = spectrum[:, start : start + self.frames]
        frames = np.zeros((self.mel.bins, self.frames), np.float32)
        frames[:, : heard.shape[1]] = heard
        return Item(
            kind="audio",
            key=content_key("whisper", frames),
            arrays={"spectrum": Array.of(frames)},
            since=0,
            length=self.rows,
            cost=self.rows,
        )
