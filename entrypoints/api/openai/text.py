"""OpenAI's routes for chats and completions.

The text pipeline finds reasoning and tool calls in answers by the notation of the chat template.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any, Literal, TypeVar

from msgspec import UNSET, UnsetType

from ostro.core.messages.text import ChoiceEnd, Event, Reasoning
from ostro.core.routes import RequestBody, Route
from ostro.core.store import new_id
from ostro.entrypoints.api.openai import types
from ostro.entrypoints.api.openai.bodies import (
    ChatBody,
    CompletionBody,
    StreamOptions,
)
from ostro.entrypoints.api.openai.chat_choices import ChatChoices
from ostro.entrypoints.api.openai.chat_store import PREFIX, StoredChats
from ostro.entrypoints.api.openai.stored_chats import stored_chat
from ostro.entrypoints.api.openai.tools import custom_names, custom_places
from ostro.entrypoints.api.openai.types import (
    ChatCompletion,
    ChatCompletionChunk,
    TextChoice,
    TextCompletion,
    TextCompletionChunk,
    unless_none,
)
from ostro.entrypoints.operations.access.caller import Caller
from ostro.entrypoints.operations.operations import Operations
from ostro.entrypoints.operations.requests.decoding import convert_aside
from ostro.entrypoints.operations.requests.request_context import request_id
from ostro.entrypoints.operations.tasks.text import Completion, Generation

MAX_PROMPTS = 1024
"""Prompts of one completion request."""
COMPLETION_TOKENS = 16
"""Default of `max_tokens` of completions, as in OpenAI's API."""
Chunk = TypeVar("Chunk", ChatCompletionChunk, TextCompletionChunk)


async def chat(
    operations: Operations, caller: Caller, body: ChatBody
) -> ChatCompletion | AsyncGenerator[ChatCompletionChunk, None]:
    """Continue a conversation."""
    request, documents = await convert_aside(body.to_request), operations.documents
    if body.store:  # a store that does not work is known before the generation
        await documents.state.require_room_for(caller.name, 1, body.messages)
    with custom_places(body.tools):
        generation = await operations.chat(request, caller)
    head, token_bytes = heading("chatcmpl", generation.model), generation.token_bytes
    choices = ChatChoices(
        token_bytes, custom_names(body.tools), shows_reasoning=body.shows_reasoning
    )
    if body.store:
        head["id"] = new_id(PREFIX)
    tier: Literal["default"] | UnsetType = UNSET if body.service_tier is None else "default"

    def completion(done: Completion) -> ChatCompletion:
        first = done.choices[0].prompt_logprobs
        return ChatCompletion(
            **head,
            choices=[choices.whole(choice) for choice in done.choices],
            usage=types.usage(done.usage),
            metadata=unless_none(body.metadata),
            service_tier=tier,
            adapter_generations=unless_none(done.generations),
            prompt_logprobs=types.prompt_logprobs(first, token_bytes),
        )

    async def store(done: Completion) -> None:
        await documents.get(StoredChats).add(stored_chat(body, completion(done)), caller)

    def new_chunk(**fields: Any) -> ChatCompletionChunk:
        return ChatCompletionChunk(**head, service_tier=tier, **fields)

    if body.stream:
        generation.on_end = store if body.store else None
        return chunks(generation, body, new_chunk, choices.chunks)
    with custom_places(body.tools):
        done = await generation.collect()
    if body.store:
        await store(done)
    return completion(done)


async def completions(
    operations: Operations, caller: Caller, body: CompletionBody
) -> TextCompletion | AsyncGenerator[TextCompletionChunk, None]:
    """Continue prompts: text or token ids, one or several."""
    request = await convert_aside(body.to_request)
    generation = await operations.complete(request, caller, default_max_tokens=COMPLETION_TOKENS)
    head, token_bytes = heading("cmpl", generation.model), generation.token_bytes

    def to_choices(event: Event, first: bool) -> list[TextChoice]:
        return [types.completion_chunk_choice(event, token_bytes)]

    def new_chunk(**fields: Any) -> TextCompletionChunk:
        return TextCompletionChunk(**head, **fields)

    if body.stream:
        return chunks(generation, body, new_chunk, to_choices)
    done = await generation.collect()
    return TextCompletion(
        **head,
        choices=[types.completion_choice(choice, token_bytes) for choice in done.choices],
        usage=types.usage(done.usage),
        adapter_generations=unless_none(done.generations),
    )


def heading(prefix: str, model: str) -> dict[str, Any]:
    """Return the first fields of every response and chunk."""
    return {"id": f"{prefix}-{request_id()}", "created": int(time.time()), "model": model}


async def chunks(
    generation: Generation,
    body: ChatBody | CompletionBody,
    new_chunk: Callable[..., Chunk],
    to_choices: Callable[[Event, bool], Iterable[Any]],
) -> AsyncGenerator[Chunk, None]:
    """Yield the chunks of a generation, and the usage if requested.

    The last chunk of each choice lists its adapters. new_chunk: makes a chunk of its choices and
    further fields. to_choices: converts an event to choices, each of a chunk of its own; the
    argument is true for the first event of a choice.
    """
    options = body.stream_options or StreamOptions()
    begun: set[int] = set()
    try:
        with custom_places(body.tools if isinstance(body, ChatBody) else None):
            async for event in generation:
                if isinstance(event, Reasoning) and not body.shows_reasoning:
                    continue
                choices = list(to_choices(event, event.index not in begun))
                begun.add(event.index)
                for choice in choices:
                    chunk = new_chunk(choices=[choice])
                    if isinstance(event, ChoiceEnd) and choice is choices[-1]:
                        chunk.adapter_generations = unless_none(generation.generations)
                    if options.include_usage:
                        continuous = options.continuous_usage_stats
                        chunk.usage = types.usage(generation.usage) if continuous else None
                    yield chunk
    finally:
        await generation.aclose()
    if options.include_usage:
        yield new_chunk(choices=[], usage=types.usage(generation.usage))


ROUTES: tuple[Route, ...] = (
    Route(
        name="POST /v1/chat/completions",
        error_statuses=(400, 404, 503, 507),
        handler=chat,
        request=ChatBody,
        response=ChatCompletion,
        events=ChatCompletionChunk,
    ),
    Route(
        name="POST /v1/completions",
        handler=completions,
        request=CompletionBody,
        body=RequestBody(max_inputs=MAX_PROMPTS),
        response=TextCompletion,
        events=TextCompletionChunk,
    ),
)
