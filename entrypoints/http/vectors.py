"""Routes of pooling models: OpenAI's embeddings, Jina's and Cohere's rerank, vLLM's classify."""

from __future__ import annotations

import base64
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ostro.core.errors import RequestError
from ostro.core.pipeline import ModelTarget, parse
from ostro.entrypoints.http.body import read_json
from ostro.entrypoints.http.errors import respond
from ostro.entrypoints.http.responses import adapters
from ostro.entrypoints.http.service import Service
from ostro.entrypoints.http.stream import unless_disconnected

MAX_INPUTS = 2048
"""Limit on the inputs or documents of one request."""


class EmbeddingRequest(ModelTarget, kw_only=True):
    """Texts or token ids to embed. `prompt` names a prompt in the model's config."""

    input: str | list[str | int | list[int]]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    prompt: str | None = None


class RerankRequest(ModelTarget, kw_only=True):
    """Documents to rank by relevance to a query."""

    query: str
    documents: list[str | dict[str, str | None]]
    top_n: int | None = None
    return_documents: bool = False


class ClassifyRequest(ModelTarget, kw_only=True):
    """Texts to classify."""

    input: str | list[str]


async def embeddings(request: Request) -> Response:
    """POST /v1/embeddings"""
    service: Service = request.app.state.service
    body = parse(await read_json(request, service.max_body(MAX_INPUTS)), EmbeddingRequest)
    admitted = service.admit(body, "embed")
    work = admitted.pipeline.embed(
        inputs_of(body.input),
        prompt=body.prompt,
        dimensions=body.dimensions,
        adapters=admitted.adapters,
    )
    read = await unless_disconnected(request, work)
    data = []
    for i, row in enumerate(read.answer):
        packed = base64.b64encode(row.astype("<f4").tobytes()).decode()
        vector = packed if body.encoding_format == "base64" else row.tolist()
        data.append({"object": "embedding", "index": i, "embedding": vector})
    return respond(200, {"object": "list", "data": data, "model": admitted.name, **ending(read)})


async def rerank(request: Request) -> Response:
    """POST /v1/rerank"""
    service: Service = request.app.state.service
    body = parse(await read_json(request, service.max_body(MAX_INPUTS)), RerankRequest)
    admitted = service.admit(body, "rerank")
    documents = [text_of(i, document) for i, document in enumerate(bounded(body.documents))]
    if body.top_n is not None and body.top_n < 1:
        raise RequestError(f"top_n={body.top_n} is not positive", param="top_n")
    work = admitted.pipeline.rerank(body.query, documents, adapters=admitted.adapters)
    read = await unless_disconnected(request, work)
    results = []
    for item in read.answer[: body.top_n]:
        result: dict[str, Any] = {"index": item.index, "relevance_score": item.score}
        if body.return_documents:
            result["document"] = {"text": documents[item.index]}
        results.append(result)
    id = f"rerank-{request.state.request_id}"
    return respond(200, {"id": id, "model": admitted.name, "results": results, **ending(read)})


async def classify(request: Request) -> Response:
    """POST /v1/classify"""
    service: Service = request.app.state.service
    body = parse(await read_json(request, service.max_body(MAX_INPUTS)), ClassifyRequest)
    admitted = service.admit(body, "classify")
    texts = [body.input] if isinstance(body.input, str) else bounded(body.input)
    work = admitted.pipeline.classify(texts, adapters=admitted.adapters)
    read = await unless_disconnected(request, work)
    data = []
    for i, probs in enumerate(read.answer):
        best = max(probs, key=lambda label: probs[label])
        data.append(
            {"index": i, "label": best, "probs": list(probs.values()), "labels": list(probs)}
        )
    return respond(200, {"object": "list", "data": data, "model": admitted.name, **ending(read)})


def inputs_of(given: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """Return the inputs as a list of texts or of token id lists. Raises RequestError if mixed."""
    if isinstance(given, str):
        return [given]
    numbers = [x for x in bounded(given) if isinstance(x, int)]
    if not numbers:
        return [x for x in given if not isinstance(x, int)]
    if len(numbers) < len(given):
        raise RequestError("input mixes token ids with texts", param="input")
    return [numbers]


def bounded(given: list[Any]) -> list[Any]:
    if len(given) > MAX_INPUTS and not isinstance(given[0], int):
        raise RequestError(f"got {len(given)} inputs; the limit is {MAX_INPUTS}", param="input")
    return given


def text_of(index: int, document: str | dict[str, str | None]) -> str:
    text = document if isinstance(document, str) else document.get("text")
    if text is None:
        raise RequestError(f"documents[{index}].text is missing", param="documents")
    return text


def ending(read: Any) -> dict[str, Any]:
    """The fields for usage and adapters that all responses have."""
    usage = {"prompt_tokens": read.tokens, "total_tokens": read.tokens}
    return {"usage": usage, **adapters(read.generations)}


ROUTES = [
    Route("/v1/embeddings", embeddings, methods=["POST"]),
    Route("/v1/rerank", rerank, methods=["POST"]),
    Route("/v1/classify", classify, methods=["POST"]),
]
