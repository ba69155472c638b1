"""OpenAI's routes for speech to text: transcriptions, and translations to English."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import Response

from ostro.core.errors import RequestError, Unsupported, nearest
from ostro.core.pipeline import parse
from ostro.core.records import Route
from ostro.entrypoints.http.body import check_values, read_form
from ostro.entrypoints.http.context import caller_of, operations_of
from ostro.entrypoints.http.responses import adapter_headers, unless_none
from ostro.entrypoints.http.stream import EventStream, event, unless_disconnected
from ostro.entrypoints.operations.media import TranscriptEvent, TranscriptionRequest
from ostro.entrypoints.operations.operations import Operations

TYPES = {
    "json": "application/json",
    "verbose_json": "application/json",
    "text": "text/plain; charset=utf-8",
    "srt": "application/x-subrip; charset=utf-8",
    "vtt": "text/vtt; charset=utf-8",
}
FIELDS = {"file", *TranscriptionRequest.__struct_fields__}
LISTS = {"timestamp_granularities[]", "timestamp_granularities", "include[]"}


class TranscriptionForm(TranscriptionRequest, kw_only=True):
    """The form of a transcription."""

    media_type: ClassVar[str] = "multipart/form-data"

    file: bytes


class TranscriptDelta(msgspec.Struct, kw_only=True, tag_field="type", tag="transcript.text.delta"):
    """The next segment of a streamed transcript."""

    delta: str


class TranscriptDone(msgspec.Struct, kw_only=True, tag_field="type", tag="transcript.text.done"):
    """The end of a streamed transcript: all of its text."""

    text: str
    adapter_generations: list[str] | UnsetType = UNSET


class TranscriptSegment(msgspec.Struct, kw_only=True):
    """A stretch of speech; times are in seconds, `seek` is in hundredths of a second."""

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


class Transcription(msgspec.Struct, kw_only=True):
    """A transcript. With response_format json it has `text` alone."""

    text: str
    task: str | UnsetType = UNSET
    language: str | UnsetType = UNSET
    duration: float | UnsetType = UNSET
    segments: list[TranscriptSegment] | UnsetType = UNSET
    adapter_generations: list[str] | UnsetType = UNSET


async def transcriptions(request: Request) -> Response:
    """Transcribe an audio file."""
    return await answer(request, "transcribe")


async def translations(request: Request) -> Response:
    """Transcribe an audio file in English."""
    return await answer(request, "translate")


async def answer(request: Request, task: Literal["transcribe", "translate"]) -> Response:
    operations, caller = operations_of(request), caller_of(request)
    async with read_form(request) as form:
        check_fields(form)
        body, audio = transcription_of(form), await file_of(form)
    if body.stream:
        return EventStream(chunks(operations.transcript_events(body, audio, task, caller)))
    operation = operations.transcribe if task == "transcribe" else operations.translate
    transcript = await unless_disconnected(request, operation(body, audio, caller))
    form_name = body.response_format
    headers = {} if "json" in form_name else adapter_headers(transcript.generations)
    return Response(transcript.format(form_name), 200, headers, TYPES[form_name])


def check_fields(form: FormData) -> None:
    """Raise RequestError for unknown and repeated fields, Unsupported for word timestamps."""
    for name in form:
        if name not in FIELDS | LISTS:
            raise RequestError(
                f"unknown field {name!r:.80}{nearest(name, FIELDS)}", param=name[:80]
            )
        if name in FIELDS and len(form.getlist(name)) > 1:
            raise RequestError(f"duplicate field {name}", param=name)
    granularities = [x for name in LISTS for x in form.getlist(name)]
    if "word" in granularities:
        raise Unsupported("timestamp_granularities: word is not supported; use segment")


def transcription_of(form: FormData) -> TranscriptionRequest:
    """Return the request of a form. Adapters are a name or JSON."""
    names = ("model", "adapter", "language", "prompt", "response_format")
    given: dict[str, Any] = {name: text_of(form, name) for name in names}
    for name in ("adapter", "adapters"):
        text = text_of(form, name)
        if text is not None and text.lstrip()[:1] in ("[", "{"):
            try:
                given[name] = msgspec.json.decode(text)
            except (ValueError, RecursionError):
                raise RequestError(f"{name} is not valid JSON", param=name) from None
        elif text is not None and name == "adapters":
            given[name] = [text]
    if (text := text_of(form, "temperature")) is not None:
        try:
            given["temperature"] = float(text)
        except ValueError:
            raise RequestError(
                f"temperature={text!r:.40} is not a number", param="temperature"
            ) from None
    check_values(given)
    return parse({**given, "stream": flag_of(form, "stream")}, TranscriptionRequest)


async def file_of(form: FormData) -> bytes:
    """The contents of the field `file`. Raises RequestError if it is missing."""
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise RequestError(
            "the field file is missing; send the audio as multipart/form-data", param="file"
        )
    return await file.read()


def flag_of(form: FormData, name: str) -> bool:
    text = (text_of(form, name) or "false").lower()
    if text not in ("true", "false"):
        raise RequestError(f"{name}={text!r:.40}: expected true or false", param=name)
    return text == "true"


def text_of(form: FormData, name: str) -> str | None:
    value = form.get(name)
    if isinstance(value, UploadFile):
        raise RequestError(f"{name}: expected text, got a file", param=name)
    return value or None


async def chunks(events: AsyncGenerator[TranscriptEvent, None]) -> AsyncGenerator[bytes, None]:
    """Yield OpenAI's events of a transcription: each segment, then the whole text."""
    async with aclosing(events):
        async for each in events:
            if each.final:
                generations = unless_none(each.generations)
                yield event(TranscriptDone(text=each.text, adapter_generations=generations))
            else:
                yield event(TranscriptDelta(delta=each.text))


def routes(operations: Operations) -> list[Route]:
    """Return the routes."""
    endpoints = {"transcriptions": transcriptions, "translations": translations}
    return [
        Route(
            name=f"POST /v1/audio/{name}",
            endpoint=endpoint,
            request=TranscriptionForm,
            response=Transcription,
            events=TranscriptDelta | TranscriptDone,
        )
        for name, endpoint in endpoints.items()
    ]
