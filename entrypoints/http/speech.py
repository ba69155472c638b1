"""OpenAI's route for speech synthesis."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ostro.core.records import Route
from ostro.entrypoints.http.body import read_request
from ostro.entrypoints.http.context import caller_of, operations_of
from ostro.entrypoints.http.responses import adapter_headers
from ostro.entrypoints.http.stream import unless_disconnected
from ostro.entrypoints.operations.media import SpeechRequest
from ostro.entrypoints.operations.operations import Operations

TYPES = {
    "flac": "audio/flac",
    "mp3": "audio/mpeg",
    "opus": "audio/ogg; codecs=opus",
    "pcm": "audio/pcm",
    "wav": "audio/wav",
}


async def speech(request: Request) -> Response:
    """Speak a text."""
    body = await read_request(request, SpeechRequest)
    work = operations_of(request).speak(body, caller_of(request))
    spoken = await unless_disconnected(request, work)
    kind = TYPES[body.response_format]
    if body.response_format == "pcm":
        kind += f"; rate={spoken.rate}; channels=1"
    return Response(spoken.data, 200, adapter_headers(spoken.generations), kind)


def routes(operations: Operations) -> list[Route]:
    """Return the route."""
    media = [kind.partition(";")[0] for kind in TYPES.values()]
    return [
        Route(name="POST /v1/audio/speech", endpoint=speech, request=SpeechRequest, response=media)
    ]
