"""Requests, responses and errors of the routes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ostro.http import ModelBody


class RerankBody(ModelBody, kw_only=True):
    """Documents to rank by relevance to a query: texts, or objects with the field `text`.

    `return_documents` adds the documents to the response.
    """

    unsupported: ClassVar[Mapping[str, str]] = {
        "max_chunks_per_doc": "splitting of documents; send the chunks as documents",
        "rank_fields": "a choice of fields; send texts, or objects with the field text",
    }

    query: str
    documents: list[str | dict[str, str | None]]
    top_n: int | None = None
    return_documents: bool = True


class CohereRerankBody(ModelBody, kw_only=True):
    """Documents to rank by relevance to a query; longer documents are truncated."""

    unsupported: ClassVar[Mapping[str, str]] = {
        "priority": "a priority",
        "relevant_spans": "marking relevant spans",
    }

    query: str
    documents: list[str]
    top_n: int | None = None
    max_tokens_per_doc: int = 4096


class ScoreBody(ModelBody, kw_only=True):
    """Texts to score in pairs: one of `text_1` with each of `text_2`, or each with its own.

    `queries` and `documents` are other names of the two fields.
    """

    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    queries: str | list[str] | None = None
    documents: str | list[str] | None = None


class PoolingBody(ModelBody, kw_only=True):
    """Texts or token ids to embed, or texts to classify, according to `task`.

    `prompt` names a prompt in the model's config.
    """

    unsupported: ClassVar[Mapping[str, str]] = {"messages": "a chat"}
    extensions: ClassVar[frozenset[str]] = ModelBody.extensions | frozenset(("prompt",))

    input: str | list[str | int | list[int]]
    task: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    prompt: str | None = None


class PoolingUsage(msgspec.Struct, kw_only=True):
    """Token counts of a request that generates no tokens."""

    prompt_tokens: int
    total_tokens: int


class PooledBody(msgspec.Struct, kw_only=True):
    """The fields that the responses share."""

    id: str
    model: str
    usage: PoolingUsage
    adapter_generations: list[str] | UnsetType = UNSET


class Document(msgspec.Struct, kw_only=True):
    """A document of a request."""

    text: str


class RerankResult(msgspec.Struct, kw_only=True):
    """A document's index in the request, and its score; higher is better."""

    index: int
    relevance_score: float
    document: Document | UnsetType = UNSET


class RerankResponse(PooledBody, kw_only=True):
    """The documents in descending order of relevance."""

    results: list[RerankResult]


class CohereVersion(msgspec.Struct, kw_only=True):
    """The version of Cohere's API."""

    version: str = "2"


class CohereUnits(msgspec.Struct, kw_only=True):
    """What Cohere counts: one unit for a query with up to 100 documents."""

    search_units: int


class CohereTokens(msgspec.Struct, kw_only=True):
    """Token counts."""

    input_tokens: int


class CohereMeta(msgspec.Struct, kw_only=True):
    """Facts about a response."""

    api_version: CohereVersion
    billed_units: CohereUnits
    tokens: CohereTokens


class CohereResult(msgspec.Struct, kw_only=True):
    """A document's index in the request, and its score; higher is better."""

    index: int
    relevance_score: float


class CohereRerankResponse(msgspec.Struct, kw_only=True):
    """The documents in descending order of relevance."""

    id: str
    results: list[CohereResult]
    meta: CohereMeta
    adapter_generations: list[str] | UnsetType = UNSET


class PooledList(PooledBody, kw_only=True):
    """The fields that responses with a list share. `created` is in seconds since 1970."""

    created: int
    object: Literal["list"] = "list"


class ScoreItem(msgspec.Struct, kw_only=True):
    """The score of a pair; higher is better."""

    index: int
    score: float
    object: Literal["score"] = "score"


class ScoreResponse(PooledList, kw_only=True):
    """The scores in the order of the pairs."""

    data: list[ScoreItem]


class ClassifyItem(msgspec.Struct, kw_only=True):
    """The best label of a text, and the probabilities of all labels."""

    index: int
    label: str
    probs: list[float]
    num_classes: int
    labels: list[str]


class ClassifyResponse(PooledList, kw_only=True):
    """The labels of each text."""

    data: list[ClassifyItem]


class PoolingItem(msgspec.Struct, kw_only=True):
    """A row of numbers, or with encoding_format base64 their float32 bytes."""

    index: int
    data: list[float] | str
    object: Literal["pooling"] = "pooling"


class PoolingResponse(PooledList, kw_only=True):
    """One row per input: a vector, or the probabilities of the labels."""

    data: list[PoolingItem]


class JinaError(msgspec.Struct, kw_only=True):
    """The JSON of an error at Jina."""

    detail: str


class CohereError(msgspec.Struct, kw_only=True):
    """The JSON of an error at Cohere."""

    message: str


def jina_error(status: int, message: str, code: str | None, param: str | None) -> JinaError:
    """Convert an error to Jina's form."""
    return JinaError(detail=message)


def cohere_error(status: int, message: str, code: str | None, param: str | None) -> CohereError:
    """Convert an error to Cohere's form."""
    return CohereError(message=message)
