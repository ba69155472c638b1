"""Requests and responses of pooling models: embeddings, ranking, scores and labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from ostro.core.errors import RequestError
from ostro.core.pipeline import ModelTarget

MAX_INPUTS = 2048
"""Limit on the inputs or documents of one request."""
T = TypeVar("T")


class EmbeddingRequest(ModelTarget, kw_only=True):
    """Texts or token ids to embed. `prompt` names a prompt in the model's config."""

    extensions: ClassVar[frozenset[str]] = ModelTarget.extensions | frozenset(("prompt",))

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

    vectors: Any


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


def document_texts(request: RerankRequest) -> list[str]:
    """Return the texts of a request's documents.

    Raises RequestError for a document without text, and for a limit that is not positive.
    """
    texts = []
    for index, document in enumerate(bounded(request.documents, "documents")):
        text = document if isinstance(document, str) else document.get("text")
        if text is None:
            raise RequestError(f"documents[{index}].text is missing", param="documents")
        texts.append(text)
    if request.top_n is not None and request.top_n < 1:
        raise RequestError(f"top_n={request.top_n} is not positive", param="top_n")
    return texts
