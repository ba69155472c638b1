"""OpenAI's route for speech synthesis, and vLLM's list of voices."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ostro.core.errors import RequestError, Unsupported
from ostro.core.messages.target import ModelTarget
from ostro.core.routes import Content, Route
from ostro.entrypoints.api.openai.types import adapter_headers, base64_text, unless_none
from ostro.entrypoints.operations.access.caller import Caller
from ostro.entrypoints.operations.operations import Operations
from ostro.entrypoints.operations.requests.event_formats import DATA_EVENTS
from ostro.entrypoints.operations.requests.model_body import ModelBody
from ostro.entrypoints.operations.tasks.media import SpeechRequest

TYPES = {
    "flac": "audio/flac",
    "mp3": "audio/mpeg",
    "opus": "audio/ogg; codecs=opus",
    "pcm": "audio/pcm",
    "wav": "audio/wav",
}
SPEEDS = (0.25, 4.0)
CHUNK = 32 << 10
"""Bytes of audio per event."""


class VoiceId(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A voice, selected by its name as an id."""

    id: str


class SpeechBody(ModelBody, kw_only=True):
    """A text to speak."""

    extensions: ClassVar[frozenset[str]] = ModelBody.extensions | frozenset(
        ("seed", "temperature", "top_p", "guidance", "max_seconds")
    )

    input: str
    voice: str | VoiceId | None = None
    instructions: str | None = None
    response_format: str = "mp3"
    speed: float = 1.0
    stream_format: Literal["audio", "sse"] = "audio"
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    guidance: float | None = None
    max_seconds: float | None = None

    def to_request(self) -> SpeechRequest:
        """Return the request of the operation.

        Raises RequestError for a speed out of range, Unsupported for fields without effect.
        """
        slow, fast = SPEEDS
        if not slow <= self.speed <= fast:
            raise RequestError(
                f"speed={self.speed} is not within {slow:g}..{fast:g}", param="speed"
            )
        if self.speed != 1:
            raise Unsupported("speed: only 1 is supported", param="speed")
        if self.instructions:
            raise Unsupported(
                "instructions is not supported; the voice and the text determine the speech",
                param="instructions",
            )
        return SpeechRequest(
            text=self.input,
            voice=self.voice.id if isinstance(self.voice, VoiceId) else self.voice,
            format=self.response_format,
            seed=self.seed,
            temperature=self.temperature,
            top_p=self.top_p,
            guidance=self.guidance,
            max_seconds=self.max_seconds,
            **self.target,
        )


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


async def speech(
    operations: Operations, caller: Caller, body: SpeechBody
) -> Content | AsyncGenerator[SpeechDelta | SpeechDone, None]:
    """Speak a text."""
    if body.stream_format == "sse":
        return events(operations, caller, body)
    spoken = await operations.speak(body.to_request(), caller)
    media_type = TYPES[body.response_format]
    if body.response_format == "pcm":
        media_type += f"; rate={spoken.rate}; channels=1"
    headers = adapter_headers(spoken.generations)
    return Content(data=spoken.data, media_type=media_type, headers=headers)


async def events(
    operations: Operations, caller: Caller, body: SpeechBody
) -> AsyncGenerator[SpeechDelta | SpeechDone, None]:
    """Yield the events of a speech: the parts of its file, then its usage."""
    spoken = await operations.speak(body.to_request(), caller)
    for start in range(0, len(spoken.data), CHUNK):
        yield SpeechDelta(audio=base64_text(spoken.data[start : start + CHUNK]))
    usage = SpeechUsage(
        input_tokens=spoken.prompt_tokens,
        output_tokens=spoken.output_tokens,
        total_tokens=spoken.prompt_tokens + spoken.output_tokens,
    )
    yield SpeechDone(usage=usage, adapter_generations=unless_none(spoken.generations))


async def voices(operations: Operations, caller: Caller, request: VoicesRequest) -> Voices:
    """List the voices of a model."""
    return Voices(voices=await operations.voices(ModelTarget(model=request.model), caller))


ROUTES: tuple[Route, ...] = (
    Route(
        name="POST /v1/audio/speech",
        handler=speech,
        request=SpeechBody,
        response=[kind.partition(";")[0] for kind in TYPES.values()],
        events=SpeechDelta | SpeechDone,
        event_format=DATA_EVENTS,
    ),
    Route(name="GET /v1/audio/voices", handler=voices, request=VoicesRequest, response=Voices),
)
