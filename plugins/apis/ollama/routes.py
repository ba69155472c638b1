"""Ollama's routes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ostro import Route
from ostro.errors import (
    ContextLengthExceeded,
    NotFound,
    OstroError,
    Overloaded,
    RequestError,
    Unsupported,
)
from ostro.http import (
    EmbeddingRequest,
    Embeddings,
    EventStream,
    Generation,
    ModelEntry,
    caller_of,
    error_content_of,
    operations_of,
    read_request,
    respond,
    unless_disconnected,
)
from ostro.pipelines import parse_request
from ostro.plugins.apis.ollama.answers import (
    Clock,
    Form,
    chat_form,
    generate_form,
    line,
    lines,
    loaded,
    whole,
)
from ostro.plugins.apis.ollama.catalogue import info_of, model_of, running_model_of
from ostro.plugins.apis.ollama.conversion import chat_fields, completion_fields, prompt_fields
from ostro.plugins.apis.ollama.options import SAMPLING, check_options
from ostro.plugins.apis.ollama.schema import (
    NDJSON,
    OllamaChatRequest,
    OllamaChatResponse,
    OllamaEmbeddingsRequest,
    OllamaEmbeddingsResponse,
    OllamaEmbedRequest,
    OllamaEmbedResponse,
    OllamaError,
    OllamaGenerateRequest,
    OllamaGenerateResponse,
    OllamaGeneration,
    OllamaModelInfo,
    OllamaModels,
    OllamaRunningModels,
    OllamaShowRequest,
    OllamaTarget,
    OllamaVersion,
)

VERSION = "0.13.0"
"""The version of Ollama whose API this is."""
MAX_INPUTS = 2048
"""Texts of one request to embed, as for /v1/embeddings."""
LATEST = ":latest"
"""The tag that Ollama's clients add to a name without one."""
HEADERS = [(b"content-type", NDJSON.encode()), (b"cache-control", b"no-cache")]
MANAGED = {
    "POST /api/pull": "pull",
    "POST /api/push": "push",
    "POST /api/create": "create",
    "POST /api/copy": "copy",
    "DELETE /api/delete": "delete",
    "POST /api/blobs/{digest}": "upload",
}
"""Routes that change Ollama's library of models."""
OPTIONS = {field: name for name, field in SAMPLING.items() if field != name}
"""Fields of errors that have another name in Ollama's API, and this name."""

Convert = Callable[[Any, ModelEntry], dict[str, Any]]
"""Converts a request to the fields of a chat or completion request."""


async def chat(request: Request) -> Response:
    """Continue a conversation."""
    body = await read_request(request, OllamaChatRequest, any_type=True)
    if not body.messages:
        return load(request, body, chat_form)
    return await generate_with(request, body, chat_fields, chat_form)


async def generate(request: Request) -> Response:
    """Answer a prompt, or continue it without a chat template."""
    body = await read_request(request, OllamaGenerateRequest, any_type=True)
    if not body.prompt:
        return load(request, body, generate_form)
    is_raw = body.raw or body.suffix
    return await generate_with(
        request, body, completion_fields if is_raw else prompt_fields, generate_form
    )


def load(request: Request, body: OllamaGeneration, form: Form) -> Response:
    """Respond to a request without a prompt: all models are in memory."""
    entry_of(request, body.model)
    if not operations_of(request).service.ready:
        raise Overloaded("the model is still loading; see /ready")
    return respond(200, loaded(body.model, form))


async def generate_with(
    request: Request, body: OllamaGeneration, convert: Convert, form: Form
) -> Response:
    """Respond with a generation, streamed unless the request says otherwise."""
    clock = Clock()
    entry = entry_of(request, body.model)
    fields = await asyncio.to_thread(convert, body, entry)
    generation = await unless_disconnected(request, started(request, fields))
    if body.stream:
        events = lines(generation, clock, body.model, form)
        return EventStream(events, error_line, HEADERS, keep_alive=None)
    return respond(
        200, await unless_disconnected(request, whole(generation, clock, body.model, form))
    )


async def started(request: Request, fields: dict[str, Any]) -> Generation:
    """Start a generation. Tokens to generate are limited to the rest of the context."""
    operations, caller = operations_of(request), caller_of(request)
    is_chat = "messages" in fields
    kind = operations.chat_request if is_chat else operations.completion_request
    start = operations.chat if is_chat else operations.complete
    try:
        return await start(parse_request(fields, kind), caller)
    except ContextLengthExceeded as error:
        if error.param != "max_tokens":
            raise
    return await start(parse_request({**fields, "max_tokens": None}, kind), caller)


async def embed(request: Request) -> Response:
    """Compute the vectors of texts, of length 1."""
    clock = Clock()
    body = await read_request(request, OllamaEmbedRequest, MAX_INPUTS, any_type=True)
    fields = {"dimensions": body.dimensions}
    found = await embedded(request, body, body.input, fields, truncate=body.truncate)
    vectors = [] if found is None else unit_length(found.vectors)
    content = OllamaEmbedResponse(
        model=body.model,
        embeddings=vectors,
        total_duration=clock.elapsed(),
        load_duration=0,
        prompt_eval_count=0 if found is None else found.tokens,
    )
    return respond(200, content)


async def embeddings(request: Request) -> Response:
    """Compute the vector of a text, as the model returns it."""
    body = await read_request(request, OllamaEmbeddingsRequest, any_type=True)
    found = await embedded(request, body, body.prompt, {})
    vector = [] if found is None else found.vectors[0].tolist()
    return respond(200, OllamaEmbeddingsResponse(embedding=vector))


