"""The routes of Anthropic's API."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ostro import Route
from ostro.errors import ContextLengthExceeded, OstroError
from ostro.http import (
    EventStream,
    Generation,
    caller_of,
    error_content_of,
    operations_of,
    read_request,
    request_id,
    respond,
    unless_disconnected,
)
from ostro.plugins.apis.anthropic.batches import (
    JSONL,
    URL,
    DeletedMessageBatch,
    MessageBatch,
    MessageBatchListParams,
    MessageBatchPage,
    MessageBatchRequest,
    cancel_batch,
    create_batch,
    delete_batch,
    get_batch,
    get_results,
    list_batches,
)
from ostro.plugins.apis.anthropic.conversation import chat_request
from ostro.plugins.apis.anthropic.models import (
    AnthropicModel,
    AnthropicModelPage,
    ModelListParams,
    get_model,
    list_models,
)
from ostro.plugins.apis.anthropic.responses import (
    STATUSES,
    AssistantMessage,
    MessageStreamEvent,
    Ping,
    TokenCount,
    anthropic_error,
)
from ostro.plugins.apis.anthropic.schema import CountTokensRequest, MessagesRequest
from ostro.plugins.apis.anthropic.stream import Answer
from ostro.plugins.apis.anthropic.support import check_support

Body = TypeVar("Body", bound=CountTokensRequest)
HELLO = {"role": "user", "content": "What is the capital of France?"}
EXAMPLE = {"model": "default", "max_tokens": 64, "messages": [HELLO]}
BATCHES = f"{URL}/batches"
HEADER = "anthropic-version"
"""A header of all requests of Anthropic's clients."""


async def create_message(request: Request) -> Response:
    """Continue a conversation."""
    body = await read(request, MessagesRequest)
    generation = await unless_disconnected(request, generate(request, body))
    answer = Answer(
        id=f"msg_{request_id()}",
        generation=generation,
        max_tokens=body.max_tokens,
        shows_thinking=body.shows_thinking,
    )
    if body.stream:
        return EventStream(encoded(answer), on_error=error_event, keep_alive=event(Ping()))
    return respond(200, await unless_disconnected(request, answer.collect()))


async def generate(request: Request, body: MessagesRequest) -> Generation:
    """Start the generation of a message. The context limits it, if `max_tokens` exceeds the rest.

    Clients have to send `max_tokens`, and know nothing of the context.
    """
    operations = operations_of(request)
    wanted = chat_request(body, operations.chat_request)
    try:
        return await operations.chat(wanted, caller_of(request))
    except ContextLengthExceeded as error:
        if error.param != "max_tokens":
            raise
    unlimited = msgspec.structs.replace(wanted, max_tokens=None)
    return await operations.chat(unlimited, caller_of(request))


async def count_tokens(request: Request) -> Response:
    """Count the tokens of a conversation."""
    body = await read(request, CountTokensRequest)
    operations = operations_of(request)
    wanted = chat_request(body, operations.chat_request)
    count = operations.count(wanted, caller_of(request))
    return respond(200, TokenCount(input_tokens=await unless_disconnected(request, count)))


async def read(request: Request, kind: type[Body]) -> Body:
    """Return the request in a JSON body. Raises as `read_request`, and Unsupported."""
    return await read_request(request, kind, check=check_support)


async def encoded(answer: Answer) -> AsyncGenerator[bytes, None]:
    """Yield the events of a message as server-sent events."""
    async for each in answer.stream():
        yield event(each)


def event(content: MessageStreamEvent) -> bytes:
    """Return one server-sent event."""
    return named(str(content.__struct_config__.tag), content)


def named(name: str, content: Any) -> bytes:
    return f"event: {name}\ndata: ".encode() + msgspec.json.encode(content) + b"\n\n"


def error_event(error: OstroError) -> bytes:
    """Return the event of an error."""
    detail = error_content_of(error).error
    status = STATUSES.get(error.status, error.status)
    return named("error", anthropic_error(status, detail.message, detail.code, detail.param))


def routes() -> list[Route]:
    """Return the routes."""
    form: dict[str, Any] = {"errors": anthropic_error, "statuses": STATUSES}
    return [
        Route(
            name=f"POST {URL}",
            endpoint=create_message,
            request=MessagesRequest,
            response=AssistantMessage,
            events=MessageStreamEvent,
            example=EXAMPLE,
            **form,
        ),
        Route(
            name="POST /v1/messages/count_tokens",
            endpoint=count_tokens,
            request=CountTokensRequest,
            response=TokenCount,
            example={"model": "default", "messages": [HELLO]},
            **form,
        ),
        Route(
            name="GET /v1/models",
            endpoint=list_models,
            request=ModelListParams,
            response=AnthropicModelPage,
            error_statuses=(400,),
            header=HEADER,
            **form,
        ),
        Route(
            name="GET /v1/models/{id:path}",
            endpoint=get_model,
            response=AnthropicModel,
            error_statuses=(404,),
            header=HEADER,
            **form,
        ),
        Route(
            name=f"POST {BATCHES}",
            endpoint=create_batch,
            request=MessageBatchRequest,
            response=MessageBatch,
            error_statuses=(400, 503),
            example={"requests": [{"custom_id": "a", "params": EXAMPLE}]},
            **form,
        ),
        Route(
            name=f"GET {BATCHES}",
            endpoint=list_batches,
            request=MessageBatchListParams,
            response=MessageBatchPage,
            error_statuses=(400, 503),
            **form,
        ),
        Route(name=f"GET {BATCHES}/{{id}}", endpoint=get_batch, response=MessageBatch, **form),
        Route(
            name=f"DELETE {BATCHES}/{{id}}",
            endpoint=delete_batch,
            response=DeletedMessageBatch,
            **form,
        ),
        Route(
            name=f"POST {BATCHES}/{{id}}/cancel",
            endpoint=cancel_batch,
            response=MessageBatch,
            **form,
        ),
        Route(
            name=f"GET {BATCHES}/{{id}}/results",
            endpoint=get_results,
            response=(JSONL,),
            **form,
        ),
    ]
