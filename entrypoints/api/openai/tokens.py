"""The route that counts the prompt tokens of a chat, as OpenAI and llama.cpp answer it."""

from __future__ import annotations

from typing import Literal

import msgspec

from ostro.core.routes import Route
from ostro.entrypoints.api.openai.bodies import ChatBody
from ostro.entrypoints.api.openai.tools import custom_places
from ostro.entrypoints.operations.access.caller import Caller
from ostro.entrypoints.operations.operations import Operations
from ostro.entrypoints.operations.requests.decoding import convert_aside


class InputTokens(msgspec.Struct, kw_only=True):
    """The number of tokens of an input."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


async def count(operations: Operations, caller: Caller, body: ChatBody) -> InputTokens:
    """Count the prompt tokens of a chat."""
    request = await convert_aside(body.to_request)
    with custom_places(body.tools):
        return InputTokens(input_tokens=await operations.count(request, caller))


ROUTES: tuple[Route, ...] = (
    Route(
        name="POST /v1/chat/completions/input_tokens",
        handler=count,
        request=ChatBody,
        response=InputTokens,
        example={"messages": [{"role": "user", "content": "hello"}]},
    ),
)
