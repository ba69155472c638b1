"""Routes that rank, score, classify and pool texts."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from ostro import Route
from ostro.errors import RequestError
from ostro.http import (
    MAX_INPUTS,
    ClassifyRequest,
    Pooled,
    PoolRequest,
    RerankRequest,
    ScoreRequest,
    caller_of,
    operations_of,
    read_request,
    respond,
    unless_disconnected,
)
from ostro.plugins.apis.ranking import schema
from ostro.plugins.apis.ranking.schema import (
    CohereRerankBody,
    CohereRerankResponse,
    PoolingBody,
    PoolingResponse,
    RerankBody,
    RerankResponse,
    ScoreBody,
    ScoreResponse,
)

DOCUMENTS_PER_UNIT = 100
"""Documents of a query that Cohere counts as one unit."""


async def rerank(request: Request) -> Response:
    """Rank documents by relevance to a query."""
    body = await read_request(request, RerankBody, MAX_INPUTS)
    asked = RerankRequest(
        query=body.query, documents=texts_of(body.documents), top_n=body.top_n, **body.target
    )
    work = operations_of(request).rerank(asked, caller_of(request))
    found = await unless_disconnected(request, work)
    results = [
        schema.RerankResult(
            index=each.index,
            relevance_score=each.score,
            document=schema.Document(text=each.text) if body.return_documents else UNSET,
        )
        for each in found.documents
    ]
    return respond(200, RerankResponse(results=results, **shared(request, found, "rerank")))


async def cohere_rerank(request: Request) -> Response:
    """Rank documents by relevance to a query, as at Cohere."""
    body = await read_request(request, CohereRerankBody, MAX_INPUTS)
    fields = {name: getattr(body, name) for name in ("documents", "top_n", "max_tokens_per_doc")}
    asked = RerankRequest(query=body.query, **fields, **body.target)
    work = operations_of(request).rerank(asked, caller_of(request))
    found = await unless_disconnected(request, work)
    response = CohereRerankResponse(
        id=id_of(request, "rerank"),
        results=[
            schema.CohereResult(index=each.index, relevance_score=each.score)
            for each in found.documents
        ],
        meta=schema.CohereMeta(
            api_version=schema.CohereVersion(),
            billed_units=schema.CohereUnits(search_units=search_units(len(body.documents))),
            tokens=schema.CohereTokens(input_tokens=found.tokens),
        ),
        adapter_generations=UNSET if found.generations is None else found.generations,
    )
    return respond(200, response)


async def score(request: Request) -> Response:
    """Score pairs of texts by relevance or similarity."""
    body = await read_request(request, ScoreBody, MAX_INPUTS)
    asked = ScoreRequest(
        queries=either(body, "text_1", "queries"),
        documents=either(body, "text_2", "documents"),
        **body.target,
    )
    work = operations_of(request).score(asked, caller_of(request))
    found = await unless_disconnected(request, work)
    data = [schema.ScoreItem(index=index, score=x) for index, x in enumerate(found.scores)]
    return respond(200, ScoreResponse(data=data, **listed(request, found, "score")))


async def classify(request: Request) -> Response:
    """Compute the probabilities of a classifier's labels."""
    body = await read_request(request, ClassifyRequest, MAX_INPUTS)
    work = operations_of(request).classify(body, caller_of(request))
    found = await unless_disconnected(request, work)
    data = [
        schema.ClassifyItem(
            index=index,
            label=max(probs, key=lambda label: probs[label]),
            probs=list(probs.values()),
            num_classes=len(probs),
            labels=list(probs),
        )
        for index, probs in enumerate(found.probabilities)
    ]
    response = schema.ClassifyResponse(data=data, **listed(request, found, "classify"))
    return respond(200, response)


