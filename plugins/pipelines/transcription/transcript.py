"""Transcripts and their output formats: text, JSON, SRT, VTT."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import msgspec

from ostro.errors import RequestError
from ostro.pipelines import Segment, Word
from ostro.plugins.pipelines.transcription.languages import name_of


class Transcript(msgspec.Struct, kw_only=True):
    """The transcript of `duration` seconds of audio. `language` is a code ("en").

    `words` are those of all segments, None if they were not requested. `generations` are those of
    the adapters in use, None for a request without adapters.
    """

    text: str
    language: str
    duration: float
    segments: list[Segment] = []
    words: list[Word] | None = None
    task: str = "transcribe"
    generations: list[str] | None = None

    def format(self, form: str) -> str:
        """The transcript as one of FORMATS. Raises RequestError for another."""
        if form not in FORMATS:
            raise RequestError(
                f"unknown response_format {form!r:.40}; expected one of {', '.join(FORMATS)}",
                param="response_format",
            )
        return FORMATS[form](self)


def as_text(transcript: Transcript) -> str:
    return transcript.text + "\n"


def as_json(transcript: Transcript) -> str:
    return json.dumps({"text": transcript.text, **adapters(transcript)}, ensure_ascii=False)


def as_verbose_json(transcript: Transcript) -> str:
    """The verbose JSON of OpenAI's API: the name of the language, all fields of segments, and the
    words if they were requested.
    """
    fields = msgspec.to_builtins(transcript)
    del fields["generations"]
    if transcript.words is None:
        del fields["words"]
    for segment in fields["segments"]:
        del segment["logprobs"], segment["words"]
    fields |= {"language": name_of(transcript.language), **adapters(transcript)}
    return json.dumps(fields, ensure_ascii=False)


def adapters(transcript: Transcript) -> dict[str, list[str]]:
    """The JSON fields on adapters."""
    generations = transcript.generations
    return {} if generations is None else {"adapter_generations": generations}


def as_srt(transcript: Transcript) -> str:
    cues = (
        f"{i}\n{clock(s.start, ',')} --> {clock(s.end, ',')}\n{cue_text(s)}\n"
        for i, s in enumerate(with_speech(transcript), 1)
    )
    return "\n".join(cues)


def as_vtt(transcript: Transcript) -> str:
    cues = (
        f"{clock(s.start, '.')} --> {clock(s.end, '.')}\n{cue_text(s)}\n"
        for s in with_speech(transcript)
    )
    return "\n".join(("WEBVTT\n", *cues))


FORMATS: Mapping[str, Callable[[Transcript], str]] = {
    "json": as_json,
    "text": as_text,
    "srt": as_srt,
    "verbose_json": as_verbose_json,
    "vtt": as_vtt,
}


def with_speech(transcript: Transcript) -> list[Segment]:
    """The segments with text."""
    return [segment for segment in transcript.segments if segment.text.strip()]


def cue_text(segment: Segment) -> str:
    """A segment's text for subtitles: one line, without the arrow of cue timings."""
    return " ".join(segment.text.split()).replace("-->", "->")


def clock(seconds: float, point: str) -> str:
    """Seconds as 01:02:03.456."""
    millis = max(0, round(seconds * 1000))
    minutes, rest = divmod(millis, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{rest // 1000:02}{point}{rest % 1000:03}"
