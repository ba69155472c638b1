"""Routes that convert texts and conversations to token ids and prompts, and token ids to text.

`/tokenize` and `/detokenize` accept the fields of vLLM and those of llama.cpp; `/apply-template` is
llama.cpp's.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ostro import Route
from ostro.http import (
    DetokenizeRequest,
    Operations,
    caller_of,
    operations_of,
    read_request,
    respond,
    unless_disconnected,
)
from ostro.plugins.apis.text_tools.schema import (
    PromptResponse,
    TokenizeBody,
    TokenizeResponse,
    chat_of,
    has_messages,
    pieces_of,
    text_of,
)


async def tokenize(request: Request) -> Response:
    """Convert a text or a conversation to token ids."""
    operations = operations_of(request)
    body = await read_request(request, TokenizeBody)
    asked = chat_of(body, operations.chat_request) if has_messages(body) else text_of(body)
    work = operations.tokenize(asked, caller_of(request))
    found = await unless_disconnected(request, work)
    response = TokenizeResponse(
        count=len(found.tokens),
        max_model_len=found.context,
        tokens=pieces_of(found) if body.with_pieces else [*found.tokens],
    )
    if body.return_token_strs:
        response.token_strs = [found.tokenizer.token(token) for token in found.tokens]
    return respond(200, response)


async def detokenize(request: Request) -> Response:
    """Convert token ids to text."""
    body = await read_request(request, DetokenizeRequest)
    work = operations_of(request).detokenize(body, caller_of(request))
    text = await unless_disconnected(request, work)
    return respond(200, PromptResponse(prompt=text, content=text))


async def apply_template(request: Request) -> Response:
    """Return the prompt of a chat as text."""
    operations = operations_of(request)
    body = await read_request(request, operations.chat_request)
    work = operations.render(body, caller_of(request))
    return respond(200, PromptResponse(prompt=await unless_disconnected(request, work)))


def routes(operations: Operations) -> list[Route]:
    """Return the routes; the text pipeline defines the chats."""
    return [
        Route(
            name="POST /tokenize",
            endpoint=tokenize,
            request=TokenizeBody,
            response=TokenizeResponse,
            example={"prompt": "hello world"},
        ),
        Route(
            name="POST /detokenize",
            endpoint=detokenize,
            request=DetokenizeRequest,
            response=PromptResponse,
            example={"tokens": [1, 2]},
        ),
        Route(
            name="POST /apply-template",
            endpoint=apply_template,
            request=operations.chat_request,
            response=PromptResponse,
            example={"messages": [{"role": "user", "content": "hello"}]},
        ),
    ]
