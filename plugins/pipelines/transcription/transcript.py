"""Transcripts: what was said when, and the forms in which they are told."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import msgspec

from ostro.errors import RequestError
from ostro.plugins.pipelines.transcription.languages import name_of


class Segment(msgspec.Struct, kw_only=True):
    """A stretch of speech, `start` and `end` in seconds.

    `seek` is where its window began, in hundredths of a second; `avg_logprob` (per token),
    `compression_ratio` and `no_speech_prob` are those of its window, drawn with `temperature`.
    """

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class Transcript(msgspec.Struct, kw_only=True):
    """What was said in a sound of `duration` seconds. `language` is a code ("en").

    `generations` are those of the adapters that it was made with; None where none were asked for.
    """

    text: str
    language: str
    duration: float
    segments: list[Segment] = []
    task: str = "transcribe"
    generations: list[str] | None = None

    def format(self, form: str) -> str:
        """The transcript as one of FORMATS. Raises RequestError for another."""
        if form not in FORMATS:
            raise RequestError(
                f"response_format {form!r:.40} is none of {', '.join(FORMATS)}",
                param="response_format",
            )
        return FORMATS[form](self)


def as_text(transcript: Transcript) -> str:
    return transcript.text + "\n"


def as_json(transcript: Transcript) -> str:
    return json.dumps({"text": transcript.text, **adapters(transcript)}, ensure_ascii=False)


def as_verbose_json(transcript: Transcript) -> str:
    """As OpenAI's API has it: the language by its name, everything of each segment."""
    whole = msgspec.to_builtins(transcript)
    del whole["generations"]
    whole |= {"language": name_of(transcript.language), **adapters(transcript)}
    return json.dumps(whole, ensure_ascii=False)


def adapters(transcript: Transcript) -> dict[str, list[str]]:
    """What JSON says of adapters."""
    told = transcript.generations
    return {} if told is None else {"adapter_generations": told}


def as_srt(transcript: Transcript) -> str:
    cues = (
        f"{i}\n{clock(s.start, ',')} --> {clock(s.end, ',')}\n{cue_text(s)}\n"
        for i, s in enumerate(spoken(transcript), 1)
    )
    return "\n".join(cues)


def as_vtt(transcript: Transcript) -> str:
    cues = (
        f"{clock(s.start, '.')} --> {clock(s.end, '.')}\n{cue_text(s)}\n"
        for s in spoken(transcript)
    )
    return "\n".join(("WEBVTT\n", *cues))


FORMATS: Mapping[str, Callable[[Transcript], str]] = {
    "json": as_json,
    "text": as_text,
    "srt": as_srt,
    "verbose_json": as_verbose_json,
    "vtt": as_vtt,
}


def spoken(transcript: Transcript) -> list[Segment]:
    """The segments in which something is said."""
    return [segment for segment in transcript.segments if segment.text.strip()]


def cue_text(segment: Segment) -> str:
    """A segment's text as subtitles can hold it: one line, no arrow of their own."""
    return " ".join(segment.text.split()).replace("-->", "->")


def clock(seconds: float, point: str) -> str:
    """Seconds as 01:02:03.456."""
    whole = max(0, round(seconds * 1000))
    minutes, rest = divmod(whole, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{rest // 1000:02}{point}{rest % 1000:03}"
