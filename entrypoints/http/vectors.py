"""The route of embeddings."""

from __future__ import annotations

import base64
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from ostro.core.records import Route
from ostro.entrypoints.http.body import read_request
from ostro.entrypoints.http.context import caller_of, operations_of
from ostro.entrypoints.http.errors import respond
from ostro.entrypoints.http.openai_types import unless_none
from ostro.entrypoints.http.stream import unless_disconnected
from ostro.entrypoints.operations.operations import Operations
from ostro.entrypoints.operations.vectors import MAX_INPUTS, EmbeddingRequest


class InputUsage(msgspec.Struct, kw_only=True):
    """Token counts of a request that generates no tokens."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingItem(msgspec.Struct, kw_only=True):
    """A vector: numbers, or with encoding_format base64 their float32 bytes."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingList(msgspec.Struct, kw_only=True):
    """One vector per input."""

    model: str
    usage: InputUsage
    adapter_generations: list[str] | UnsetType = UNSET
    data: list[EmbeddingItem]
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
    response = EmbeddingList(
        model=found.model,
        usage=InputUsage(prompt_tokens=found.tokens, total_tokens=found.tokens),
        adapter_generations=unless_none(found.generations),
        data=data,
    )
    return respond(200, response)


def routes(operations: Operations) -> list[Route]:
    """Return the routes."""
    return [
        Route(
            name="POST /v1/embeddings",
            endpoint=embeddings,
            request=EmbeddingRequest,
            response=EmbeddingList,
        ),
    ]
