"""Routes that rank, score, classify and pool texts."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from msgspec import UNSET

from ostro import Route
from ostro.errors import RequestError
from ostro.http import (
    MAX_INPUTS,
    Caller,
    ClassifyRequest,
    Operations,
    Pooled,
    PoolRequest,
    RequestBody,
    RerankRequest,
    ScoreRequest,
    request_id,
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

BODY = RequestBody(max_inputs=MAX_INPUTS)
"""How the bodies of all routes are read."""
DOCUMENTS_PER_UNIT = 100
"""Documents of a query that Cohere counts as one unit."""


async def rerank(operations: Operations, caller: Caller, body: RerankBody) -> RerankResponse:
    """Rank documents by relevance to a query."""
    request = RerankRequest(
        query=body.query, documents=texts_of(body.documents), top_n=body.top_n, **body.target
    )
    with naming(input="documents"):
        ranking = await operations.rerank(request, caller)
    results = [
        schema.RerankResult(
            index=document.index,
            relevance_score=document.score,
            document=schema.Document(text=document.text) if body.return_documents else UNSET,
        )
        for document in ranking.documents
    ]
    return RerankResponse(results=results, **shared(ranking, "rerank"))


async def cohere_rerank(
    operations: Operations, caller: Caller, body: CohereRerankBody
) -> CohereRerankResponse:
    """Rank documents by relevance to a query, as at Cohere."""
    fields = {name: getattr(body, name) for name in ("documents", "top_n", "max_tokens_per_doc")}
    request = RerankRequest(query=body.query, **fields, **body.target)
    with naming(input="documents"):
        ranking = await operations.rerank(request, caller)
    return CohereRerankResponse(
        id=id_of("rerank"),
        results=[
            schema.CohereResult(index=document.index, relevance_score=document.score)
            for document in ranking.documents
        ],
        meta=schema.CohereMeta(
            api_version=schema.CohereVersion(),
            billed_units=schema.CohereUnits(search_units=search_units(len(body.documents))),
            tokens=schema.CohereTokens(input_tokens=ranking.tokens),
        ),
        adapter_generations=UNSET if ranking.generations is None else ranking.generations,
    )


async def score(operations: Operations, caller: Caller, body: ScoreBody) -> ScoreResponse:
    """Score pairs of texts by relevance or similarity."""
    first, queries = either(body, "text_1", "queries")
    second, documents = either(body, "text_2", "documents")
    request = ScoreRequest(queries=queries, documents=documents, **body.target)
    with naming(queries=first, documents=second, input=second):
        scores = await operations.score(request, caller)
    data = [schema.ScoreItem(index=index, score=x) for index, x in enumerate(scores.scores)]
    return ScoreResponse(data=data, **listed(scores, "score"))


async def classify(
    operations: Operations, caller: Caller, body: ClassifyRequest
) -> schema.ClassifyResponse:
    """Compute the probabilities of a classifier's labels."""
    classification = await operations.classify(body, caller)
    data = [
        schema.ClassifyItem(
            index=index,
            label=max(probs, key=lambda label: probs[label]),
            probs=list(probs.values()),
            num_classes=len(probs),
            labels=list(probs),
        )
        for index, probs in enumerate(classification.probabilities)
    ]
    return schema.ClassifyResponse(data=data, **listed(classification, "classify"))


async def pooling(operations: Operations, caller: Caller, body: PoolingBody) -> PoolingResponse:
    """Compute the vector, or the probabilities of the labels, of each input."""
    fields = {name: getattr(body, name) for name in ("input", "task", "dimensions", "prompt")}
    rows = await operations.pool(PoolRequest(**fields, **body.target), caller)
    packed = body.encoding_format == "base64"
    data = [
        schema.PoolingItem(index=index, data=pack(row) if packed else row.tolist())
        for index, row in enumerate(rows.rows)
    ]
    return PoolingResponse(data=data, **listed(rows, "pool"))


def pack(row: Any) -> str:
    """Return the numbers [d] of a row as base64 of float32."""
    return base64.b64encode(row.astype("<f4", copy=False).tobytes()).decode()


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


def either(body: msgspec.Struct, *names: str) -> tuple[str, list[str]]:
    """Return the one field that is given, and its texts. Raises RequestError for none and both."""
    given = [name for name in names if getattr(body, name) is not None]
    if len(given) != 1:
        found = "both" if given else "none"
        raise RequestError(f"expected {' or '.join(names)}, got {found}", param=names[0])
    value: str | list[str] = getattr(body, given[0])
    return given[0], [value] if isinstance(value, str) else value


@contextmanager
def naming(**own: str) -> Iterator[None]:
    """Let errors name the fields of the route: `own` are these by those of the operation."""
    try:
        yield
    except RequestError as error:
        if name := own.get(error.param or ""):
            error.args = (re.sub(rf"^{error.param}(?=[\[:=])", name, str(error)),)
            error.param = name
        raise


def id_of(kind: str) -> str:
    """Return the id of a response."""
    return f"{kind}-{request_id()}"


def shared(pooled: Pooled, kind: str) -> dict[str, Any]:
    """Return the fields of a `PooledBody`."""
    return {
        "id": id_of(kind),
        "model": pooled.model,
        "usage": schema.PoolingUsage(prompt_tokens=pooled.tokens, total_tokens=pooled.tokens),
        "adapter_generations": UNSET if pooled.generations is None else pooled.generations,
    }


def listed(pooled: Pooled, kind: str) -> dict[str, Any]:
    """Return the fields of a `PooledList`."""
    return {"created": int(time.time()), **shared(pooled, kind)}


RERANK = {"query": "capitals", "documents": ["Paris", "a pear"], "top_n": 1}
"""The example of reranking."""


RERANKING: dict[str, Any] = {
    "handler": rerank,
    "request": RerankBody,
    "body": BODY,
    "response": RerankResponse,
    "errors": schema.jina_error,
    "example": RERANK,
}
SCORING: dict[str, Any] = {
    "handler": score,
    "request": ScoreBody,
    "body": BODY,
    "response": ScoreResponse,
    "example": {"text_1": "capitals", "text_2": ["Paris", "a pear"]},
}
CLASSIFYING: dict[str, Any] = {
    "handler": classify,
    "request": ClassifyRequest,
    "body": BODY,
    "response": schema.ClassifyResponse,
    "example": {"input": "a wonderful film"},
}
ROUTES: tuple[Route, ...] = (  # the names with and without /v1 are the same
    Route(name="POST /v1/rerank", **RERANKING),
    Route(name="POST /rerank", **RERANKING),
    Route(name="POST /v1/score", **SCORING),
    Route(name="POST /score", **SCORING),
    Route(name="POST /v1/classify", **CLASSIFYING),
    Route(name="POST /classify", **CLASSIFYING),
    Route(
        name="POST /v2/rerank",
        handler=cohere_rerank,
        request=CohereRerankBody,
        body=BODY,
        response=CohereRerankResponse,
        errors=schema.cohere_error,
        example=RERANK,
    ),
    Route(
        name="POST /pooling",
        handler=pooling,
        request=PoolingBody,
        body=BODY,
        response=PoolingResponse,
        example={"input": ["a text", "another text"]},
    ),
)
