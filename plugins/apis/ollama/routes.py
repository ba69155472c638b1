"""Ollama's routes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any, NoReturn

from msgspec.structs import replace

from ostro import Route
from ostro.errors import ContextLengthExceeded, NotFound, Overloaded, RequestError, Unsupported
from ostro.http import (
    JSON_LINES,
    Caller,
    Content,
    EmbeddingRequest,
    Embeddings,
    Generation,
    Handler,
    ModelEntry,
    Operations,
    RequestBody,
    convert_aside,
    ignore,
    oldest_to_drop,
)
from ostro.pipelines import ChatRequest, CompletionRequest
from ostro.plugins.apis.ollama.answers import (
    LONG_INPUT,
    Clock,
    Form,
    chat_form,
    generate_form,
    lines,
    loaded,
    own_words,
    whole,
)
from ostro.plugins.apis.ollama.catalogue import info_of, model_of, running_model_of
from ostro.plugins.apis.ollama.conversion import (
    chat_request,
    completion_request,
    prompt_request,
    without_oldest,
)
from ostro.plugins.apis.ollama.options import SAMPLING, check_options
from ostro.plugins.apis.ollama.schema import (
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
    OllamaTimings,
    OllamaVersion,
)

VERSION = "0.13.0"
"""The version of Ollama whose API this is."""
MAX_INPUTS = 2048
"""Texts of one request to embed, as for /v1/embeddings."""
LATEST = ":latest"
"""The tag that Ollama's clients add to a name without one."""
BODY = RequestBody(any_type=True)
"""Ollama accepts JSON of any content type, such as that of `curl -d`."""
MANAGED = {
    "POST /api/pull": "pull",
    "POST /api/push": "push",
    "POST /api/create": "create",
    "POST /api/copy": "copy",
    "DELETE /api/delete": "delete",
    "POST /api/blobs/{digest}": "upload",
}
"""Routes that change Ollama's library of models."""
OPTIONS = {field: name for name, field in SAMPLING.items()}
"""Fields of errors that are options in Ollama's API, and their names there."""

Request = ChatRequest | CompletionRequest
"""A request for text."""
Convert = Callable[[Any, ModelEntry], Request]
"""Converts a request of Ollama."""
Answer = OllamaTimings | AsyncGenerator[OllamaTimings, None]
"""A whole response, or the lines of a stream."""


async def chat(operations: Operations, caller: Caller, body: OllamaChatRequest) -> Answer:
    """Continue a conversation."""
    if not body.messages:
        return load(operations, caller, body, chat_form)
    return await generate_with(operations, caller, body, chat_request, chat_form)


async def generate(operations: Operations, caller: Caller, body: OllamaGenerateRequest) -> Answer:
    """Answer a prompt, or continue it without a chat template."""
    if not body.prompt:
        return load(operations, caller, body, generate_form)
    convert = completion_request if body.raw or body.suffix else prompt_request
    return await generate_with(operations, caller, body, convert, generate_form)


def load(
    operations: Operations, caller: Caller, body: OllamaGeneration, form: Form
) -> OllamaTimings:
    """Respond to a request without a prompt: all models are in memory."""
    entry_of(operations, caller, body.model)
    if not operations.service.ready:
        raise Overloaded("the model is still loading; see /ready")
    return loaded(body.model, form)


async def generate_with(
    operations: Operations, caller: Caller, body: OllamaGeneration, convert: Convert, form: Form
) -> Answer:
    """Respond with a generation, streamed unless the request says otherwise."""
    clock = Clock()
    entry = entry_of(operations, caller, body.model)
    request = await convert_aside(convert, body, entry)
    with own_words():
        if isinstance(request, ChatRequest):
            truncate = isinstance(body, OllamaChatRequest) and body.truncate is not False
            generation = await continue_chat(operations, caller, request, truncate=truncate)
        else:
            generation = await operations.complete(request, caller)
    if body.stream:
        return lines(generation, clock, body.model, form)
    return await whole(generation, clock, body.model, form)


