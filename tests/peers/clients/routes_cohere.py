"""The routes of rerankers with the Cohere client, whose types are validated.

python routes_cohere.py http://127.0.0.1:8000 [FEATURE ...]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cohere
from routes import KEY, Feature, rejected, run_routes, wait

QUERY = "hello"
DOCUMENTS = ["a", "hello world", "hello hello hello world"]
RANKER = {"model": "ranker", "query": QUERY, "documents": DOCUMENTS}


@dataclass(frozen=True)
class Clients:
    """The clients of both versions of the API."""

    v1: Any
    v2: Any


def make_clients(url: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"api_key": KEY, "base_url": url, "timeout": 120, "max_retries": 0}
    return {
        "sync": Clients(cohere.Client(**fields), cohere.ClientV2(**fields)),
        "async": Clients(cohere.AsyncClient(**fields), cohere.AsyncClientV2(**fields)),
    }


def valid(made: Any) -> Any:
    """The response, which the client does not validate. Raises ValidationError."""
    return type(made).model_validate(made.model_dump())


async def rerank(clients: Clients) -> None:
    made = valid(await wait(clients.v2.rerank(**RANKER)))
    scores = [result.relevance_score for result in made.results]
    assert sorted(result.index for result in made.results) == [0, 1, 2] and made.id
    assert scores == sorted(scores, reverse=True) and 0 <= scores[-1] < scores[0] <= 1
    assert made.meta.billed_units.search_units == 1 and made.meta.api_version.version == "2"


async def rerank_top(clients: Clients) -> None:
    whole = await wait(clients.v2.rerank(**RANKER))
    made = valid(await wait(clients.v2.rerank(**RANKER, top_n=1, max_tokens_per_doc=40)))
    assert [x.index for x in made.results] == [whole.results[0].index]


async def rerank_priority(clients: Clients) -> str:
    return await rejected(lambda: clients.v2.rerank(**RANKER, priority=1), 400, "priority")


async def rerank_spans(clients: Clients) -> str:
    spans = cohere.RerankRelevantSpans(mode="enabled")
    return await rejected(
        lambda: clients.v2.rerank(**RANKER, relevant_spans=spans), 400, "relevant_spans"
    )


async def rerank_other(clients: Clients) -> str:
    fields = {**RANKER, "model": "starter"}
    return await rejected(lambda: clients.v2.rerank(**fields), 400, "not rerank")


async def rerank_v1(clients: Clients) -> None:
    made = valid(await wait(clients.v1.rerank(**RANKER, top_n=2, return_documents=True)))
    assert len(made.results) == 2 and made.results[0].relevance_score > 0
    assert [x.document.text for x in made.results] == [DOCUMENTS[x.index] for x in made.results]


async def rerank_v1_objects(clients: Clients) -> None:
    fields: dict[str, Any] = {**RANKER, "documents": [{"text": text} for text in DOCUMENTS]}
    made = valid(await wait(clients.v1.rerank(**fields, return_documents=False)))
    assert len(made.results) == 3 and made.results[0].document is None


async def rerank_v1_chunks(clients: Clients) -> str:
    return await rejected(
        lambda: clients.v1.rerank(**RANKER, max_chunks_per_doc=1), 400, "max_chunks_per_doc"
    )


async def rerank_v1_fields(clients: Clients) -> str:
    return await rejected(
        lambda: clients.v1.rerank(**RANKER, rank_fields=["text"]), 400, "rank_fields"
    )


async def chat(clients: Clients) -> str:
    messages: Any = [{"role": "user", "content": "a"}]
    return await rejected(
        lambda: clients.v2.chat(model="starter", messages=messages), 404, "/v2/chat"
    )


async def embed(clients: Clients) -> str:
    fields: dict[str, Any] = {"model": "starter", "input_type": "search_query"}
    fields |= {"embedding_types": ["float"], "texts": ["a"]}
    return await rejected(lambda: clients.v2.embed(**fields), 404, "/v2/embed")


V1, V2 = "POST /v1/rerank", "POST /v2/rerank"
FEATURES = [
    Feature(V2, "v2.rerank", rerank),
    Feature(V2, "v2.rerank, top_n, max_tokens_per_doc", rerank_top),
    Feature(V2, "v2.rerank, priority", rerank_priority),
    Feature(V2, "v2.rerank, relevant_spans", rerank_spans),
    Feature(V2, "v2.rerank, no reranker", rerank_other),
    Feature(V1, "rerank, top_n, return_documents", rerank_v1),
    Feature(V1, "rerank, documents with text", rerank_v1_objects),
    Feature(V1, "rerank, max_chunks_per_doc", rerank_v1_chunks),
    Feature(V1, "rerank, rank_fields", rerank_v1_fields),
    Feature("POST /v2/chat", "v2.chat", chat),
    Feature("POST /v2/embed", "v2.embed", embed),
]

if __name__ == "__main__":
    run_routes(FEATURES, make_clients)
