"""Routes of pooling models: OpenAI's embeddings, Jina's and Cohere's rerank, vLLM's classify."""

from __future__ import annotations

import base64
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from ostro.core.records import Route
from ostro.entrypoints.http.body import read_request
from ostro.entrypoints.http.context import caller_of, operations_of
from ostro.entrypoints.http.errors import respond
from ostro.entrypoints.http.responses import unless_none
from ostro.entrypoints.http.stream import unless_disconnected
from ostro.entrypoints.operations.operations import Operations
from ostro.entrypoints.operations.vectors import (
    MAX_INPUTS,
    ClassifyRequest,
    EmbeddingRequest,
    Pooled,
    RerankRequest,
)


class InputUsage(msgspec.Struct, kw_only=True):
    """Token counts of a request that generates no tokens."""

    prompt_tokens: int
    total_tokens: int


class PooledResponse(msgspec.Struct, kw_only=True):
    """What the responses of pooling models have in common."""

    model: str
    usage: InputUsage
    adapter_generations: list[str] | UnsetType = UNSET


class EmbeddingItem(msgspec.Struct, kw_only=True):
    """A vector: numbers, or with encoding_format base64 their float32 bytes."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingList(PooledResponse, kw_only=True):
    """One vector per input."""

    data: list[EmbeddingItem]
    object: Literal["list"] = "list"


class Document(msgspec.Struct, kw_only=True):
    """A document of a rerank request."""

    text: str


class RerankResult(msgspec.Struct, kw_only=True):
    """A document's index in the request, and its score; higher is better."""

    index: int
    relevance_score: float
    document: Document | UnsetType = UNSET


class RerankResponse(PooledResponse, kw_only=True):
    """The documents in descending order of relevance."""

    id: str
    results: list[RerankResult]


class ClassifyItem(msgspec.Struct, kw_only=True):
    """The best label of a text, and the probabilities of all labels."""

    index: int
    label: str
    probs: list[float]
    labels: list[str]


class ClassifyResponse(PooledResponse, kw_only=True):
    """The labels of each text."""

    data: list[ClassifyItem]
    object: Literal["list"] = "list"


async def embeddings(request: Request) -> Response:
    """Compute the vectors of texts or token ids."""
    body = await read_request(request, EmbeddingRequest, MAX_INPUTS)
    work = operations_of(request).embed(body, caller_of(request))
    found = await unless_disconnected(request, work)
    data = []
    for index, row in enumerate(found.vectors):
        packed = base64.b64encode(row.astype("<f4").tobytes()).decode()
        vector = packed if body.encoding_format == "base64" else row.tolist()
        data.append(EmbeddingItem(index=index, embedding=vector))
    return respond(200, EmbeddingList(data=data, **ending(found)))


async def rerank(request: Request) -> Response:
    """Rank documents by relevance to a query."""
    body = await read_request(request, RerankRequest, MAX_INPUTS)
    work = operations_of(request).rerank(body, caller_of(request))
    found = await unless_disconnected(request, work)
    results = [
        RerankResult(
            index=each.index,
            relevance_score=each.score,
            document=Document(text=each.text) if body.return_documents else UNSET,
        )
        for each in found.documents
    ]
    id = f"rerank-{request.state.request_id}"
    return respond(200, RerankResponse(id=id, results=results, **ending(found)))


async def classify(request: Request) -> Response:
    """Compute the probabilities of a classifier's labels."""
    body = await read_request(request, ClassifyRequest, MAX_INPUTS)
    work = operations_of(request).classify(body, caller_of(request))
    found = await unless_disconnected(request, work)
    data = [
        ClassifyItem(
            index=index,
            label=max(probs, key=lambda label: probs[label]),
            probs=list(probs.values()),
            labels=list(probs),
        )
        for index, probs in enumerate(found.probabilities)
    ]
    return respond(200, ClassifyResponse(data=data, **ending(found)))


def ending(found: Pooled) -> dict[str, Any]:
    """Return the fields of a `PooledResponse`."""
    return {
        "model": found.model,
        "usage": InputUsage(prompt_tokens=found.tokens, total_tokens=found.tokens),
        "adapter_generations": unless_none(found.generations),
    }


def routes(operations: Operations) -> list[Route]:
    """Return the routes."""
    return [
        Route(
            name="POST /v1/embeddings",
            endpoint=embeddings,
            request=EmbeddingRequest,
            response=EmbeddingList,
        ),
        Route(
            name="POST /v1/rerank",
            endpoint=rerank,
            request=RerankRequest,
            response=RerankResponse,
        ),
        Route(
            name="POST /v1/classify",
            endpoint=classify,
            request=ClassifyRequest,
            response=ClassifyResponse,
        ),
    ]