async def continue_chat(
    operations: Operations, caller: Caller, request: ChatRequest, *, truncate: bool
) -> Generation:
    """Begin to continue a chat. truncate: without its oldest messages, if it is too long."""

    def shorter(dropped: int) -> ChatRequest:
        return replace(request, messages=without_oldest(request.messages, dropped))

    try:
        return await operations.chat(request, caller)
    except ContextLengthExceeded as error:
        if not truncate or not ignore("messages beyond the context"):
            raise
        dropped = await oldest_to_drop(
            lambda dropped: operations.count(shorter(dropped), caller),
            len(request.messages) - 1,
            error,
            request.max_tokens,
            request.max_total_tokens,
        )
    return await operations.chat(shorter(dropped), caller)


async def embed(
    operations: Operations, caller: Caller, body: OllamaEmbedRequest
) -> OllamaEmbedResponse:
    """Compute the vectors of texts, of length 1."""
    clock = Clock()
    request = EmbeddingRequest(
        input=body.input if isinstance(body.input, str) else [*body.input],
        dimensions=body.dimensions,
    )
    result = await embedded(operations, caller, body, request, truncate=body.truncate)
    return OllamaEmbedResponse(
        model=body.model,
        embeddings=[] if result is None else unit_length(result.vectors),
        total_duration=clock.elapsed(),
        load_duration=0,
        prompt_eval_count=0 if result is None else result.tokens,
    )


async def embeddings(
    operations: Operations, caller: Caller, body: OllamaEmbeddingsRequest
) -> OllamaEmbeddingsResponse:
    """Compute the vector of a text, as the model returns it."""
    result = await embedded(operations, caller, body, EmbeddingRequest(input=body.prompt))
    vector = [] if result is None else result.vectors[0].tolist()
    return OllamaEmbeddingsResponse(embedding=vector)


async def embedded(
    operations: Operations,
    caller: Caller,
    body: OllamaTarget,
    request: EmbeddingRequest,
    *,
    truncate: bool = True,
) -> Embeddings | None:
    """Return the vectors of a text or of several; None for an empty text or list.

    With `truncate`, longer texts are truncated to `num_ctx` tokens, or to the context. Raises
    Unsupported for `num_ctx` without it.
    """
    entry = entry_of(operations, caller, body.model)
    check_options(body.options)
    most = body.options.num_ctx
    if most is not None and not truncate:
        raise Unsupported(
            "options.num_ctx: not supported with truncate=false; leave one of them out",
            param="options.num_ctx",
        )
    if not request.input:
        return None
    request.model, request.adapter, request.adapters = entry.id, body.adapter, body.adapters
    if most is not None and entry.context is not None:
        most = min(most, entry.context)
    request.truncate_prompt_tokens = (most or -1) if truncate else 0
    with own_words(LONG_INPUT):
        return await operations.embed(request, caller)


def unit_length(vectors: Any) -> list[list[float]]:
    """Normalise vectors [n, d]."""
    import numpy as np

    lengths = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    normal: list[list[float]] = (vectors / lengths).tolist()
    return normal


async def tags(operations: Operations, caller: Caller, request: None) -> OllamaModels:
    """List the models, followed by their adapters."""
    entries = await operations.models(caller)
    return OllamaModels(models=[model_of(entry) for entry in entries])


async def running(operations: Operations, caller: Caller, request: None) -> OllamaRunningModels:
    """List the loaded models, followed by their adapters."""
    entries = await operations.models(caller)
    ready = [entry for entry in entries if entry.served is not None]
    return OllamaRunningModels(models=[running_model_of(entry) for entry in ready])


async def show(operations: Operations, caller: Caller, body: OllamaShowRequest) -> OllamaModelInfo:
    """Describe a model or an adapter."""
    name = body.model or body.name
    if not name:
        raise RequestError("model is missing", param="model")
    return info_of(entry_of(operations, caller, name))


