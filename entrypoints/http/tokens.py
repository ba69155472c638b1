"""The route that counts the prompt tokens of a chat, as OpenAI and llama.cpp answer it."""

from __future__ import annotations

from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ostro.core.records import Route
from ostro.entrypoints.http.body import read_request
from ostro.entrypoints.http.context import caller_of, operations_of
from ostro.entrypoints.http.errors import respond
from ostro.entrypoints.http.stream import unless_disconnected
from ostro.entrypoints.operations.operations import Operations


class InputTokens(msgspec.Struct, kw_only=True):
    """The number of tokens of an input."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


async def count(request: Request) -> Response:
    """Count the prompt tokens of a chat."""
    operations = operations_of(request)
    body = await read_request(request, operations.chat_request)
    work = operations.count(body, caller_of(request))
    return respond(200, InputTokens(input_tokens=await unless_disconnected(request, work)))


def routes(operations: Operations) -> list[Route]:
    """Return the routes; the text pipeline defines the request."""
    return [
        Route(
            name="POST /v1/chat/completions/input_tokens",
            endpoint=count,
            request=operations.chat_request,
            response=InputTokens,
            example={"messages": [{"role": "user", "content": "hello"}]},
        )
    ]
