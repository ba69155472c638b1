"""OpenAI's route for speech synthesis, and vLLM's list of voices."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from ostro.core.pipeline import ModelTarget
from ostro.core.records import Route
from ostro.entrypoints.http.body import read_request
from ostro.entrypoints.http.context import caller_of, operations_of
from ostro.entrypoints.http.errors import respond
from ostro.entrypoints.http.openai_types import adapter_headers, unless_none
from ostro.entrypoints.http.query import parse_query
from ostro.entrypoints.http.stream import EventStream, event, unless_disconnected
from ostro.entrypoints.operations.caller import Caller
from ostro.entrypoints.operations.media import SpeechRequest, base64_text
from ostro.entrypoints.operations.operations import Operations

TYPES = {
    "flac": "audio/flac",
    "mp3": "audio/mpeg",
    "opus": "audio/ogg; codecs=opus",
    "pcm": "audio/pcm",
    "wav": "audio/wav",
}
CHUNK = 32 << 10
"""Bytes of audio per event."""


class SpeechUsage(msgspec.Struct, kw_only=True):
    """Token counts of a text and its speech."""

    input_tokens: int
    output_tokens: int
    total_tokens: int


class SpeechDelta(msgspec.Struct, kw_only=True, tag_field="type", tag="speech.audio.delta"):
    """The next bytes of the audio file, in base64."""

    audio: str


class SpeechDone(msgspec.Struct, kw_only=True, tag_field="type", tag="speech.audio.done"):
    """The end of the audio file."""

    usage: SpeechUsage
    adapter_generations: list[str] | UnsetType = UNSET


class VoicesRequest(msgspec.Struct, kw_only=True):
    """The model whose voices to list; by default the first that speaks."""

    model: str | None = None


class Voices(msgspec.Struct, kw_only=True):
    """The voices of a model, valid values of `voice`."""

    voices: list[str]


async def speech(request: Request) -> Response:
    """Speak a text."""
    body = await read_request(request, SpeechRequest)
    operations, caller = operations_of(request), caller_of(request)
    if body.stream_format == "sse":
        return EventStream(chunks(operations, body, caller))
    spoken = await unless_disconnected(request, operations.speak(body, caller))
    kind = TYPES[body.response_format]
    if body.response_format == "pcm":
        kind += f"; rate={spoken.rate}; channels=1"
    return Response(spoken.data, 200, adapter_headers(spoken.generations), kind)


async def chunks(
    operations: Operations, body: SpeechRequest, caller: Caller
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a speech: the parts of its file, then its usage."""
    spoken = await operations.speak(body, caller)
    for start in range(0, len(spoken.data), CHUNK):
        yield event(SpeechDelta(audio=base64_text(spoken.data[start : start + CHUNK])))
    usage = SpeechUsage(
        input_tokens=spoken.prompt_tokens,
        output_tokens=spoken.output_tokens,
        total_tokens=spoken.prompt_tokens + spoken.output_tokens,
    )
    yield event(SpeechDone(usage=usage, adapter_generations=unless_none(spoken.generations)))


async def voices(request: Request) -> Response:
    """List the voices of a model."""
    wanted = parse_query(request, VoicesRequest)
    target = ModelTarget(model=wanted.model)
    found = await operations_of(request).voices(target, caller_of(request))
    return respond(200, Voices(voices=found))


def routes(operations: Operations) -> list[Route]:
    """Return the routes."""
    media = [kind.partition(";")[0] for kind in TYPES.values()]
    return [
        Route(
            name="POST /v1/audio/speech",
            endpoint=speech,
            request=SpeechRequest,
            response=media,
            events=SpeechDelta | SpeechDone,
        ),
        Route(name="GET /v1/audio/voices", endpoint=voices, request=VoicesRequest, response=Voices),
    ]