async def version(operations: Operations, caller: Caller, request: None) -> OllamaVersion:
    """Return the version of Ollama whose API this is."""
    return OllamaVersion(version=VERSION)


async def root(operations: Operations, caller: Caller, request: None) -> Content:
    """Answer clients that look for a running Ollama."""
    return Content(data=b"Ollama is running", media_type="text/plain; charset=utf-8")


def managed(action: str) -> Handler:
    """Return a handler that raises Unsupported for an action on Ollama's library."""

    async def reject(
        operations: Operations, caller: Caller, request: None, /, **parameters: str
    ) -> NoReturn:
        raise Unsupported(
            f"{action} is not supported: the models are chosen when the server starts, with "
            "`ostro serve -m REF`; `ostro pull REF` downloads one"
        )

    reject.__doc__ = f"Reject the action {action}: the models are chosen when the server starts."
    return reject


def entry_of(operations: Operations, caller: Caller, name: str) -> ModelEntry:
    """Return the model of a name, with or without the tag "latest". Raises NotFound."""
    try:
        return operations.model(name, caller)
    except NotFound:
        if not operations.service.resolves:
            raise
    # A resolver may find such an adapter.
    return ModelEntry(id=name.removesuffix(LATEST), created=0, context=None)


def ollama_error(status: int, message: str, code: str | None, param: str | None) -> OllamaError:
    """Return an error in Ollama's form. Options have the names of Ollama's requests."""
    if param in OPTIONS:
        own = f"options.{OPTIONS[param]}"
        rest = message.removeprefix(param)
        message = f"{own}: {message}" if rest == message else own + rest
    return OllamaError(error=message)


ROUTES: tuple[Route, ...] = (
    Route(
        name="POST /api/chat",
        handler=chat,
        request=OllamaChatRequest,
        body=BODY,
        response=OllamaChatResponse,
        events=OllamaChatResponse,
        event_format=JSON_LINES,
        errors=ollama_error,
        example={"model": "default", "messages": [{"role": "user", "content": "Hello"}]},
    ),
    Route(
        name="POST /api/generate",
        handler=generate,
        request=OllamaGenerateRequest,
        body=BODY,
        response=OllamaGenerateResponse,
        events=OllamaGenerateResponse,
        event_format=JSON_LINES,
        errors=ollama_error,
        example={"model": "default", "prompt": "Why is the sky blue?", "stream": False},
    ),
    Route(
        name="POST /api/embed",
        handler=embed,
        request=OllamaEmbedRequest,
        body=RequestBody(max_inputs=MAX_INPUTS, any_type=True),
        response=OllamaEmbedResponse,
        errors=ollama_error,
        example={"model": "default", "input": ["a text", "another text"]},
    ),
    Route(
        name="POST /api/embeddings",
        handler=embeddings,
        request=OllamaEmbeddingsRequest,
        body=BODY,
        response=OllamaEmbeddingsResponse,
        errors=ollama_error,
        example={"model": "default", "prompt": "a text"},
    ),
    Route(
        name="POST /api/show",
        handler=show,
        request=OllamaShowRequest,
        body=BODY,
        response=OllamaModelInfo,
        errors=ollama_error,
        example={"model": "default"},
    ),
    Route(
        name="GET /api/tags",
        handler=tags,
        response=OllamaModels,
        errors=ollama_error,
        error_statuses=(),
    ),
    Route(
        name="GET /api/ps",
        handler=running,
        response=OllamaRunningModels,
        errors=ollama_error,
        error_statuses=(),
    ),
    Route(
        name="GET /api/version",
        handler=version,
        response=OllamaVersion,
        errors=ollama_error,
        error_statuses=(),
    ),
    Route(name="GET /", handler=root, scope="open", response=["text/plain"], error_statuses=()),
    *(
        Route(
            name=name,
            handler=managed(action),
            cancel_on_disconnect=True,  # it only refuses
            errors=ollama_error,
            error_statuses=(400,),
        )
        for name, action in MANAGED.items()
    ),
)
