"""OpenAI's routes for chats, completions and models.

Tools are passed to the chat template. Tool calls in answers are not parsed: they stay in the text.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ostro.core.errors import Unsupported
from ostro.core.pipeline import (
    Answer,
    StreamOptions,
    TextDelta,
    TextPipeline,
    TextRequest,
    parse,
)
from ostro.entrypoints.http import responses
from ostro.entrypoints.http.body import read_json
from ostro.entrypoints.http.errors import respond
from ostro.entrypoints.http.service import Service
from ostro.entrypoints.http.stream import DONE, EventStream, event, unless_disconnected

MAX_PROMPTS = 1024
"""Prompts of one completion request."""
ToChoice = Callable[[TextDelta, bool], dict[str, Any]]
"""Converts a delta to a choice of a chunk. The argument is true for the first of a choice."""


async def chat(request: Request) -> Response:
    """POST /v1/chat/completions"""
    service: Service = request.app.state.service
    body = parse(await read_json(request, service.max_body()), schema_of(request).chat_request)
    if body.stream and body.prompt_logprobs is not None:
        raise Unsupported("prompt_logprobs is not supported with stream", param="prompt_logprobs")
    admitted = service.admit(body)
    text: TextPipeline = admitted.pipeline
    template = await unless_disconnected(request, service.template(admitted))
    work = text.chat(body, adapters=admitted.adapters, template=template)
    answer = await unless_disconnected(request, work)
    head = heading(request, "chatcmpl", "chat.completion", admitted.name)
    if body.stream:
        head["object"] += ".chunk"
        to_choice = partial(responses.chat_chunk_choice, token_text=text.token_text)
        return EventStream(chunks(answer, body, head, lambda d, first: to_choice(d, first=first)))
    deltas = await unless_disconnected(request, collect(answer))
    content = {
        **head,
        "choices": [responses.chat_choice(delta, text.token_text) for delta in deltas],
        "usage": responses.usage(answer.usage),
        **responses.adapters(answer.generations),
    }
    if (known := deltas[0].prompt_logprobs) is not None:
        content["prompt_logprobs"] = responses.prompt_logprobs(known, text.token_text)
    return respond(200, content)


async def completions(request: Request) -> Response:
    """POST /v1/completions"""
    service: Service = request.app.state.service
    raw = await read_json(request, service.max_body(MAX_PROMPTS))
    body = parse(raw, schema_of(request).completion_request)
    admitted = service.admit(body)
    text: TextPipeline = admitted.pipeline
    answer = await unless_disconnected(request, text.complete(body, adapters=admitted.adapters))
    head = heading(request, "cmpl", "text_completion", admitted.name)
    if body.stream:
        to_choice = partial(responses.completion_choice, token_text=text.token_text)
        return EventStream(chunks(answer, body, head, lambda delta, _: to_choice(delta)))
    deltas = await unless_disconnected(request, collect(answer))
    choices = [responses.completion_choice(delta, text.token_text) for delta in deltas]
    extra = {"usage": responses.usage(answer.usage), **responses.adapters(answer.generations)}
    return respond(200, {**head, "choices": choices, **extra})


def schema_of(request: Request) -> type[TextPipeline]:
    """Return the text pipeline's class. It defines the request types before a model is loaded."""
    schema: type[TextPipeline] = request.app.state.text
    return schema


async def models(request: Request) -> Response:
    """GET /v1/models: the models, followed by their adapters."""
    service: Service = request.app.state.service
    if service.resolves and service.ready:  # requests may have registered adapters
        await service.refresh_adapters()
    data = [card(service, name) for name in service.names]
    taken = set(service.names)
    for model in service.names:
        for name in service.adapters.of(model):
            data.append(
                adapter_card(service, model, name, f"{model}:{name}" if name in taken else name)
            )
            taken.add(name)
    return respond(200, {"object": "list", "data": data})


async def model(request: Request) -> Response:
    """GET /v1/models/{id}"""
    service: Service = request.app.state.service
    id = request.path_params["id"]
    name, adapter = service.locate(id)
    if adapter is None:
        return respond(200, card(service, name))
    if adapter not in service.adapters.of(name):
        raise service.unknown(id)
    return respond(200, adapter_card(service, name, adapter, id))


def card(service: Service, name: str) -> dict[str, Any]:
    """The entry of a model. `max_model_len` is the context length, as in vLLM."""
    info = service.engine.info
    facts = None if info is None else info.models.get(name, info.first)
    return {
        "id": name,
        "object": "model",
        "created": service.started,
        "owned_by": "ostro",
        "max_model_len": facts and facts.context,
    }


def adapter_card(service: Service, model: str, name: str, id: str) -> dict[str, Any]:
    """The entry of an adapter. `root` and `parent` are its model, as in vLLM."""
    generation = service.adapters.of(model)[name].generation
    extra = {"adapter_generation": generation} if generation else {}
    return {**card(service, model), "id": id, "root": model, "parent": model, **extra}


def heading(request: Request, prefix: str, kind: str, model: str) -> dict[str, Any]:
    """Return the first fields of every response and chunk."""
    id = f"{prefix}-{request.state.request_id}"
    return {"id": id, "object": kind, "created": int(time.time()), "model": model}


async def collect(answer: Answer) -> list[TextDelta]:
    """Read an answer to its end. Return one delta per choice."""
    builders = [
        responses.ChoiceBuilder(last=TextDelta(index=index)) for index in range(answer.choices)
    ]
    try:
        async for delta in answer:
            builders[delta.index].add(delta)
    finally:
        await answer.aclose()
    return [builder.build() for builder in builders]


async def chunks(
    answer: Answer, body: TextRequest, head: dict[str, Any], to_choice: ToChoice
) -> AsyncGenerator[bytes, None]:
    """Yield an answer as server-sent events: one per delta, the usage if requested, and [DONE].

    The last event of each choice lists its adapters.
    """
    options = body.stream_options or StreamOptions()
    begun: set[int] = set()
    try:
        async for delta in answer:
            chunk = {**head, "choices": [to_choice(delta, delta.index not in begun)]}
            begun.add(delta.index)
            if delta.finish:
                chunk |= responses.adapters(answer.generations)
            if options.include_usage:
                continuous = options.continuous_usage_stats
                chunk["usage"] = responses.usage(answer.usage) if continuous else None
            yield event(chunk)
    finally:
        await answer.aclose()
    if options.include_usage:
        yield event({**head, "choices": [], "usage": responses.usage(answer.usage)})
    yield DONE


ROUTES = [
    Route("/v1/chat/completions", chat, methods=["POST"]),
    Route("/v1/completions", completions, methods=["POST"]),
    Route("/v1/models", models, methods=["GET"]),
    Route("/v1/models/{id:path}", model, methods=["GET"]),
]
