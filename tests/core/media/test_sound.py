"""Sound files: what is read, how it is resampled, and what is refused."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import soundfile

from ostro.core.errors import RequestError
from ostro.core.media import sound as module
from ostro.core.media.sound import measure_sound, read_sound, resample

FILES = [
    ("WAV", "PCM_16", 1e-4),
    ("WAV", "FLOAT", 1e-6),
    ("FLAC", "PCM_16", 1e-4),
    ("OGG", "VORBIS", 0.05),
    ("MP3", "MPEG_LAYER_III", 0.05),
]


def tone(pitch: float, rate: int = 16000, seconds: float = 1.5) -> np.ndarray[Any, Any]:
    n = int(rate * seconds)
    return (0.3 * np.sin(2 * np.pi * pitch * np.arange(n) / rate)).astype(np.float32)


def written(samples: Any, rate: int = 16000, form: str = "WAV", kind: str = "PCM_16") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=form, subtype=kind)
    return file.getvalue()


@pytest.mark.parametrize(("form", "kind", "near"), FILES)
def test_what_was_written_is_read(form: str, kind: str, near: float) -> None:
    samples = tone(440)
    found = read_sound(written(samples, form=form, kind=kind))
    assert found.dtype == np.float32 and found.shape == samples.shape
    assert np.abs(found - samples)[2000:-2000].max() < near


def test_channels_are_averaged() -> None:
    both = np.stack((tone(300), tone(500)), 1)
    found = read_sound(written(both, kind="FLOAT"))
    assert np.allclose(found, both.mean(1), atol=1e-6)


@pytest.mark.sample(3)
@pytest.mark.parametrize("rate", [8000, 11025, 22050, 24000, 44100, 48000, 96000, 12345])
@pytest.mark.parametrize("pitch", [90, 1000, 3100])
def test_a_tone_stays_a_tone_at_another_rate(rate: int, pitch: float) -> None:
    found = resample(tone(pitch, rate), rate, 16000)
    assert len(found) == -(-len(tone(pitch, rate)) * 16000 // rate)
    expected = tone(pitch, seconds=1.6)[: len(found)]
    assert np.abs(found - expected)[400:-400].max() < 3e-5


@pytest.mark.parametrize(("rate", "target"), [(44100, 16000), (8000, 16000), (16000, 24000)])
def test_amplitude_and_phase_are_kept(rate: int, target: int) -> None:
    for pitch in (50.0, 440.0, 2000.0, 3500.0):
        found = resample(tone(pitch, rate), rate, target).astype(np.float64)
        inner = slice(target // 10, len(found) - target // 10)
        turns = 2 * np.pi * pitch * np.arange(len(found)) / target
        waves = np.stack([np.sin(turns), np.cos(turns)], 1)
        (sine, cosine), *_ = np.linalg.lstsq(waves[inner], found[inner], rcond=None)
        assert np.hypot(sine, cosine) == pytest.approx(0.3, abs=3e-5)
        assert np.arctan2(cosine, sine) == pytest.approx(0, abs=3e-5)


@pytest.mark.parametrize("rate", [24000, 44100, 48000])
def test_what_a_lower_rate_cannot_hold_is_gone(rate: int) -> None:
    found = resample(tone(9500, rate), rate, 16000)
    assert np.abs(found)[400:-400].max() < 3e-5


def test_a_file_at_another_rate_is_resampled() -> None:
    found = read_sound(written(tone(1000, 44100), 44100, kind="FLOAT"))
    assert np.abs(found - tone(1000))[400:-400].max() < 1e-4


@pytest.mark.parametrize(("form", "kind", "near"), FILES)
@pytest.mark.parametrize("share", [0.99, 0.6, 0.3])
def test_a_file_that_is_cut_off_is_refused(form: str, kind: str, near: float, share: float) -> None:
    data = written(tone(440, seconds=3), form=form, kind=kind)
    with pytest.raises(RequestError, match=r"truncated|cannot be read"):
        read_sound(data[: int(len(data) * share)])


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF])
def test_a_wav_whose_length_was_not_known_is_read(size: int) -> None:
    """As programs write them into a pipe."""
    data = bytearray(written(tone(440)))
    at = data.index(b"data")
    data[at + 4 : at + 8] = size.to_bytes(4, "little")
    data[4:8] = size.to_bytes(4, "little")
    if size:
        assert len(read_sound(bytes(data))) == 24000
    else:
        with pytest.raises(RequestError, match="is empty"):
            read_sound(bytes(data))


def test_what_is_no_sound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(data: bytes, said: str) -> None:
        with pytest.raises(RequestError, match=said):
            read_sound(data)

    refused(b"", "cannot be read")
    refused(b"<html>not found</html>", "cannot be read")
    refused(written(tone(440), form="AIFF"), "AIFF audio is not supported; send WAV")
    refused(written(np.zeros(0, np.float32)), "is empty")
    broken = tone(440)
    broken[50] = np.nan
    refused(written(broken, kind="FLOAT"), "NaN or Inf")
    refused(written(tone(440, 2000), 2000), "sample rate 2000 Hz")
    monkeypatch.setattr(module, "SECONDS", 60)
    assert len(read_sound(written(tone(440, 4000, 59), 4000))) == 59 * 16000
    refused(written(tone(440, 4000, 61), 4000), "longer than 1 minutes")


FORMS = [
    *((form, kind) for form, kind, _ in FILES),
    ("OGG", "OPUS"),
    ("WAV", "PCM_U8"),
    ("WAV", "PCM_24"),
    ("WAV", "DOUBLE"),
    ("WAV", "ULAW"),
    ("WAVEX", "PCM_16"),
    ("FLAC", "PCM_24"),
]


@pytest.mark.parametrize(("form", "kind"), FORMS)
def test_the_last_byte_counts(form: str, kind: str) -> None:
    data = written(tone(440, 48000), 48000, form=form, kind=kind)
    found = read_sound(data)
    assert np.abs(found - tone(440))[4000:-4000].max() < 0.05
    for lost in (1, 40):
        with pytest.raises(RequestError, match=r"truncated|cannot be read"):
            read_sound(data[:-lost])
    assert np.array_equal(read_sound(data), found)


def wav(data: bytes = bytes(3200), size: int | None = None, **fields: int) -> bytes:
    """Return a WAV file with the given header fields."""
    defaults = {"kind": 1, "channels": 1, "rate": 16000, "bytes": 32000, "align": 2, "bits": 16}
    head = struct.pack("<HHIIHH", *(defaults | fields).values())
    length = struct.pack("<I", len(data) if size is None else size)
    body = b"WAVEfmt " + struct.pack("<I", 16) + head + b"data" + length + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def test_a_chunk_of_odd_length_has_a_byte_of_padding() -> None:
    samples = written(tone(440))
    cut = samples.index(b"data")
    body = samples[8:cut] + b"note\x03\0\0\0abc\0" + samples[cut:]
    noted = b"RIFF" + struct.pack("<I", len(body)) + body
    assert np.array_equal(read_sound(noted), read_sound(samples))
    with pytest.raises(RequestError, match="truncated"):
        read_sound(noted[:-40])


@pytest.mark.parametrize(
    "data",
    [
        wav(channels=0),
        wav(channels=65535),
        wav(rate=0),
        wav(rate=2**32 - 1),
        wav(bits=0),
        wav(kind=9999),
        wav(kind=0x55),
        wav(kind=2, bits=4),
        wav(size=100_000),
        wav(size=3202),
        wav(b""),
        b"RIFF\0\0\0\0WAVE",
        b"RIFF\xff\xff\xff\xffWAVE" + b"LIST\xff\xff\xff\xff" * 50,
        b"fLaC" + bytes(100),
        b"OggS" + bytes(100),
        b"ID3\x04\0\0\x7f\x7f\x7f\x7f",
        b"\xff\xfb\x90\x00" * 3,
    ],
)
def test_inconsistent_headers_are_rejected(data: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        read_sound(data)
    assert caught.value.param == "file"
    assert len(read_sound(wav())) == 1600


@pytest.mark.parametrize("fields", [{"align": 0}, {"bytes": 0}, {"bits": 13}])
def test_inconsistent_values_of_unused_header_fields_are_ignored(fields: dict[str, int]) -> None:
    assert len(read_sound(wav(**fields))) == 1600


def test_a_flac_that_says_it_is_endless() -> None:
    """36 bits of its header tell how many samples it has."""
    data = bytearray(written(tone(440), form="FLAC"))
    data[21] |= 15
    data[22:26] = b"\xff" * 4
    with pytest.raises(RequestError, match="longer than 180 minutes"):
        read_sound(bytes(data))


def flac(frames: int, rate: int = 48_000, channels: int = 1) -> bytes:
    """A FLAC file of zeros: a hundredth of a byte per sample."""
    file, block = io.BytesIO(), np.zeros((1 << 18, channels), np.int16)
    with soundfile.SoundFile(file, "w", rate, channels, format="FLAC", subtype="PCM_16") as out:
        for start in range(0, frames, len(block)):
            out.write(block[: frames - start])
    return file.getvalue()


def test_sound_is_refused_from_its_header(monkeypatch: pytest.MonkeyPatch) -> None:
    """The samples of all channels count, and none is decoded."""
    monkeypatch.setattr(module, "MAX_SAMPLES", 1 << 20)
    assert len(read_sound(flac(1 << 19, channels=2))) == -(-(1 << 19) // 3)
    for data in (flac((1 << 19) + 1, channels=2), flac((1 << 20) + 1), flac(1 << 18, channels=8)):
        with monkeypatch.context() as patch:
            patch.setattr(soundfile.SoundFile, "read", None)
            with pytest.raises(RequestError, match=r"million samples .* limit is 1 million") as got:
                read_sound(data)
        assert got.value.param == "file"


def test_headers_have_the_samples_of_all_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    """No sample is decoded."""
    monkeypatch.setattr(module, "decode", None)
    assert measure_sound(flac(1000, channels=2)) == 2000
    assert measure_sound(wav(bytes(3200))) == 1600
    for data, said in ((b"none", "cannot be read"), (flac(1, rate=500_000), "sample rate")):
        with pytest.raises(RequestError, match=said):
            measure_sound(data)


def test_sound_without_a_length_is_decoded_up_to_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_SAMPLES", 1 << 19)
    assert len(read_sound(wav(bytes(2 << 19), 0xFFFF_FFFF))) == 1 << 19
    monkeypatch.setattr(module, "check_header", lambda file: None)  # as if it stated no length
    with pytest.raises(RequestError, match=r"0\.8 million samples .* limit is 1 million"):
        read_sound(wav(bytes(4 << 19), 0xFFFF_FFFF))


CHILD = """
import resource, sys
from ostro.core.media.sound import read_sound
import numpy, soundfile, ostro.core.media.sound
data = sys.stdin.buffer.read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
samples = read_sound(data)
print(len(samples), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before >> 10)
"""


def test_the_memory_of_long_sound_is_that_of_its_result() -> None:
    """2^25 samples at 48 kHz: 12 minutes of 43 MB at 16 kHz, and blocks of a few MB."""
    command = [sys.executable, "-c", CHILD]
    done = subprocess.run(command, input=flac(1 << 25), capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    count, megabytes = map(int, done.stdout.split())
    assert count == -(-(1 << 25) // 3) and megabytes < 120


@pytest.mark.parametrize("rate", [8000, 11_025, 16_000, 22_050, 44_100, 48_000, 96_000])
def test_blocks_are_resampled_as_the_whole(monkeypatch: pytest.MonkeyPatch, rate: int) -> None:
    samples = np.random.default_rng(0).uniform(-1, 1, 2 * rate + 7).astype(np.float32)
    data = written(samples, rate, kind="FLOAT")
    whole = read_sound(data)
    assert whole.shape == (-(-len(samples) * 16_000 // rate),)
    assert np.allclose(whole, resample(samples, rate, 16_000), atol=1e-6)
    for block in (1, 999, 10_007):
        if block == 1 and rate != 8000:
            continue  # one sample at a time takes seconds
        monkeypatch.setattr(module, "BLOCK", block)
        assert np.allclose(read_sound(data), whole, atol=1e-6)
