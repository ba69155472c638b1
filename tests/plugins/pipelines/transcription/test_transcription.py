"""Transcriptions against transformers' own, window by window."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from tiny.whisper import END, IDS, TIMES, make_whisper, reference_segments, sound
from tokenizers import Tokenizer

from ostro.core.errors import (
    AdapterNotFound,
    ConfigError,
    RequestError,
    TokenizerError,
    UsageError,
)
from ostro.core.settings import Settings
from ostro.core.tokenizer import load_tokenizer
from ostro.entrypoints.python.load import open_model
from ostro.entrypoints.python.model import LocalModel
from ostro.plugins.pipelines.transcription.controls import Controls
from ostro.plugins.pipelines.transcription.transcript import Transcript

PLAIN: dict[str, Any] = {
    "temperatures": (0.0,),
    "repetitive": None,
    "improbable": None,
    "silent": None,
}
SEEDS = (0, 1)


def open_tiny(folder: Path) -> LocalModel:
    model = open_model(Settings(reference=str(folder), dtype="float32", threads=1))
    assert isinstance(model, LocalModel)
    return model


def between(values: list[float], share: float) -> float:
    """A limit with about a share of the values below it, and none near it."""
    found = sorted({round(value, 9) for value in values})
    at = max(1, int(share * len(found)))
    return (found[at - 1] + found[at]) / 2


class Pair:
    """A model of ours and transformers' of the same weights."""

    def __init__(self, folder: Path, seed: int, **shape: Any) -> None:
        self.theirs = make_whisper(folder, seed, **shape)
        self.ours = open_tiny(folder)
        self.compute_spectrum = self.ours.pipeline("transcribe").compute_spectrum

    def compare(self, samples: Any, how: dict[str, Any], **options: Any) -> Transcript:
        """Ours is theirs, segment by segment."""
        expected = reference_segments(
            self.theirs, self.compute_spectrum(samples), temperature=0.0, **how
        )
        found: Transcript = self.ours.transcribe(samples, **{**PLAIN, **options})
        ours = [(each.start, each.end, each.tokens) for each in found.segments]
        assert ours == [(round(e["start"], 3), round(e["end"], 3), e["tokens"]) for e in expected]
        return found


@pytest.fixture(scope="module", params=SEEDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Pair]:
    logging.getLogger("transformers").setLevel(logging.ERROR)
    made = Pair(tmp_path_factory.mktemp("whisper"), request.param)
    yield made
    made.ours.close()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: Any) -> Iterator[LocalModel]:
    folder = tmp_path_factory.mktemp("whisper")
    make_whisper(folder, 0)
    with open_tiny(folder) as model:
        yield model


@pytest.mark.sample(1)
def test_a_long_sound_gives_the_segments_of_the_reference(pair: Pair) -> None:
    found = pair.compare(sound(4.3), {"task": "transcribe"})
    assert len({each.seek for each in found.segments}) >= 4
    spectrum = torch.from_numpy(pair.compute_spectrum(sound(4.3)))[None]
    detected = pair.theirs.detect_language(spectrum, num_segment_frames=100)
    assert detected.tolist() == [IDS[found.language]]
    times = [token for each in found.segments for token in each.tokens if token >= TIMES]
    assert times and all(END not in each.tokens for each in found.segments)
    assert found.duration == 4.3 and found.text == "".join(s.text for s in found.segments).strip()


@pytest.mark.slow
def test_windows_of_thirty_seconds(tmp_path: Path) -> None:
    pair = Pair(tmp_path, 3, seconds=30)
    found = pair.compare(sound(75), {"task": "transcribe"})
    assert found.duration == 75 and len({each.seek for each in found.segments}) >= 3
    pair.ours.close()


@pytest.mark.sample(1)
def test_a_short_sound_is_one_window(pair: Pair) -> None:
    how = {"task": "transcribe", "language": "en"}
    found = pair.compare(sound(0.6, 4), how, language="en")
    assert {each.seek for each in found.segments} <= set(range(60))