async def pooling(request: Request) -> Response:
    """Compute the vector, or the probabilities of the labels, of each input."""
    body = await read_request(request, PoolingBody, MAX_INPUTS)
    fields = {name: getattr(body, name) for name in ("input", "task", "dimensions", "prompt")}
    work = operations_of(request).pool(PoolRequest(**fields, **body.target), caller_of(request))
    found = await unless_disconnected(request, work)
    packed = body.encoding_format == "base64"
    data = [
        schema.PoolingItem(index=index, data=pack(row) if packed else row.tolist())
        for index, row in enumerate(found.rows)
    ]
    return respond(200, PoolingResponse(data=data, **listed(request, found, "pool")))


def pack(row: Any) -> str:
    """Return the numbers [d] of a row as base64 of float32."""
    return base64.b64encode(np.asarray(row, "<f4").tobytes()).decode()


def search_units(documents: int) -> int:
    """Return the units that Cohere bills: one for each hundred documents that are begun."""
    return -(-documents // DOCUMENTS_PER_UNIT)


def texts_of(documents: Sequence[str | dict[str, str | None]]) -> list[str]:
    """Return the texts of documents. Raises RequestError for one without text."""
    texts = []
    for index, document in enumerate(documents):
        text = document if isinstance(document, str) else document.get("text")
        if text is None:
            raise RequestError(f"documents[{index}].text is missing", param="documents")
        texts.append(text)
    return texts


def either(body: msgspec.Struct, *names: str) -> list[str]:
    """Return the texts of the one field that is given. Raises RequestError for none and both."""
    given = [name for name in names if getattr(body, name) is not None]
    if len(given) != 1:
        found = "both" if given else "none"
        raise RequestError(f"expected {' or '.join(names)}, got {found}", param=names[0])
    value: str | list[str] = getattr(body, given[0])
    return [value] if isinstance(value, str) else value


def id_of(request: Request, kind: str) -> str:
    """Return the id of a response."""
    return f"{kind}-{request.state.request_id}"


def shared(request: Request, found: Pooled, kind: str) -> dict[str, Any]:
    """Return the fields of a `PooledBody`."""
    return {
        "id": id_of(request, kind),
        "model": found.model,
        "usage": schema.PoolingUsage(prompt_tokens=found.tokens, total_tokens=found.tokens),
        "adapter_generations": UNSET if found.generations is None else found.generations,
    }


def listed(request: Request, found: Pooled, kind: str) -> dict[str, Any]:
    """Return the fields of a `PooledList`."""
    return {"created": int(time.time()), **shared(request, found, kind)}


RERANK = {"query": "capitals", "documents": ["Paris", "a pear"], "top_n": 1}
"""The example of reranking."""


def routes() -> list[Route]:
    """Return the routes. The names with and without /v1 are the same."""
    jina: dict[str, Any] = {
        "endpoint": rerank,
        "request": RerankBody,
        "response": RerankResponse,
        "errors": schema.jina_error,
        "example": RERANK,
    }
    scoring: dict[str, Any] = {
        "endpoint": score,
        "request": ScoreBody,
        "response": ScoreResponse,
        "example": {"text_1": "capitals", "text_2": ["Paris", "a pear"]},
    }
    labels: dict[str, Any] = {
        "endpoint": classify,
        "request": ClassifyRequest,
        "response": schema.ClassifyResponse,
        "example": {"input": "a wonderful film"},
    }
    cohere = Route(
        name="POST /v2/rerank",
        endpoint=cohere_rerank,
        request=CohereRerankBody,
        response=CohereRerankResponse,
        errors=schema.cohere_error,
        example=RERANK,
    )
    pool = Route(
        name="POST /pooling",
        endpoint=pooling,
        request=PoolingBody,
        response=PoolingResponse,
        example={"input": ["a text", "another text"]},
    )
    families = {"rerank": jina, "score": scoring, "classify": labels}
    aliased = [
        Route(name=f"POST {prefix}/{name}", **fields)
        for name, fields in families.items()
        for prefix in ("/v1", "")
    ]
    return [*aliased, cohere, pool]
