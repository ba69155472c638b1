"""OpenAI's routes for chats, completions and models.

The text pipeline finds reasoning and tool calls in answers by the notation of the chat template.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from ostro.core.messages.text import ChoiceEnd, Event
from ostro.core.pipeline import StreamOptions, TextRequest
from ostro.core.records import Route
from ostro.core.store import new_id
from ostro.entrypoints.http import openai_types
from ostro.entrypoints.http.body import read_request
from ostro.entrypoints.http.context import caller_of, documents_of, operations_of
from ostro.entrypoints.http.errors import respond
from ostro.entrypoints.http.openai_types import (
    ChatCompletion,
    ChatCompletionChunk,
    TextCompletion,
    TextCompletionChunk,
    unless_none,
)
from ostro.entrypoints.http.query import parse_query
from ostro.entrypoints.http.stored_chats import stored_chat
from ostro.entrypoints.http.stream import DONE, EventStream, event, unless_disconnected
from ostro.entrypoints.operations import stored_chats
from ostro.entrypoints.operations.models import ModelEntry
from ostro.entrypoints.operations.operations import Operations
from ostro.entrypoints.operations.text import Completion, Generation

MAX_PROMPTS = 1024
"""Prompts of one completion request."""
COMPLETION_TOKENS = 16
"""Default of `max_tokens` of completions, as in OpenAI's API."""
Chunk = ChatCompletionChunk | TextCompletionChunk
NewChunk = Callable[..., Chunk]
"""Makes a chunk of its choices and further fields."""
ToChoice = Callable[[Event, bool], Any]
"""Converts an event to a choice of a chunk. The argument is true for the first of a choice."""


class Model(msgspec.Struct, kw_only=True):
    """A model. `max_model_len` is the context length; `root` and `parent` are the model of an
    adapter. The names are vLLM's.
    """

    id: str
    created: int
    max_model_len: int | None
    state: str
    object: Literal["model"] = "model"
    owned_by: str = "ostro"
    root: str | UnsetType = UNSET
    parent: str | UnsetType = UNSET
    adapter_generation: str | UnsetType = UNSET


class ModelListRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The list of models has no parameters."""


class ModelList(msgspec.Struct, kw_only=True):
    """The models, followed by their adapters."""

    data: list[Model]
    object: Literal["list"] = "list"


async def chat(request: Request) -> Response:
    """Continue a conversation."""
    operations = operations_of(request)
    body = await read_request(request, operations.chat_request)
    if body.store:  # a store that does not work is known before the generation
        await documents_of(request).state.room(caller_of(request).name)
    work = operations.chat(body, caller_of(request))
    generation = await unless_disconnected(request, work)
    head, token_bytes = heading(request, "chatcmpl", generation.model), generation.token_bytes
    if body.store:
        head["id"] = new_id(stored_chats.PREFIX)
    tier: Literal["default"] | UnsetType = UNSET if body.service_tier is None else "default"

    def completion(done: Completion) -> ChatCompletion:
        first = done.choices[0].prompt_logprobs
        return ChatCompletion(
            **head,
            choices=[openai_types.chat_choice(choice, token_bytes) for choice in done.choices],
            usage=openai_types.usage(done.usage),
            metadata=unless_none(body.metadata),
            service_tier=tier,
            adapter_generations=unless_none(done.generations),
            prompt_logprobs=openai_types.prompt_logprobs(first, token_bytes),
        )

    async def store(done: Completion) -> None:
        chat = stored_chat(body, completion(done))
        await documents_of(request).chats.add(chat, caller_of(request))

    if body.stream:

        def to_choice(event: Event, first: bool) -> Any:
            return openai_types.chat_chunk_choice(event, token_bytes, first)

        def new_chunk(**fields: Any) -> ChatCompletionChunk:
            return ChatCompletionChunk(**head, service_tier=tier, **fields)

        generation.on_end = store if body.store else None
        return EventStream(chunks(generation, body, new_chunk, to_choice))
    done = await unless_disconnected(request, generation.collect())
    if body.store:
        await store(done)
    return respond(200, completion(done))


async def completions(request: Request) -> Response:
    """Continue prompts: text or token ids, one or several."""
    operations = operations_of(request)
    body = await read_request(request, operations.completion_request, MAX_PROMPTS)
    work = operations.complete(body, caller_of(request), default_max_tokens=COMPLETION_TOKENS)
    generation = await unless_disconnected(request, work)
    head, token_bytes = heading(request, "cmpl", generation.model), generation.token_bytes
    if body.stream:

        def to_choice(event: Event, first: bool) -> Any:
            return openai_types.completion_chunk_choice(event, token_bytes)

        def new_chunk(**fields: Any) -> TextCompletionChunk:
            return TextCompletionChunk(**head, **fields)

        return EventStream(chunks(generation, body, new_chunk, to_choice))
    done = await unless_disconnected(request, generation.collect())
    content = TextCompletion(
        **head,
        choices=[openai_types.completion_choice(choice, token_bytes) for choice in done.choices],
        usage=openai_types.usage(done.usage),
        adapter_generations=unless_none(done.generations),
    )
    return respond(200, content)


async def models(request: Request) -> Response:
    """List the models, followed by their adapters."""
    parse_query(request, ModelListRequest)
    found = await operations_of(request).models(caller_of(request))
    return respond(200, ModelList(data=[card(entry) for entry in found]))


async def model(request: Request) -> Response:
    """Describe a model or an adapter."""
    entry = operations_of(request).model(request.path_params["id"], caller_of(request))
    return respond(200, card(entry))


def card(entry: ModelEntry) -> Model:
    return Model(
        id=entry.id,
        created=entry.created,
        max_model_len=entry.context,
        root=unless_none(entry.parent),
        parent=unless_none(entry.parent),
        adapter_generation=unless_none(entry.generation),
        state=entry.state,
    )


def heading(request: Request, prefix: str, model: str) -> dict[str, Any]:
    """Return the first fields of every response and chunk."""
    id = f"{prefix}-{request.state.request_id}"
    return {"id": id, "created": int(time.time()), "model": model}


async def chunks(
    generation: Generation, body: TextRequest, new_chunk: NewChunk, to_choice: ToChoice
) -> AsyncGenerator[bytes, None]:
    """Yield a generation as server-sent events: one per event, the usage if requested, and [DONE].

    The last event of each choice lists its adapters.
    """
    options = body.stream_options or StreamOptions()
    begun: set[int] = set()
    try:
        async for each in generation:
            chunk = new_chunk(choices=[to_choice(each, each.index not in begun)])
            begun.add(each.index)
            if isinstance(each, ChoiceEnd):
                chunk.adapter_generations = unless_none(generation.generations)
            if options.include_usage:
                continuous = options.continuous_usage_stats
                chunk.usage = openai_types.usage(generation.usage) if continuous else None
            yield event(chunk)
    finally:
        await generation.aclose()
    if options.include_usage:
        yield event(new_chunk(choices=[], usage=openai_types.usage(generation.usage)))
    yield DONE


def routes(operations: Operations) -> list[Route]:
    """Return the routes; the text pipeline defines the requests."""
    return [
        Route(
            name="POST /v1/chat/completions",
            endpoint=chat,
            request=operations.chat_request,
            response=ChatCompletion,
            events=ChatCompletionChunk,
        ),
        Route(
            name="POST /v1/completions",
            endpoint=completions,
            request=operations.completion_request,
            response=TextCompletion,
            events=TextCompletionChunk,
        ),
        Route(
            name="GET /v1/models",
            endpoint=models,
            request=ModelListRequest,
            response=ModelList,
            error_statuses=(400,),
        ),
        Route(
            name="GET /v1/models/{id:path}",
            endpoint=model,
            response=Model,
            error_statuses=(404,),
        ),
    ]
