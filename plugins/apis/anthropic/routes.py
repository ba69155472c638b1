"""The routes of Anthropic's API."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from ostro import Route
from ostro.http import (
    DATA_EVENTS,
    NAMED_EVENTS,
    Caller,
    EventFormat,
    Operations,
    RequestBody,
    convert_aside,
    request_id,
)
from ostro.plugins.apis.anthropic.batches import (
    JSONL,
    MAX_REQUESTS,
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
from ostro.plugins.apis.anthropic.context_editing import edited
from ostro.plugins.apis.anthropic.conversation import chat_request
from ostro.plugins.apis.anthropic.models import (
    AnthropicModel,
    AnthropicModelPage,
    ModelListParams,
    ModelListQuery,
    get_model,
    list_models,
)
from ostro.plugins.apis.anthropic.responses import (
    STATUSES,
    AnthropicError,
    AssistantMessage,
    ContextManagement,
    MessageStreamEvent,
    OriginalCount,
    Ping,
    TokenCount,
    anthropic_error,
    own_words,
)
from ostro.plugins.apis.anthropic.schema import CountTokensRequest, MessagesRequest
from ostro.plugins.apis.anthropic.stream import MessageAnswer
from ostro.plugins.apis.anthropic.support import check_support

HELLO = {"role": "user", "content": "What is the capital of France?"}
EXAMPLE = {"model": "default", "max_tokens": 64, "messages": [HELLO]}
BATCHES = f"{URL}/batches"
HEADER = "anthropic-version"
"""A header of all requests of Anthropic's clients."""


async def create_message(
    operations: Operations, caller: Caller, body: MessagesRequest
) -> AssistantMessage | AsyncGenerator[MessageStreamEvent, None]:
    """Continue a conversation."""
    with own_words():
        body, applied = await edited(body, counter(operations, caller))
        request = await convert_aside(chat_request, body)
        generation = await operations.chat(request, caller)
    answer = MessageAnswer(
        id=f"msg_{request_id()}",
        generation=generation,
        max_tokens=body.max_tokens,
        shows_thinking=body.shows_thinking,
    )
    if body.context_management is not None:
        answer.context_management = ContextManagement(applied_edits=applied)
    if body.stream:
        return answer.stream()
    return await answer.collect()


async def count_tokens(
    operations: Operations, caller: Caller, body: CountTokensRequest
) -> TokenCount:
    """Count the tokens of a conversation."""
    count = counter(operations, caller)
    with own_words():
        shorter, applied = await edited(body, count)
        result = TokenCount(input_tokens=await count(shorter))
        if body.context_management is not None:
            original = await count(body) if applied else result.input_tokens
            result.context_management = OriginalCount(original_input_tokens=original)
    return result


def counter(
    operations: Operations, caller: Caller
) -> Callable[[CountTokensRequest], Awaitable[int]]:
    """Return the function that counts the tokens of the prompt of a request."""

    async def count(body: CountTokensRequest) -> int:
        return await operations.count(await convert_aside(chat_request, body), caller)

    return count


def event(content: MessageStreamEvent | AnthropicError) -> bytes:
    """Return one server-sent event. Errors have no tag, which would change their schema."""
    if isinstance(content, AnthropicError):
        return b"event: error\n" + DATA_EVENTS.encode(content)
    return NAMED_EVENTS.encode(content)


FORM: dict[str, Any] = {"errors": anthropic_error, "statuses": STATUSES}
ROUTES: tuple[Route, ...] = (
    Route(
        name=f"POST {URL}",
        handler=create_message,
        request=MessagesRequest,
        body=RequestBody(check=check_support),
        response=AssistantMessage,
        events=MessageStreamEvent,
        event_format=EventFormat(encode=event, keep_alive=event(Ping())),
        example=EXAMPLE,
        **FORM,
    ),
    Route(
        name="POST /v1/messages/count_tokens",
        handler=count_tokens,
        request=CountTokensRequest,
        body=RequestBody(check=check_support),
        response=TokenCount,
        example={"model": "default", "messages": [HELLO]},
        **FORM,
    ),
    Route(
        name="GET /v1/models",
        handler=list_models,
        request=ModelListParams,
        body=RequestBody(kind=ModelListQuery),
        response=AnthropicModelPage,
        error_statuses=(400,),
        header=HEADER,
        **FORM,
    ),
    Route(
        name="GET /v1/models/{id:path}",
        handler=get_model,
        response=AnthropicModel,
        error_statuses=(404,),
        header=HEADER,
        **FORM,
    ),
    Route(
        name=f"POST {BATCHES}",
        handler=create_batch,
        request=MessageBatchRequest,
        body=RequestBody(max_inputs=MAX_REQUESTS),
        response=MessageBatch,
        cancel_on_disconnect=False,
        error_statuses=(400, 503, 507),
        example={"requests": [{"custom_id": "a", "params": EXAMPLE}]},
        **FORM,
    ),
    Route(
        name=f"GET {BATCHES}",
        handler=list_batches,
        request=MessageBatchListParams,
        response=MessageBatchPage,
        error_statuses=(400, 503),
        **FORM,
    ),
    Route(name=f"GET {BATCHES}/{{id}}", handler=get_batch, response=MessageBatch, **FORM),
    Route(
        name=f"DELETE {BATCHES}/{{id}}",
        handler=delete_batch,
        response=DeletedMessageBatch,
        **FORM,
    ),
    Route(
        name=f"POST {BATCHES}/{{id}}/cancel",
        handler=cancel_batch,
        response=MessageBatch,
        cancel_on_disconnect=False,
        **FORM,
    ),
    Route(
        name=f"GET {BATCHES}/{{id}}/results",
        handler=get_results,
        response=(JSONL,),
        **FORM,
    ),
)
