"""OpenAI's route for speech synthesis."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ostro.core.errors import RequestError, Unsupported
from ostro.core.pipeline import ModelTarget, parse
from ostro.entrypoints.http.body import read_json
from ostro.entrypoints.http.responses import adapter_headers
from ostro.entrypoints.http.service import Service
from ostro.entrypoints.http.stream import unless_disconnected

TYPES = {
    "flac": "audio/flac",
    "mp3": "audio/mpeg",
    "opus": "audio/ogg; codecs=opus",
    "pcm": "audio/pcm",
    "wav": "audio/wav",
}
SPEEDS = (0.25, 4.0)


class SpeechRequest(ModelTarget, kw_only=True):
    """A text to speak. The fields from `seed` on extend OpenAI's API."""

    input: str
    voice: str | None = None
    instructions: str | None = None
    response_format: str = "mp3"
    speed: float = 1.0
    stream_format: Literal["audio", "sse"] = "audio"
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    guidance: float | None = None
    max_seconds: float | None = None


async def speech(request: Request) -> Response:
    """POST /v1/audio/speech"""
    service: Service = request.app.state.service
    body = parse(await read_json(request, service.max_body()), SpeechRequest)
    admitted = service.admit(body, "speak")
    pipeline = admitted.pipeline
    check(body)
    pipeline.check_format(body.response_format)
    work = pipeline.speak(body.input, adapters=admitted.adapters, **options_of(body))
    sound = await unless_disconnected(request, work)
    data = await asyncio.to_thread(sound.encode, body.response_format)
    kind = TYPES[body.response_format]
    if body.response_format == "pcm":
        kind += f"; rate={sound.rate}; channels=1"
    return Response(data, 200, adapter_headers(sound.generations), kind)


def check(body: SpeechRequest) -> None:
    """Raise RequestError for values out of range, Unsupported for fields without effect."""
    slow, fast = SPEEDS
    if not slow <= body.speed <= fast:
        raise RequestError(f"speed={body.speed} is not within {slow:g}..{fast:g}", param="speed")
    if body.speed != 1:
        raise Unsupported("speed: only 1 is supported", param="speed")
    if body.stream_format != "audio":
        raise Unsupported("stream_format: only audio is supported", param="stream_format")
    if body.instructions:
        raise Unsupported("instructions is not supported", param="instructions")


def options_of(body: SpeechRequest) -> dict[str, Any]:
    """The pipeline's options."""
    names = ("voice", "seed", "temperature", "top_p", "guidance", "max_seconds")
    return {name: getattr(body, name) for name in names}


ROUTES = [Route("/v1/audio/speech", speech, methods=["POST"])]
