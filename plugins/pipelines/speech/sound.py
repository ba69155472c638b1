"""Generated audio: samples, resampling, and encoding to audio files."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostro.errors import RequestError, Unsupported, UsageError

KINDS: Mapping[str, tuple[str, str]] = {
    "wav": ("WAV", "PCM_16"),
    "flac": ("FLAC", "PCM_16"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
    "opus": ("OGG", "OPUS"),
}
"""File formats, with libsndfile's names of the container and the encoding."""

PCM = "pcm"
"""Raw samples: int16, little endian."""

RATES: Mapping[str, tuple[int, ...]] = {
    "mp3": (8000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000),
    "opus": (48_000,),
}
"""The sample rates of formats that do not have all; for Opus the highest one."""

BLOCK = 1 << 16
"""The number of samples per call of an encoder."""


@dataclass(frozen=True)
class Sound:
    """Audio: samples float32 [n] within -1..1, `rate` per second.

    `generations` are those of the adapters in use, None for a request without adapters.
    `prompt_tokens` and `tokens` are those of the text and those that the model generated.
    """

    samples: NDArray[np.float32]
    rate: int
    generations: list[str] | None = None
    prompt_tokens: int = 0
    tokens: int = 0

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.rate

    def encode(self, format: str) -> bytes:
        """Encode as a file: "wav", "flac", "mp3", "opus", or "pcm" without a header.

        Raises RequestError for another format, Unsupported if libsndfile lacks the format.
        """
        check_format(format)
        if format == PCM:
            return (self.samples * 32767).round().clip(-32768, 32767).astype("<i2").tobytes()
        sound = self.at(rate_of(format, self.rate))
        container, coding = KINDS[format]
        file = io.BytesIO()
        with soundfile().SoundFile(
            file, "w", sound.rate, channels=1, format=container, subtype=coding
        ) as writer:
            # lossy encoders allocate all samples of a call on the stack
            for start in range(0, len(sound.samples), BLOCK):
                writer.write(sound.samples[start : start + BLOCK])
        return file.getvalue()

    def save(self, path: str | Path) -> None:
        """Write a file in the format of its suffix. Raises UsageError for an unknown suffix."""
        path = Path(path)
        path.write_bytes(self.encode(format_of(path)))

    def at(self, rate: int) -> Sound:
        """The audio, resampled to another rate."""
        from ostro.pipelines import resample

        return self if rate == self.rate else Sound(resample(self.samples, self.rate, rate), rate)


def rate_of(format: str, rate: int) -> int:
    """The sample rate in a format: the same one, else the next higher, else the highest."""
    rates = RATES.get(format, (rate,))
    return next((each for each in rates if each >= rate), rates[-1])


def format_of(path: Path) -> str:
    """The format of a file's suffix. Raises UsageError for an unknown suffix."""
    format = path.suffix.removeprefix(".").lower()
    if format not in (*KINDS, PCM):
        endings = ", ".join(f".{kind}" for kind in (*KINDS, PCM))
        raise UsageError(f"{path.name}: unknown audio format; expected a suffix of {endings}")
    return format


def check_format(format: str) -> None:
    """Raise RequestError for an unknown format, Unsupported if libsndfile cannot write it."""
    if format == PCM:
        return
    if format not in KINDS:
        known = ", ".join((*KINDS, PCM))
        raise RequestError(
            f"unknown audio format {format!r:.40}; expected one of {known}", param="response_format"
        )
    container, coding = KINDS[format]
    if coding not in soundfile().available_subtypes(container):
        raise Unsupported(
            f"libsndfile {soundfile().__libsndfile_version__} does not write {format}; use wav",
            param="response_format",
        )


def soundfile() -> Any:
    """The module soundfile. Raises Unsupported if it is missing."""
    try:
        import soundfile as library
    except (ImportError, OSError) as error:
        raise Unsupported(
            f"writing audio needs soundfile, which is missing: {error}; pip install soundfile"
        ) from None
    return library
