"""The route of embeddings."""

from __future__ import annotations

import base64
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from ostro.core.routes import RequestBody, Route
from ostro.entrypoints.api.openai.types import unless_none
from ostro.entrypoints.operations.access.caller import Caller
from ostro.entrypoints.operations.operations import Operations
from ostro.entrypoints.operations.tasks.vectors import MAX_INPUTS, EmbeddingRequest


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


async def embeddings(
    operations: Operations, caller: Caller, body: EmbeddingRequest
) -> EmbeddingList:
    """Compute the vectors of texts or token ids."""
    found = await operations.embed(body, caller)
    data = []
    for index, row in enumerate(found.vectors):
        packed = base64.b64encode(row.astype("<f4").tobytes()).decode()
        vector = packed if body.encoding_format == "base64" else row.tolist()
        data.append(EmbeddingItem(index=index, embedding=vector))
    return EmbeddingList(
        model=found.model,
        usage=InputUsage(prompt_tokens=found.tokens, total_tokens=found.tokens),
        adapter_generations=unless_none(found.generations),
        data=data,
    )


ROUTES: tuple[Route, ...] = (
    Route(
        name="POST /v1/embeddings",
        handler=embeddings,
        request=EmbeddingRequest,
        body=RequestBody(max_inputs=MAX_INPUTS),
        response=EmbeddingList,
    ),
)
