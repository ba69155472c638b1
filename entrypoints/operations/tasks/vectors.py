"""Requests and results of pooling models: vectors, ranking, scores and labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

from ostro.core.errors import RequestError, Unsupported
from ostro.core.tasks import VectorTask
from ostro.entrypoints.operations.requests.model_body import ModelBody

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_INPUTS = 2048
"""Limit on the inputs or documents of one request."""
POOLING: tuple[VectorTask, ...] = ("embed", "classify")
"""Tasks of `PoolRequest`, the default first."""
SCORING: tuple[VectorTask, ...] = ("rerank", "embed")
"""Tasks of `ScoreRequest`, the preferred one first."""
T = TypeVar("T")


class EmbeddingRequest(ModelBody, kw_only=True):
    """Texts or token ids to embed. `prompt` names a prompt in the model's config.

    `truncate_prompt_tokens` shortens longer inputs to this number of tokens, -1 to the limit of the
    model; 0 rejects them. Without it, folders of sentence-transformers shorten to their limit.
    """

    extensions: ClassVar[frozenset[str]] = ModelBody.extensions | frozenset(
        ("prompt", "truncate_prompt_tokens")
    )

    input: str | list[str | int | list[int]]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    prompt: str | None = None
    truncate_prompt_tokens: int | None = None


class RerankRequest(ModelBody, kw_only=True):
    """Documents to rank by relevance to a query.

    `top_n` limits the result to the best; `max_tokens_per_doc` truncates longer documents.
    """

    query: str
    documents: list[str]
    top_n: int | None = None
    max_tokens_per_doc: int | None = None


class ScoreRequest(ModelBody, kw_only=True):
    """Pairs of texts to score: one query with each document, or each query with its document."""

    queries: list[str]
    documents: list[str]


class ClassifyRequest(ModelBody, kw_only=True):
    """Texts to classify."""

    input: str | list[str]


class PoolRequest(ModelBody, kw_only=True):
    """Texts or token ids, and what to compute of each: "embed" or "classify".

    By default it is "embed" for models that support it. `prompt` and `dimensions` are those of
    `EmbeddingRequest`.
    """

    input: str | list[str | int | list[int]]
    task: str | None = None
    dimensions: int | None = None
    prompt: str | None = None


@dataclass(frozen=True, kw_only=True)
class Pooled:
    """What the results of pooling have in common.

    model is the name for the response, tokens the number of input tokens, generations those of the
    applied adapters, None for a request without adapters.
    """

    model: str
    tokens: int
    generations: list[str] | None


@dataclass(frozen=True, kw_only=True)
class Embeddings(Pooled):
    """One vector per input: [n, d] float32."""

    vectors: NDArray[np.float32]


@dataclass(frozen=True)
class RankedDocument:
    """A document, its index in the request, and its score; higher is better."""

    index: int
    score: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Ranking(Pooled):
    """The best documents of a request in descending order of relevance."""

    documents: list[RankedDocument]


@dataclass(frozen=True, kw_only=True)
class Classification(Pooled):
    """The probability of every label, by text."""

    probabilities: list[dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class Scores(Pooled):
    """The score of every pair; higher is better."""

    scores: list[float]


@dataclass(frozen=True, kw_only=True)
class Rows(Pooled):
    """One row of numbers per input: [n, d] float32 or float64."""

    rows: NDArray[np.float32] | NDArray[np.float64]


def embedding_inputs(given: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """Return the inputs as a list of texts or of token id lists. Raises RequestError if mixed."""
    if isinstance(given, str):
        return [given]
    numbers = [x for x in given if isinstance(x, int)]
    if not numbers:
        return [x for x in bounded(given) if not isinstance(x, int)]
    if len(numbers) < len(given):
        raise RequestError("input mixes token ids with texts", param="input")
    return [numbers]


def bounded(given: list[T], param: str = "input") -> list[T]:
    """Return a list of inputs. Raises RequestError for more than `MAX_INPUTS`."""
    if len(given) > MAX_INPUTS:
        raise RequestError(f"got {len(given)} inputs; the limit is {MAX_INPUTS}", param=param)
    return given


def check_rerank(request: RerankRequest) -> None:
    """Raise RequestError for too many documents, and for limits that are not positive."""
    bounded(request.documents, "documents")
    for name in ("top_n", "max_tokens_per_doc"):
        value = getattr(request, name)
        if value is not None and value < 1:
            raise RequestError(f"{name}={value} is not positive", param=name)


def score_pairs(request: ScoreRequest) -> list[tuple[str, str]]:
    """Return the pairs of a request. Raises RequestError unless there are 1:n or n:n texts."""
    queries = bounded(request.queries, "queries")
    documents = bounded(request.documents, "documents")
    if not queries or not documents:
        raise RequestError("no texts to score", param="documents" if queries else "queries")
    if len(queries) not in (1, len(documents)):
        raise RequestError(
            f"got {len(queries)} queries and {len(documents)} documents; expected one query, or "
            "as many as documents",
            param="queries",
        )
    if len(queries) == 1:
        queries = queries * len(documents)
    return list(zip(queries, documents, strict=True))


def classify_inputs(given: str | list[str | int | list[int]]) -> list[str]:
    """Return the texts to classify. Raises Unsupported for token ids."""
    texts = [given] if isinstance(given, str) else bounded(given)
    found = [text for text in texts if isinstance(text, str)]
    if len(found) < len(texts):
        raise Unsupported("token ids are not supported with the task classify", param="input")
    return found