async def embedded(
    request: Request,
    body: OllamaTarget,
    inputs: str | list[str],
    fields: dict[str, Any],
    *,
    truncate: bool = True,
) -> Embeddings | None:
    """Return the vectors of a text or of several; None for an empty text or list.

    With `truncate`, longer texts are truncated to `num_ctx` tokens, or to the context. Raises
    Unsupported for `num_ctx` without it.
    """
    operations, entry = operations_of(request), entry_of(request, body.model)
    check_options(body.options, entry)
    most = body.options.num_ctx
    if most is not None and not truncate:
        raise Unsupported(
            "options.num_ctx: not supported with truncate=false; leave one of them out",
            param="options.num_ctx",
        )
    if not inputs:
        return None
    adapters = msgspec.to_builtins({"adapter": body.adapter, "adapters": body.adapters})
    length = (most or -1) if truncate else 0
    given = {"model": entry.id, "input": inputs, "truncate_prompt_tokens": length}
    given |= {**adapters, **fields}
    work = operations.embed(parse_request(given, EmbeddingRequest), caller_of(request))
    return await unless_disconnected(request, work)


def unit_length(vectors: Any) -> list[list[float]]:
    """Normalise vectors [n, d]."""
    lengths = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    normal: list[list[float]] = (vectors / lengths).tolist()
    return normal


async def tags(request: Request) -> Response:
    """List the models, followed by their adapters."""
    found = await operations_of(request).models(caller_of(request))
    return respond(200, OllamaModels(models=[model_of(entry) for entry in found]))


async def running(request: Request) -> Response:
    """List the loaded models, followed by their adapters."""
    found = await operations_of(request).models(caller_of(request))
    ready = [entry for entry in found if entry.served is not None]
    return respond(200, OllamaRunningModels(models=[running_model_of(entry) for entry in ready]))


async def show(request: Request) -> Response:
    """Describe a model or an adapter."""
    body = await read_request(request, OllamaShowRequest, any_type=True)
    name = body.model or body.name
    if not name:
        raise RequestError("model is missing", param="model")
    return respond(200, info_of(entry_of(request, name)))


async def version(request: Request) -> Response:
    """Return the version of Ollama whose API this is."""
    return respond(200, OllamaVersion(version=VERSION))


async def root(request: Request) -> Response:
    """Answer clients that look for a running Ollama."""
    return PlainTextResponse("Ollama is running")


def managed(action: str) -> Callable[[Request], Any]:
    """Return an endpoint that raises Unsupported for an action on Ollama's library."""

    async def reject(request: Request) -> Response:
        raise Unsupported(
            f"{action} is not supported: the models are chosen when the server starts, with "
            "`ostro serve -m REF`; `ostro pull REF` downloads one"
        )

    reject.__doc__ = f"Reject the action {action}: the models are chosen when the server starts."
    return reject


def entry_of(request: Request, name: str) -> ModelEntry:
    """Return the model of a name, with or without the tag "latest". Raises NotFound."""
    operations, caller = operations_of(request), caller_of(request)
    short = name.removesuffix(LATEST)
    if short != name:
        with suppress(NotFound):  # an adapter may have the name "latest"
            return operations.model(name, caller)
    try:
        return operations.model(short, caller)
    except NotFound:
        if not operations.service.resolves:
            raise
    return ModelEntry(id=short, created=0, context=None)  # a resolver may find such an adapter


def ollama_error(status: int, message: str, code: str | None, param: str | None) -> OllamaError:
    """Return an error in Ollama's form. Options have the names of Ollama's requests."""
    if param in OPTIONS:
        message = message.replace(param, f"options.{OPTIONS[param]}")
    return OllamaError(error=message)


def error_line(error: OstroError) -> bytes:
    """Return the line of an error in a stream."""
    found = error_content_of(error).error
    return line(ollama_error(error.status, found.message, found.code, found.param))


def routes() -> list[Route]:
    """Return the routes."""
    found = [
        Route(
            name="POST /api/chat",
            endpoint=chat,
            request=OllamaChatRequest,
            response=OllamaChatResponse,
            events=OllamaChatResponse,
            errors=ollama_error,
            example={"model": "default", "messages": [{"role": "user", "content": "Hello"}]},
        ),
        Route(
            name="POST /api/generate",
            endpoint=generate,
            request=OllamaGenerateRequest,
            response=OllamaGenerateResponse,
            events=OllamaGenerateResponse,
            errors=ollama_error,
            example={"model": "default", "prompt": "Why is the sky blue?", "stream": False},
        ),
        Route(
            name="POST /api/embed",
            endpoint=embed,
            request=OllamaEmbedRequest,
            response=OllamaEmbedResponse,
            errors=ollama_error,
            example={"model": "default", "input": ["a text", "another text"]},
        ),
        Route(
            name="POST /api/embeddings",
            endpoint=embeddings,
            request=OllamaEmbeddingsRequest,
            response=OllamaEmbeddingsResponse,
            errors=ollama_error,
            example={"model": "default", "prompt": "a text"},
        ),
        Route(
            name="POST /api/show",
            endpoint=show,
            request=OllamaShowRequest,
            response=OllamaModelInfo,
            errors=ollama_error,
            example={"model": "default"},
        ),
        Route(
            name="GET /api/tags",
            endpoint=tags,
            response=OllamaModels,
            errors=ollama_error,
            error_statuses=(),
        ),
        Route(
            name="GET /api/ps",
            endpoint=running,
            response=OllamaRunningModels,
            errors=ollama_error,
            error_statuses=(),
        ),
        Route(
            name="GET /api/version",
            endpoint=version,
            response=OllamaVersion,
            errors=ollama_error,
            error_statuses=(),
        ),
        Route(name="GET /", endpoint=root, scope="open", response=["text/plain"]),
    ]
    for name, action in MANAGED.items():
        found.append(
            Route(name=name, endpoint=managed(action), errors=ollama_error, error_statuses=(400,))
        )
    return found
