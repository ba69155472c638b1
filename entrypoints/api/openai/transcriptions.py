"""OpenAI's routes for speech to text: transcriptions, and translations to English."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ostro.core.errors import RequestError, Unsupported
from ostro.core.routes import FORM, Content, Route
from ostro.core.tasks import TokenLogprob, Transcript
from ostro.core.uploaded_file import UploadedFile
from ostro.entrypoints.api.openai.types import adapter_headers, unless_none
from ostro.entrypoints.operations.access.caller import Caller
from ostro.entrypoints.operations.operations import Operations
from ostro.entrypoints.operations.requests.event_formats import DATA_EVENTS
from ostro.entrypoints.operations.requests.model_body import ModelBody
from ostro.entrypoints.operations.tasks.media import TranscriptEvent, TranscriptionRequest

TEXT_TYPES = {
    "json": "application/json",
    "text": "text/plain; charset=utf-8",
    "srt": "application/x-subrip; charset=utf-8",
    "vtt": "text/vtt; charset=utf-8",
}
FORMATS = ("json", "verbose_json", "text", "srt", "vtt")
Task = Literal["transcribe", "translate"]


class TranscriptionForm(ModelBody, kw_only=True):
    """The form of a transcription.

    languages: those that detection chooses from. keywords: words that the audio may contain.
    """

    media_type: ClassVar[str] = FORM
    unsupported: ClassVar[Mapping[str, str]] = {
        "known_speaker_names": "recognition of speakers; leave it out",
        "known_speaker_references": "recognition of speakers; leave it out",
    }

    language: str | None = None
    languages: list[str] | None = None
    keywords: list[str] | None = None
    prompt: str | None = None
    response_format: str = "json"
    temperature: float | None = None
    stream: bool = False
    include: list[Literal["logprobs"]] | None = None
    timestamp_granularities: list[Literal["word", "segment"]] | None = None
    chunking_strategy: str | dict[str, Any] | None = None
    file: UploadedFile

    def to_request(self, task: Task) -> TranscriptionRequest:
        """Return the request of the operation.

        Raises RequestError for fields that do not go together, Unsupported for values without
        effect.
        """
        check_format(self)
        if self.chunking_strategy not in (None, "auto"):
            raise Unsupported(
                "chunking_strategy: only auto is supported; the audio is cut into windows",
                param="chunking_strategy",
            )
        return TranscriptionRequest(
            task=task,
            language=self.language,
            languages=self.languages,
            keywords=self.keywords,
            prompt=self.prompt,
            temperature=self.temperature,
            words="word" in (self.timestamp_granularities or ()),
            logprobs=bool(self.include),
            **self.target,
        )


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


Answer = Transcription | Content | AsyncGenerator[TranscriptDelta | TranscriptDone, None]
"""What the routes answer: JSON, text, or the events of a stream."""


async def transcriptions(operations: Operations, caller: Caller, form: TranscriptionForm) -> Answer:
    """Transcribe an audio file."""
    return await answer(operations, caller, form, "transcribe")


async def translations(operations: Operations, caller: Caller, form: TranscriptionForm) -> Answer:
    """Transcribe an audio file in English."""
    return await answer(operations, caller, form, "translate")


async def answer(
    operations: Operations,
    caller: Caller,
    form: TranscriptionForm,
    task: Task,
) -> Answer:
    """Return the transcript in the format of the request, or the events of a stream."""
    request, audio = form.to_request(task), await form.file.read()
    if form.stream:
        return chunks(await operations.transcript_events(request, audio, caller), form)
    transcript = await operations.transcribe(request, audio, caller)
    format = form.response_format
    text = transcript.format(format)
    if "json" in format:
        return transcription(text, transcript, form)
    headers = adapter_headers(transcript.generations)
    return Content(data=text.encode(), media_type=TEXT_TYPES[format], headers=headers)


def check_format(form: TranscriptionForm) -> None:
    """Raise RequestError or Unsupported for a format that the transcript cannot have."""
    format = form.response_format
    if format == "diarized_json":
        raise Unsupported(
            "response_format: diarized_json is not supported; use verbose_json",
            param="response_format",
        )
    if format not in FORMATS:
        raise RequestError(
            f"unknown response_format {format!r:.40}; expected one of {', '.join(FORMATS)}",
            param="response_format",
        )
    if form.stream and format not in ("json", "text"):
        raise RequestError(
            f"response_format: {format} cannot be streamed; use json", param="response_format"
        )
    if form.include and format != "json":
        raise RequestError("include: logprobs requires response_format json", param="include")
    if form.timestamp_granularities and format != "verbose_json":
        raise RequestError(
            "timestamp_granularities requires response_format verbose_json",
            param="timestamp_granularities",
        )


def transcription(text: str, transcript: Transcript, body: TranscriptionForm) -> Transcription:
    """Return the JSON of a transcript, from the pipeline's and what the request adds to it."""
    response = msgspec.json.decode(text, type=Transcription)
    response.usage = TranscriptDuration(seconds=transcript.duration)
    response.languages = languages(body, transcript.language)
    if "segment" not in (body.timestamp_granularities or ["segment"]):
        response.segments = UNSET
    if body.include:
        response.logprobs = tokens([x for segment in transcript.segments for x in segment.logprobs])
    return response


def tokens(logprobs: Iterable[TokenLogprob]) -> list[TranscriptToken]:
    """Return the tokens of a transcript as those of the response."""
    return [TranscriptToken(token=x.token, bytes=x.bytes, logprob=x.logprob) for x in logprobs]


def languages(body: TranscriptionForm, code: str) -> list[TranscriptLanguage] | UnsetType:
    """Return the language of a transcript if the request has a choice of them."""
    return [TranscriptLanguage(code=code)] if body.languages else UNSET


async def chunks(
    events: AsyncGenerator[TranscriptEvent, None], body: TranscriptionForm
) -> AsyncGenerator[TranscriptDelta | TranscriptDone, None]:
    """Yield OpenAI's events of a transcription: each segment, then the whole text."""
    async with aclosing(events):
        async for event in events:
            logprobs = tokens(event.logprobs) if body.include else UNSET
            if not event.final:
                yield TranscriptDelta(delta=event.text, logprobs=logprobs)
                continue
            yield TranscriptDone(
                text=event.text,
                usage=usage_of(event),
                logprobs=logprobs,
                languages=languages(body, event.language),
                adapter_generations=unless_none(event.generations),
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
        handler=handler,
        request=TranscriptionForm,
        response=Transcription,
        events=TranscriptDelta | TranscriptDone,
        event_format=DATA_EVENTS,
    )
    for name, handler in (("transcriptions", transcriptions), ("translations", translations))
)
