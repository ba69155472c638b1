"""The log-mel spectrogram of Gemma 4's sound encoder, in numpy.

Reference class Gemma4AudioFeatureExtractor of transformers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ostro.errors import ConfigError

Samples = np.ndarray[Any, np.dtype[np.float32]]


class Extractor(msgspec.Struct, frozen=True, kw_only=True):
    """A feature extractor's settings; names, meanings and defaults are those of transformers."""

    feature_size: int = 128
    sampling_rate: int = 16000
    frame_length_ms: float = 20.0
    hop_length_ms: float = 10.0
    min_frequency: float = 0.0
    max_frequency: float = 8000.0
    preemphasis: float = 0.0
    fft_overdrive: bool = False
    dither: float = 0.0
    input_scale_factor: float = 1.0
    mel_floor: float = 1e-3
    per_bin_mean: list[float] | None = None
    per_bin_stddev: list[float] | None = None

    @classmethod
    def of(cls, found: Mapping[str, Any], path: Path) -> Extractor:
        """The settings of a file. Raises ConfigError."""
        try:
            settings = msgspec.convert(dict(found), cls)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{path}: {error}") from None
        if fault := settings.refusal():
            raise ConfigError(f"{path}: {fault}")
        return settings

    def refusal(self) -> str | None:
        """The reason why settings are not implemented, or None."""
        if self.preemphasis or self.dither:
            return "preemphasis and dither are not implemented"
        if self.sampling_rate != 16000:
            return f"sampling_rate={self.sampling_rate} is not implemented; expected 16000"
        if not 0 < self.feature_size <= 1024 or not 0 < self.mel_floor < math.inf:
            return f"feature_size={self.feature_size} or mel_floor={self.mel_floor} is not positive"
        if not (1 <= self.hop_length_ms <= 1000 and 1 <= self.frame_length_ms <= 1000):
            return "frame_length_ms or hop_length_ms is not within 1..1000"
        if not 0 <= self.min_frequency < self.max_frequency <= self.sampling_rate / 2:
            return f"max_frequency={self.max_frequency} is out of range"
        for name in ("per_bin_mean", "per_bin_stddev"):
            if (each := getattr(self, name)) is not None and len(each) != self.feature_size:
                return f"{name} lists {len(each)} numbers, feature_size={self.feature_size}"
        return None

    @property
    def frame(self) -> int:
        """Samples of a frame."""
        return round(self.sampling_rate * self.frame_length_ms / 1000)

    @property
    def hop(self) -> int:
        """Samples from one frame to the next."""
        return round(self.sampling_rate * self.hop_length_ms / 1000)

    def frames(self, samples: int) -> int:
        """The frames of `samples` samples; the reference reads one sample behind each frame."""
        return max(0, (samples + self.frame // 2 - self.frame - 1) // self.hop + 1)

    def spectrum(self, samples: Samples) -> Samples:
        """Samples [n] -> [frames, feature_size] float32."""
        padded = np.pad(samples * np.float32(self.input_scale_factor), (self.frame // 2, 0))
        starts = np.arange(self.frames(len(samples)))[:, None] * self.hop
        angles = 2 * np.pi * np.arange(self.frame) / self.frame
        window = (0.5 - 0.5 * np.cos(angles)).astype(np.float32)
        fft = 2 ** (math.ceil(math.log2(self.frame)) + self.fft_overdrive)
        framed = padded[starts + np.arange(self.frame)] * window
        magnitudes = np.abs(np.fft.rfft(framed, n=fft, axis=-1))
        values = np.log(magnitudes @ self.filters(fft) + self.mel_floor)
        if self.per_bin_mean is not None:
            values = values - np.array(self.per_bin_mean)
        if self.per_bin_stddev is not None:
            values = values / np.array(self.per_bin_stddev)
        return values.astype(np.float32)

    def filters(self, fft: int) -> np.ndarray[Any, Any]:
        """Triangular filters of HTK's mel scale: [fft / 2 + 1, feature_size]."""
        low, high = (
            2595 * math.log10(1 + f / 700) for f in (self.min_frequency, self.max_frequency)
        )
        edges = 700 * (10 ** (np.linspace(low, high, self.feature_size + 2) / 2595) - 1)
        bins = np.linspace(0, self.sampling_rate // 2, fft // 2 + 1)
        apart, slopes = np.diff(edges), edges[None] - bins[:, None]
        rising, falling = -slopes[:, :-2] / apart[:-1], slopes[:, 2:] / apart[1:]
        return np.maximum(0, np.minimum(rising, falling))
