"""Sound as it is handed on: samples, and the files that are made of them."""

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
"""Formats of files, as libsndfile calls the container and what is in it."""

PCM = "pcm"
"""Samples alone: int16, little endian."""

OPUS_RATE = 48_000
"""The highest of the few rates that Opus knows."""

BLOCK = 1 << 16
"""Samples that an encoder is given at once."""


@dataclass(frozen=True)
class Sound:
    """samples float32 [n] within -1..1, `rate` of them per second.

    `generations` are those of the adapters that it was made with; None where none were asked for.
    """

    samples: NDArray[np.float32]
    rate: int
    generations: list[str] | None = None

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.rate

    def encode(self, format: str) -> bytes:
        """The sound as a file: "wav", "flac", "mp3", "opus", or "pcm" without a header.

        Raises RequestError for another format, Unsupported where libsndfile does not write it.
        """
        check_format(format)
        if format == PCM:
            return (self.samples * 32767).round().clip(-32768, 32767).astype("<i2").tobytes()
        sound = self.at(OPUS_RATE) if format == "opus" else self
        container, coding = KINDS[format]
        file = io.BytesIO()
        with soundfile().SoundFile(
            file, "w", sound.rate, channels=1, format=container, subtype=coding
        ) as writer:
            # A lossy encoder that is given all at once needs a stack as large.
            for start in range(0, len(sound.samples), BLOCK):
                writer.write(sound.samples[start : start + BLOCK])
        return file.getvalue()

    def save(self, path: str | Path) -> None:
        """Write a file of the format that its name ends with. Raises UsageError for another."""
        path = Path(path)
        path.write_bytes(self.encode(format_of(path)))

    def at(self, rate: int) -> Sound:
        """The same at another rate."""
        from ostro.pipelines import resample

        return self if rate == self.rate else Sound(resample(self.samples, self.rate, rate), rate)


def format_of(path: Path) -> str:
    """The format that a file's name asks for. Raises UsageError where it asks for none."""
    format = path.suffix.removeprefix(".").lower()
    if format not in (*KINDS, PCM):
        endings = ", ".join(f".{kind}" for kind in (*KINDS, PCM))
        raise UsageError(f"{path.name}: end its name with one of {endings}")
    return format


def check_format(format: str) -> None:
    """Raise RequestError for a format that nobody knows, Unsupported where it cannot be written."""
    if format == PCM:
        return
    if format not in KINDS:
        known = ", ".join((*KINDS, PCM))
        raise RequestError(
            f"sound is not written as {format!r:.40}; there are {known}", param="response_format"
        )
    container, coding = KINDS[format]
    if coding not in soundfile().available_subtypes(container):
        raise Unsupported(
            f"libsndfile {soundfile().__libsndfile_version__} does not write {format}; ask for wav",
            param="response_format",
        )


def soundfile() -> Any:
    """The library. Raises Unsupported where it is missing."""
    try:
        import soundfile as library
    except (ImportError, OSError) as error:
        raise Unsupported(f"sound is written by soundfile, which is missing: {error}") from None
    return library
