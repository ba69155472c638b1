"""OpenAI's routes for speech to text: transcriptions, and translations to English."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from ostro.core.routes import Route
from ostro.core.tasks import TokenLogprob, Transcript
from ostro.entrypoints.api.openai.types import adapter_headers, unless_none
from ostro.entrypoints.http.body import read_form
from ostro.entrypoints.http.context import caller_of, operations_of
from ostro.entrypoints.http.errors import respond
from ostro.entrypoints.http.forms import parse_form, read_upload
from ostro.entrypoints.http.stream import EventStream, unless_disconnected
from ostro.entrypoints.operations.requests.event_formats import DATA_EVENTS
from ostro.entrypoints.operations.tasks.media import TranscriptEvent, TranscriptionRequest

TEXT_TYPES = {
    "json": "application/json",
    "text": "text/plain; charset=utf-8",
    "srt": "application/x-subrip; charset=utf-8",
    "vtt": "text/vtt; charset=utf-8",
}


class TranscriptionForm(TranscriptionRequest, kw_only=True):
    """The form of a transcription."""

    media_type: ClassVar[str] = "multipart/form-data"

    file: bytes


class TranscriptToken(msgspec.Struct, kw_only=True):
    """A token of a transcript; `bytes` are those of its text in UTF-8."""

    token: str
    bytes: list[int]
    logprob: float


class TranscriptLanguage(msgspec.Struct, kw_only=True):
    """A language that was detected among the request's `languages`, such as "en"."""

    code: str


class TranscriptInputTokens(msgspec.Struct, kw_only=True):
    """Rows of the encoded audio, and tokens of the prompt."""

    audio_tokens: int
    text_tokens: int


class TranscriptTokenUsage(msgspec.Struct, kw_only=True, tag_field="type", tag="tokens"):
    """Token counts of a streamed transcript."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_token_details: TranscriptInputTokens


class TranscriptDuration(msgspec.Struct, kw_only=True, tag_field="type", tag="duration"):
    """The duration of the audio."""

    seconds: float


class TranscriptDelta(msgspec.Struct, kw_only=True, tag_field="type", tag="transcript.text.delta"):
    """The next segment of a streamed transcript."""

    delta: str
    logprobs: list[TranscriptToken] | UnsetType = UNSET


class TranscriptDone(msgspec.Struct, kw_only=True, tag_field="type", tag="transcript.text.done"):
    """The end of a streamed transcript: all of its text."""

    text: str
    usage: TranscriptTokenUsage
    logprobs: list[TranscriptToken] | UnsetType = UNSET
    languages: list[TranscriptLanguage] | UnsetType = UNSET
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


class TranscriptWord(msgspec.Struct, kw_only=True):
    """A word without the punctuation around it; times are in seconds."""

    word: str
    start: float
    end: float


class Transcription(msgspec.Struct, kw_only=True):
    """A transcript. The fields from `task` to `words` are those of verbose_json.

    `segments` and `words` are those of `timestamp_granularities`, whose default is segment.
    """

    text: str
    usage: TranscriptDuration | UnsetType = UNSET
    logprobs: list[TranscriptToken] | UnsetType = UNSET
    languages: list[TranscriptLanguage] | UnsetType = UNSET
    task: str | UnsetType = UNSET
    language: str | UnsetType = UNSET
    duration: float | UnsetType = UNSET
    segments: list[TranscriptSegment] | UnsetType = UNSET
    words: list[TranscriptWord] | UnsetType = UNSET
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
        body = parse_form(form, TranscriptionRequest, {"file"})
        audio = await read_upload(form, "file")
    if body.stream:
        events = await operations.transcript_events(body, audio, task, caller)
        return EventStream(chunks(events, body), DATA_EVENTS)
    operation = operations.transcribe if task == "transcribe" else operations.translate
    transcript = await unless_disconnected(request, operation(body, audio, caller))
    form_name = body.response_format
    text = transcript.format(form_name)
    if "json" in form_name:
        return respond(200, transcription(text, transcript, body))
    return Response(text, 200, adapter_headers(transcript.generations), TEXT_TYPES[form_name])


def transcription(text: str, transcript: Transcript, body: TranscriptionRequest) -> Transcription:
    """Return the JSON of a transcript, from the pipeline's and what the request adds to it."""
    found = msgspec.json.decode(text, type=Transcription)
    found.usage = TranscriptDuration(seconds=transcript.duration)
    found.languages = languages(body, transcript.language)
    if "segment" not in (body.timestamp_granularities or ["segment"]):
        found.segments = UNSET
    if body.include:
        found.logprobs = tokens([x for segment in transcript.segments for x in segment.logprobs])
    return found


def tokens(logprobs: Iterable[TokenLogprob]) -> list[TranscriptToken]:
    """Return the tokens of a transcript as those of the response."""
    return [TranscriptToken(token=x.token, bytes=x.bytes, logprob=x.logprob) for x in logprobs]


def languages(body: TranscriptionRequest, code: str) -> list[TranscriptLanguage] | UnsetType:
    """Return the language of a transcript if the request has a choice of them."""
    return [TranscriptLanguage(code=code)] if body.languages else UNSET


async def chunks(
    events: AsyncGenerator[TranscriptEvent, None], body: TranscriptionRequest
) -> AsyncGenerator[TranscriptDelta | TranscriptDone, None]:
    """Yield OpenAI's events of a transcription: each segment, then the whole text."""
    async with aclosing(events):
        async for each in events:
            logprobs = tokens(each.logprobs) if body.include else UNSET
            if not each.final:
                yield TranscriptDelta(delta=each.text, logprobs=logprobs)
                continue
            yield TranscriptDone(
                text=each.text,
                usage=usage_of(each),
                logprobs=logprobs,
                languages=languages(body, each.language),
                adapter_generations=unless_none(each.generations),
            )


def usage_of(final: TranscriptEvent) -> TranscriptTokenUsage:
    """Return the usage of a streamed transcript."""
    asked = final.audio_tokens + final.prompt_tokens
    return TranscriptTokenUsage(
        input_tokens=asked,
        output_tokens=final.output_tokens,
        total_tokens=asked + final.output_tokens,
        input_token_details=TranscriptInputTokens(
            audio_tokens=final.audio_tokens, text_tokens=final.prompt_tokens
        ),
    )


ROUTES: tuple[Route, ...] = tuple(
    Route(
        name=f"POST /v1/audio/{name}",
        endpoint=endpoint,
        request=TranscriptionForm,
        response=Transcription,
        events=TranscriptDelta | TranscriptDone,
        event_format=DATA_EVENTS,
    )
    for name, endpoint in (("transcriptions", transcriptions), ("translations", translations))
)
