"""Decode audio files with libsndfile to resampled mono: WAV, FLAC, OGG and MP3."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ostro.core.errors import RequestError, Unsupported

Samples = np.ndarray[Any, Any]

FORMATS = ("WAV", "WAVEX", "FLAC", "OGG", "MP3")
SECONDS = 3 * 3600
"""Limit on the length of an audio file, in seconds."""
MAX_SAMPLES = 1 << 29
"""Limit on the samples of a file, those of all channels."""
RATES = (4000, 384_000)
BLOCK = 1 << 18
"""Samples that are decoded and resampled at a time."""
UNKNOWN = 0x7FFF_0000
"""Data sizes from this value on, and 0, mean that the writer of a WAV did not know the length."""
CROSSINGS = 24
"""Zero crossings of the resampling filter on each side."""


def read_sound(data: bytes, rate: int = 16000) -> Samples:
    """Decode an audio file to float32 [n] in -1..1 at `rate` Hz; channels are averaged.

    Raises RequestError for a malformed, truncated, empty or too long file, Unsupported if the
    package soundfile is missing.
    """
    with open_sound(data) as file:
        samples, count = decode(file, rate)
        declared, kind = file.frames, file.format
    if cut_off(data, kind, declared, count):
        raise RequestError("the audio file is truncated", param="file")
    if not len(samples):
        raise RequestError("the audio file is empty", param="file")
    if not np.isfinite(samples).all():
        raise RequestError("the audio file contains NaN or Inf", param="file")
    return samples


def measure_sound(data: bytes) -> int:
    """The samples of all channels of an audio file, as its header states them.

    Raises RequestError and Unsupported as `read_sound`, as far as the header shows it.
    """
    with open_sound(data) as file:
        return int(file.frames * file.channels)


@contextmanager
def open_sound(data: bytes) -> Iterator[Any]:
    """An audio file whose header was checked. Raises RequestError and Unsupported."""
    try:
        import soundfile
    except (ImportError, OSError) as error:
        raise Unsupported(f"audio requires the package soundfile: {error}") from None
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            check_header(file)
            yield file
    except soundfile.LibsndfileError as error:
        raise RequestError(
            f"the audio file cannot be read ({error.error_string}); send {', '.join(FORMATS)}",
            param="file",
        ) from None


def check_header(file: Any) -> None:
    """Raise RequestError for an unsupported format or sample rate, and for sound that is too long,
    before samples are read.
    """
    if file.format not in FORMATS:
        raise RequestError(
            f"{file.format} audio is not supported; send {', '.join(FORMATS)}", param="file"
        )
    if not RATES[0] <= file.samplerate <= RATES[1]:
        raise RequestError(
            f"the sample rate {file.samplerate} Hz is not within {RATES[0]}..{RATES[1]}",
            param="file",
        )
    check_length(file, file.frames)


def check_length(file: Any, frames: int) -> None:
    """Raise RequestError for a file of this many frames, samples of each channel."""
    if frames > SECONDS * file.samplerate:
        raise RequestError(f"the audio is longer than {SECONDS // 60} minutes", param="file")
    if (samples := frames * file.channels) > MAX_SAMPLES:
        raise RequestError(
            f"the audio has {samples / 1e6:.1f} million samples in {file.channels} channels; the "
            f"limit is {MAX_SAMPLES / 1e6:.0f} million: send one channel, or a lower sample rate",
            param="file",
        )


def decode(file: Any, rate: int) -> tuple[Samples, int]:
    """The samples of a file at `rate` Hz, float32 [n], and the number of frames that were read.

    Raises RequestError for a file that is longer than its header states, and too long.
    """
    resampler = Resampler(file.samplerate, rate)
    # Most of it is never written, and takes no memory: the length in a header may be wrong.
    most = min(SECONDS * file.samplerate, MAX_SAMPLES // file.channels)
    samples, count, end = np.empty(resampler.count(most), np.float32), 0, 0
    for block in blocks(file):
        count += len(block)
        check_length(file, count)
        end = append(samples, end, resampler.push(block))
    end = append(samples, end, resampler.finish())
    return samples[:end], count


def append(samples: Samples, end: int, more: Samples) -> int:
    """Write more samples at an index; return the index after them."""
    samples[end : end + len(more)] = more
    return end + len(more)


def blocks(file: Any) -> Iterator[Samples]:
    """Read blocks of samples with channels averaged, whatever length the header states."""
    step = max(1, BLOCK // file.channels)
    while len(block := file.read(step, dtype="float32", always_2d=True)):
        yield block.mean(1)


def cut_off(data: bytes, kind: str, declared: int, read: int) -> bool:
    """Whether a file is shorter than its header states."""
    if kind == "MP3":
        return mp3_is_short(data)  # the declared number of samples may be an estimate
    if kind == "OGG":
        return ogg_is_short(data)
    return read < declared or (kind.startswith("WAV") and wav_is_short(data))


def mp3_is_short(data: bytes) -> bool:
    """Whether an MP3 has fewer bytes than its Xing header states; False without that header."""
    tag = [byte << 7 * i for i, byte in enumerate(reversed(data[6:10]))]
    start = 10 + sum(tag) if data[:3] == b"ID3" else 0
    first = data[start : start + 256]
    at = max(first.find(b"Xing"), first.find(b"Info"))
    if at < 0 or not first[at + 7] & 2:
        return False
    field = at + 8 + 4 * (first[at + 7] & 1)
    return len(data) - start < int.from_bytes(first[field : field + 4], "big")


def ogg_is_short(data: bytes) -> bool:
    """Whether an OGG's last page is incomplete, or not marked as the last."""
    at = data.rfind(b"OggS")
    if at < 0 or len(data) < at + 27:
        return True
    sizes = data[at + 27 : at + 27 + data[at + 26]]
    return not data[at + 5] & 4 or len(data) < at + 27 + data[at + 26] + sum(sizes)