@pytest.mark.sample(1)
def test_the_language_and_task_are_selected(pair: Pair) -> None:
    both = {"language": "german", "task": "translate"}
    found = pair.compare(sound(3, 1), both, **both)
    assert (found.language, found.task) == ("de", "translate")
    other = pair.compare(sound(3, 1), {"language": "fr", "task": "transcribe"}, language="fr-CA")
    assert other.segments[0].tokens != found.segments[0].tokens


@pytest.mark.slow
@pytest.mark.parametrize("follow", [False, True])
def test_a_prompt_and_earlier_text_come_before_a_window(pair: Pair, follow: bool) -> None:
    words = pair.ours.pipeline("transcribe").model.tokenizer.encode(" Ada", special=False)
    guide = torch.tensor([IDS["startofprev"], *words])
    how = {"task": "transcribe", "language": "en", "prompt_ids": guide}
    options = {"language": "en", "prompt": "Ada ", "follow": follow}
    found = pair.compare(sound(3, 2), {**how, "condition_on_prev_tokens": follow}, **options)
    alone = pair.ours.transcribe(sound(3, 2), **{**PLAIN, **options, "prompt": None})
    assert found.segments != alone.segments


@pytest.mark.sample(1)
def test_earlier_text_comes_before_a_window_without_a_prompt(pair: Pair) -> None:
    how = {"task": "transcribe", "language": "en", "condition_on_prev_tokens": True}
    pair.compare(sound(3, 2), how, language="en", follow=True)


@pytest.mark.sample(1)
@pytest.mark.parametrize("follow", [False, True])
def test_windows_without_speech_are_skipped(pair: Pair, follow: bool) -> None:
    """Thresholds in the middle of what the windows show, so that some are skipped."""
    sounds, how = sound(4.3, 5), {"task": "transcribe", "condition_on_prev_tokens": follow}
    all_ = pair.compare(sounds, how, follow=follow).segments
    silent = between([each.no_speech_prob for each in all_], 0.3)
    improbable = between([each.avg_logprob for each in all_], 0.7)
    limits = {"no_speech_threshold": silent, "logprob_threshold": improbable}
    options = {"silent": silent, "improbable": improbable, "follow": follow}
    kept = pair.compare(sounds, {**how, **limits}, **options)
    assert kept.segments != all_


def test_without_times_a_sound_is_one_text(tmp_path: Path) -> None:
    pair = Pair(tmp_path, 2, suppress_tokens=list(range(TIMES, TIMES + 51)))
    samples = sound(1, 6)
    features = torch.from_numpy(pair.compute_spectrum(samples))[None]
    expected = pair.theirs.generate(features, task="transcribe", language="en")[0].tolist()
    found = pair.ours.transcribe(samples, language="en", times=False, **PLAIN)
    assert [each.tokens for each in found.segments] == [[t for t in expected if t != END]]
    pair.ours.close()


@pytest.mark.slow
def test_a_text_that_looks_wrong_is_written_again(tiny: LocalModel) -> None:
    hot = {"temperatures": (0.0, 0.4, 0.9), "seed": 7}
    never = tiny.transcribe(sound(2), **{**PLAIN, **hot}, language="en")
    assert {each.temperature for each in never.segments} == {0.0}
    always = tiny.transcribe(sound(2), **{**PLAIN, **hot, "repetitive": 0.0}, language="en")
    assert {each.temperature for each in always.segments} == {0.9}
    assert (
        always.segments
        == tiny.transcribe(sound(2), **{**PLAIN, **hot, "repetitive": 0.0}, language="en").segments
    )
    improbable = max(each.avg_logprob for each in never.segments) - 1e-6
    mixed = tiny.transcribe(sound(2), **{**PLAIN, **hot, "improbable": improbable}, language="en")
    assert mixed.segments != never.segments
    for each in mixed.segments:
        assert each.avg_logprob >= improbable or each.temperature == 0.9


def test_segments_come_as_they_are_written(tiny: LocalModel) -> None:
    pipeline = tiny.pipeline("transcribe")

    async def first() -> Any:
        segments = pipeline.stream(sound(4), pipeline.new_task(PLAIN))
        try:
            return await anext(segments)
        finally:
            await segments.aclose()

    assert tiny.wait(first()) == tiny.transcribe(sound(4), **PLAIN).segments[0]
    assert not tiny.engine.live


