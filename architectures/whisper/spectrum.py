"""Log-mel spectrograms for Whisper, in numpy.

The values are those of transformers' WhisperFeatureExtractor, without torch, for audio of any
length and in bounded memory. Mel filters are those of Slaney's Auditory Toolbox (1998).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ostro.checkpoints import read_config
from ostro.errors import ConfigError

Array = np.ndarray[Any, Any]

BLOCK = 3000
"""Frames per transform."""

SIZES = {"bins": "feature_size", "hop": "hop_length", "size": "n_fft", "seconds": "chunk_length"}
"""The fields of `Mel` in a preprocessor_config.json."""


@dataclass(frozen=True, kw_only=True)
class Mel:
    """`bins` mel filters up to half of `rate` (samples per second), over frames of `size` samples,
    one every `hop` samples. The audio window has `seconds`.
    """

    bins: int = 80
    rate: int = 16000
    hop: int = 160
    size: int = 400
    seconds: int = 30

    @property
    def window(self) -> int:
        """The samples of an audio window."""
        return self.seconds * self.rate

    def spectrum(self, samples: Array) -> Array:
        """samples float32 [n] -> log-mel spectrogram float32 [bins, n // hop].

        Clipped at 80 dB below the maximum and scaled to about -1..1. The audio is reflected at its
        ends and must be longer than half a frame.
        """
        half = self.size // 2
        padded = np.pad(samples.astype(np.float64), half, mode="reflect")
        frames = sliding_window_view(padded, self.size)[:: self.hop][: len(samples) // self.hop]
        window, filters = hann(self.size), mel_filters(self)
        out = np.empty((self.bins, len(frames)), np.float32)
        for start in range(0, len(frames), BLOCK):
            waves = np.fft.rfft(frames[start : start + BLOCK] * window)
            power = waves.real**2 + waves.imag**2
            out[:, start : start + BLOCK] = np.log10(np.maximum(filters @ power.T, 1e-10))
        return (np.maximum(out, out.max() - 8) + 4) / 4


@cache
def hann(size: int) -> Array:
    """The periodic Hann window."""
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)


@cache
def mel_filters(mel: Mel) -> Array:
    """Triangles of equal area, evenly spaced in mel: [bins, size // 2 + 1] float64."""
    edges = hertz(np.linspace(0, mels(mel.rate / 2), mel.bins + 2))
    waves = np.linspace(0, mel.rate / 2, mel.size // 2 + 1)
    slopes = (waves - edges[:, None]) / np.diff(edges, append=np.inf)[:, None]
    rising, falling = slopes[:-2], 1 - slopes[1:-1]
    area = 2 / (edges[2:] - edges[:-2])
    return np.maximum(0, np.minimum(rising, falling)) * area[:, None]


def mels(pitch: float) -> float:
    """Linear to 1 kHz, which is mel 15, and logarithmic above it: 27 mels for a factor of 6.4."""
    return 3 * pitch / 200 if pitch < 1000 else 15 + 27 * math.log(pitch / 1000) / math.log(6.4)


def hertz(mel: Array) -> Array:
    return np.where(mel < 15, 200 * mel / 3, 1000 * np.exp((mel - 15) * math.log(6.4) / 27))


def read_mel(folder: Path) -> Mel:
    """The spectrogram settings of a model folder.

    Raises ConfigError for missing or unsupported settings.
    """
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (folder / name).is_file():
            break
    else:
        raise ConfigError(
            f"{folder.name} has no preprocessor_config.json, which has the audio settings; "
            "download it from the source of the weights"
        )
    raw = read_config(folder / name)
    raw = raw.get("feature_extractor", raw)
    if not isinstance(raw, dict):
        raise ConfigError(f"{name}: feature_extractor={raw!r:.80} is not an object")
    known = {"sampling_rate": Mel.rate, "dither": 0.0, "padding_value": 0.0}
    for key, value in known.items():
        if raw.get(key, value) != value:
            raise ConfigError(f"{name}: {key}={raw[key]!r} is not implemented; expected {value}")
    sizes = {
        "bins": "feature_size",
        "hop": "hop_length",
        "size": "n_fft",
        "seconds": "chunk_length",
    }
    given = {ours: raw[theirs] for ours, theirs in sizes.items() if theirs in raw}
    for ours, value in given.items():
        if not isinstance(value, int) or not 0 < value < 2**16:
            raise ConfigError(f"{name}: {sizes[ours]}={value!r:.80} is not a positive integer")
    return Mel(**given)