def wav_is_short(data: bytes) -> bool:
    """Whether a WAV has fewer bytes than the header of its data chunk states."""
    at = 12
    while at + 8 <= len(data):
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        if data[at : at + 4] == b"data":
            return 0 < size < UNKNOWN and at + 8 + size > len(data)
        at += 8 + size + size % 2
    return True


def resample(samples: Samples, rate: int, target: int) -> Samples:
    """Resample float32 [n] at `rate` Hz to float32 [ceil(n * target / rate)] at `target` Hz."""
    resampler = Resampler(rate, target)
    parts = [resampler.push(samples[i : i + BLOCK]) for i in range(0, len(samples), BLOCK)]
    return np.concatenate([*parts, resampler.finish()])


class Resampler:
    """Resamples blocks of float32 [n] at `rate` Hz to `target` Hz.

    Polyphase filter: a sinc with a Kaiser window and its cutoff at the lower of the two rates.
    """

    def __init__(self, rate: int, target: int) -> None:
        shared = math.gcd(rate, target)
        self.up, self.down = target // shared, rate // shared
        cut = min(1.0, target / rate)
        self.half = math.ceil(CROSSINGS / cut)
        self.cut = cut
        self.given = self.returned = 0
        self.inputs = np.zeros(self.half - 1, np.float32)
        """Samples that further ones of the result depend on, with silence before the first."""

    def count(self, given: int) -> int:
        """The number of samples that this many become."""
        return -(-given * self.up // self.down)

    @cached_property
    def phases(self) -> list[tuple[int, Samples]]:
        """The first input of each of `up` samples in a row, and the filter's weights."""
        starts = (divmod(phase * self.down, self.up) for phase in range(self.up))
        return [(first, taps(rest / self.up, self.half, self.cut)) for first, rest in starts]

    def push(self, samples: Samples) -> Samples:
        """Take a block; return the samples that depend on no later block."""
        self.given += len(samples)
        if self.up == self.down:
            return samples
        self.inputs = np.concatenate([self.inputs, samples])
        # `down` inputs become `up` samples, each the sum over 2 * half inputs.
        cycles = max(0, (len(self.inputs) - 2 * self.half + 1) // self.down)
        out = np.empty(cycles * self.up, np.float32)
        if cycles:
            windows = sliding_window_view(self.inputs, 2 * self.half)
            for phase, (first, weights) in enumerate(self.phases):
                out[phase :: self.up] = windows[first :: self.down][:cycles] @ weights
        self.inputs = self.inputs[cycles * self.down :]
        self.returned += len(out)
        return out

    def finish(self) -> Samples:
        """The last samples, with silence after the last block."""
        missing = 0 if self.up == self.down else self.count(self.given) - self.returned
        silence = np.zeros(2 * self.half + (missing // self.up + 1) * self.down, np.float32)
        return self.push(silence)[:missing] if missing else silence[:0]


def taps(shift: float, half: int, cut: float) -> Samples:
    """The filter's weights [2 * half] for a point `shift` samples after the center."""
    away = np.arange(1 - half, half + 1) - shift
    window = np.i0(9.0 * np.sqrt(np.maximum(0, 1 - (away / half) ** 2))) / np.i0(9.0)
    weights = cut * np.sinc(cut * away) * window
    return (weights / weights.sum()).astype(np.float32)