def test_requests_select_adapters(tiny: LocalModel) -> None:
    with pytest.raises(AdapterNotFound, match="'nobody'"):
        tiny.transcribe(sound(1), adapters=["nobody"], **PLAIN)
    assert tiny.transcribe(sound(1), adapters={}, **PLAIN) == tiny.transcribe(sound(1), **PLAIN)


def test_sounds_under_way_at_once_say_what_they_say_alone(tiny: LocalModel) -> None:
    sounds = [sound(1.2 + i / 2, i) for i in range(4)]
    pipeline = tiny.pipeline("transcribe")

    async def together() -> Any:
        return await asyncio.gather(*(pipeline.transcribe(each, **PLAIN) for each in sounds))

    found = tiny.wait(together())
    for each, samples in zip(found, sounds, strict=True):
        alone = tiny.transcribe(samples, **PLAIN)
        assert [s.tokens for s in each.segments] == [s.tokens for s in alone.segments]


def test_a_tokenizer_of_another_family_is_refused(tmp_path: Path) -> None:
    make_whisper(tmp_path)
    words = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).to_str()
    (tmp_path / "tokenizer.json").write_text(words.replace("<|notimestamps|>", "<|none|>"))
    with pytest.raises(TokenizerError, match="not a Whisper tokenizer"):
        open_tiny(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000])
def test_a_generation_config_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    make_whisper(tmp_path)
    words = load_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"^generation_config\.json: "):
        Controls.read(words, tmp_path)


def test_a_model_without_a_generation_config_is_known_by_its_tokenizer(tmp_path: Path) -> None:
    make_whisper(tmp_path)
    words = load_tokenizer(tmp_path)
    stated = Controls.read(words, tmp_path)
    (tmp_path / "generation_config.json").unlink()
    found = Controls.read(words, tmp_path)
    assert replace(stated, never=(), never_first=(), latest=None) == found
    assert found.opening("de", "translate", True) == [
        IDS[name] for name in ("startoftranscript", "de", "translate")
    ]


@pytest.mark.slow
def test_a_file_says_what_its_samples_say(tiny: LocalModel, tmp_path: Path) -> None:
    samples, data = sound(2.2, 8), io.BytesIO()
    soundfile.write(data, samples, 16000, format="WAV", subtype="FLOAT")
    file = tmp_path / "sound.wav"
    file.write_bytes(data.getvalue())
    expected = tiny.transcribe(samples, **PLAIN)
    assert tiny.transcribe(data.getvalue(), **PLAIN) == expected
    assert tiny.transcribe(file, **PLAIN) == expected
    verbose = json.loads(expected.format("verbose_json"))
    assert verbose["language"] in ("english", "german", "french")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"language": "klingon"}, "does not support the language 'klingon'"),
        ({"task": "sing"}, "task 'sing'"),
        ({"temperature": 3.0}, "temperature"),
        ({"temperature": "hot"}, "temperatures"),
        ({"langauge": "en"}, "nearest: language"),
        ({"language": "en", "languages": ["en", "de"]}, "either language or languages"),
    ],
    ids=str,
)
def test_wrong_options_are_refused(tiny: LocalModel, options: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        tiny.transcribe(sound(1), **options)


def test_what_is_no_sound_is_refused(tiny: LocalModel) -> None:
    with pytest.raises(RequestError, match="least"):
        tiny.transcribe(sound(0.05))
    with pytest.raises(RequestError, match="one channel"):
        tiny.transcribe(np.zeros((2, 16000), np.float32))
    with pytest.raises(RequestError, match="cannot be read"):
        tiny.transcribe(b"RIFF is not enough")
    with pytest.raises(UsageError, match="no-such-file"):
        tiny.transcribe("no-such-file.wav")


def test_an_english_model_has_no_language_tokens(tmp_path: Path) -> None:
    make_whisper(tmp_path, 0, is_multilingual=False)
    with open_tiny(tmp_path) as model:
        found = model.transcribe(sound(1), **PLAIN)
        assert found.language == "en"
        with pytest.raises(RequestError, match="does not support the language 'de'"):
            model.transcribe(sound(1), language="de")
        with pytest.raises(RequestError, match="task 'translate'"):
            model.transcribe(sound(1), task="translate")
