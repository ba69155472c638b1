"""The forms of a transcript, windows cut into segments, and languages by their names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ostro.core.errors import RequestError
from ostro.plugins.pipelines.transcription.languages import NAMES, code_of, name_of
from ostro.plugins.pipelines.transcription.transcript import Segment, Transcript, clock
from ostro.plugins.pipelines.transcription.window import (
    TokenSegment,
    WindowResult,
    cut,
    prompt_tokens,
)


def segment(id: int, start: float, end: float, text: str) -> Segment:
    return Segment(
        id=id,
        seek=0,
        start=start,
        end=end,
        text=text,
        tokens=[1, 2],
        temperature=0.0,
        avg_logprob=-0.5,
        compression_ratio=1.1,
        no_speech_prob=0.01,
    )


WHOLE = Transcript(
    text="Hello there. Grüße --> alle",
    language="de",
    duration=3725.5,
    segments=[
        segment(0, 0.0, 1.5, " Hello\nthere."),
        segment(1, 1.5, 1.5, " "),
        segment(2, 3661.2345, 3725.5, " Grüße --> alle"),
    ],
)


def test_text_and_json() -> None:
    assert WHOLE.format("text") == "Hello there. Grüße --> alle\n"
    assert json.loads(WHOLE.format("json")) == {"text": WHOLE.text}


def test_verbose_json_has_all_fields() -> None:
    found = json.loads(WHOLE.format("verbose_json"))
    assert (found["language"], found["duration"], found["task"]) == ("german", 3725.5, "transcribe")
    assert [each["text"] for each in found["segments"]] == [s.text for s in WHOLE.segments]
    assert found["segments"][0]["avg_logprob"] == -0.5


def test_subtitles_are_numbered() -> None:
    assert WHOLE.format("srt") == (
        "1\n00:00:00,000 --> 00:00:01,500\nHello there.\n\n"
        "2\n01:01:01,234 --> 01:02:05,500\nGrüße -> alle\n"
    )
    assert WHOLE.format("vtt") == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nHello there.\n\n"
        "01:01:01.234 --> 01:02:05.500\nGrüße -> alle\n"
    )
    assert Transcript(text="", language="en", duration=1).format("srt") == ""


def test_another_form_is_refused() -> None:
    with pytest.raises(RequestError, match="'xml'; expected one of json, text, srt"):
        WHOLE.format("xml")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "00:00:00.000"),
        (59.9996, "00:01:00.000"),
        (3599.999, "00:59:59.999"),
        (-1, "00:00:00.000"),
    ],
)
def test_clock(seconds: float, said: str) -> None:
    assert clock(seconds, ".") == said


T = 100


@pytest.mark.parametrize(
    ("tokens", "pieces", "done"),
    [
        ([1, 2], [TokenSegment(0, 40, [1, 2])], 80),
        ([T, 1, T + 9], [TokenSegment(0, 9, [T, 1, T + 9])], 80),
        ([T + 3, 1], [TokenSegment(0, 3, [T + 3, 1])], 80),
        ([T, 1], [TokenSegment(0, 40, [T, 1])], 80),
        ([T, 1, T + 9, T + 9], [TokenSegment(0, 9, [T, 1, T + 9, T + 9])], 18),
        ([T, 1, T + 9, T + 11, 2], [TokenSegment(0, 9, [T, 1, T + 9, T + 11])], 18),
        (
            [T, 1, T + 9, T + 11, 2, T + 20],
            [TokenSegment(0, 9, [T, 1, T + 9]), TokenSegment(11, 20, [T + 11, 2, T + 20])],
            80,
        ),
        (
            [T, 1, T + 9, T + 11, 2, T + 20, T + 20, 3],
            [TokenSegment(0, 9, [T, 1, T + 9]), TokenSegment(11, 20, [T + 11, 2, T + 20, T + 20])],
            40,
        ),
        ([], [TokenSegment(0, 40, [])], 80),
    ],
    ids=str,
)
def test_windows_are_cut_at_pairs_of_times(
    tokens: list[int], pieces: list[TokenSegment], done: int
) -> None:
    assert cut(tokens, T, 80) == (pieces, done)


def test_earlier_text_leaves_out_the_second_of_two_times() -> None:
    said = [[7, 8], [T, 1, T + 9], [T + 9, 2, T + 20, T + 20]]
    assert prompt_tokens(said, T, 99) == [7, 8, T, 1, T + 9, T + 9, 2, T + 20]
    assert prompt_tokens(said, T, 3) == [T + 9, 2, T + 20]


def test_repetitions_compress() -> None:
    def ratio(text: str) -> float:
        tokens: Any = {"context": [], "tokens": [], "logprobs": [], "ended": True}
        return WindowResult(**tokens, text=text, logprob=0, temperature=0, silence=0).ratio

    assert ratio("") == 0
    assert ratio("so it goes. " * 30) > 2.4 > ratio("the quick brown fox jumps over a lazy dog")


def test_languages_are_known_by_code_and_name() -> None:
    assert len(NAMES) == 100 and NAMES["yue"] == "cantonese" and NAMES["ht"] == "haitian creole"
    assert [code_of(name) for name in ("en", "EN-us", "pt_BR", "German", "mandarin")] == [
        "en",
        "en",
        "pt",
        "de",
        "zh",
    ]
    assert name_of("de") == "german" and name_of("xx") == "xx"
