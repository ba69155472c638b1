"""Decode audio files with libsndfile to resampled mono: WAV, FLAC, OGG and MP3."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ostro.core.errors import RequestError, Unsupported

Samples = np.ndarray[Any, Any]

FORMATS = ("WAV", "WAVEX", "FLAC", "OGG", "MP3")
SECONDS = 3 * 3600
"""Limit on the length of an audio file, in seconds."""
MOST = 1 << 29
"""Limit on the samples of a file."""
RATES = (4000, 384_000)
BLOCK = 1 << 20
UNKNOWN = 0x7FFF_0000
"""Data sizes from this value on, and 0, mean that the writer of a WAV did not know the length."""
CROSSINGS = 24
"""Zero crossings of the resampling filter on each side."""


def read_sound(data: bytes, rate: int = 16000) -> Samples:
    """Decode an audio file to float32 [n] in -1..1 at `rate` Hz; channels are averaged.

    Raises RequestError for a malformed, truncated, empty or too long file, Unsupported if the
    package soundfile is missing.
    """
    try:
        import soundfile
    except (ImportError, OSError) as error:
        raise Unsupported(f"audio requires the package soundfile: {error}") from None
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            check_header(file)
            parts = list(blocks(file))
            declared, theirs, kind = file.frames, file.samplerate, file.format
    except soundfile.LibsndfileError as error:
        raise RequestError(
            f"the audio file cannot be read ({error.error_string}); send {', '.join(FORMATS)}",
            param="file",
        ) from None
    samples = np.concatenate([np.zeros(0, np.float32), *parts])
    if cut_off(data, kind, declared, len(samples)):
        raise RequestError("the audio file is truncated", param="file")
    if not len(samples):
        raise RequestError("the audio file is empty", param="file")
    if not np.isfinite(samples).all():
        raise RequestError("the audio file contains NaN or Inf", param="file")
    return resample(samples, theirs, rate)


def check_header(file: Any) -> None:
    """Raise RequestError for an unsupported format or sample rate, before samples are read."""
    if file.format not in FORMATS:
        raise RequestError(
            f"{file.format} audio is not supported; send {', '.join(FORMATS)}", param="file"
        )
    if not RATES[0] <= file.samplerate <= RATES[1]:
        raise RequestError(
            f"the sample rate {file.samplerate} Hz is not within {RATES[0]}..{RATES[1]}",
            param="file",
        )


def blocks(file: Any) -> Iterator[Samples]:
    """Read blocks of samples with channels averaged, whatever length the header states."""
    most, count = min(SECONDS * file.samplerate, MOST), 0
    step = max(1, BLOCK // file.channels)
    while len(block := file.read(step, dtype="float32", always_2d=True)):
        count += len(block)
        if count > most:
            raise RequestError(
                f"the audio is longer than {most // file.samplerate // 60} minutes", param="file"
            )
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
    """Resample float32 [n] at `rate` Hz to float32 [ceil(n * target / rate)] at `target` Hz.

    Polyphase filter: a sinc with a Kaiser window and its cutoff at the lower of the two rates.
    """
    if rate == target:
        return samples
    shared = math.gcd(rate, target)
    up, down = target // shared, rate // shared
    cut = min(1.0, target / rate)
    half = math.ceil(CROSSINGS / cut)
    count = -(-len(samples) * up // down)
    out = np.empty(count, np.float32)
    padded = np.pad(samples, (half - 1, half + 1))
    windows = sliding_window_view(padded, 2 * half)
    for phase in range(min(up, count)):
        first, rest = divmod(phase * down, up)
        mine = out[phase::up]
        inputs = windows[first::down][: len(mine)]
        mine[:] = inputs @ taps(rest / up, half, cut)
    return out


def taps(shift: float, half: int, cut: float) -> Samples:
    """The filter's weights [2 * half] for a point `shift` samples after the center."""
    away = np.arange(1 - half, half + 1) - shift
    window = np.i0(9.0 * np.sqrt(np.maximum(0, 1 - (away / half) ** 2))) / np.i0(9.0)
    weights = cut * np.sinc(cut * away) * window
    return (weights / weights.sum()).astype(np.float32)
