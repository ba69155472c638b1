"""Rankings, scores, labels and vectors over HTTP, in the forms of Jina, Cohere and vLLM."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tiny.bert import make_bert
from tiny.model import make_model
from tiny.server import RunningServer, serving

from ostro.core.settings import Settings

pytestmark = pytest.mark.process

TEXTS = ["hello world", "a", "hello hello hello world"]
CLASSIFIER = "BertForSequenceClassification"
RERANK: dict[str, Any] = {"query": "hello", "documents": TEXTS}
SCORE: dict[str, Any] = {"text_1": "hello", "text_2": "a"}
ROUTES: dict[str, dict[str, Any]] = {
    "/rerank": RERANK,
    "/v1/rerank": RERANK,
    "/v2/rerank": RERANK,
    "/score": SCORE,
    "/v1/score": SCORE,
    "/classify": {"input": "a"},
    "/v1/classify": {"input": "a"},
    "/pooling": {"input": "a"},
}
"""A good request for each route."""
MANY = ["a"] * 2049
LONG = "hello world " * 200


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One server of a text model, an embedding model, a reranker and a classifier."""
    root = tmp_path_factory.mktemp("models")
    make_model(root / "tiny")
    make_bert(root / "bert")
    make_bert(root / "ranker", CLASSIFIER, num_labels=1)
    make_bert(root / "judge", CLASSIFIER, num_labels=3)
    also = [str(root / name) for name in ("bert", "ranker", "judge")]
    settings = Settings(reference=str(root / "tiny"), dtype="float32")
    with serving(settings, also=also) as running:
        yield running


def post(server: RunningServer, path: str, **body: Any) -> Any:
    """The JSON of a successful response."""
    response = server.post(path, **body)
    assert response.status_code == 200, response.text
    return response.json()


def relevance(server: RunningServer) -> list[float]:
    """The scores of `RERANK` in the order of the documents."""
    results = post(server, "/v1/rerank", **RERANK)["results"]
    return [each["relevance_score"] for each in sorted(results, key=lambda each: each["index"])]


def test_rerank_as_at_jina(server: RunningServer) -> None:
    parts = [{"text": text} for text in TEXTS]
    found = post(server, "/rerank", query="hello", documents=parts, top_n=2)
    assert found["model"] == "ranker" and found["id"].startswith("rerank-")
    assert found["usage"]["total_tokens"] == found["usage"]["prompt_tokens"] > 0
    first, second = found["results"]
    assert first["relevance_score"] > second["relevance_score"]
    assert first["document"] == {"text": TEXTS[first["index"]]}
    bare = post(server, "/v1/rerank", **RERANK, return_documents=False)["results"]
    assert len(bare) == 3 and all("document" not in each for each in bare)
    assert bare[0]["relevance_score"] == first["relevance_score"]


def test_rerank_as_at_cohere(server: RunningServer) -> None:
    found = post(server, "/v2/rerank", **RERANK, model="ranker", top_n=1)
    [best] = found["results"]
    scores = relevance(server)
    assert best == {"index": int(np.argmax(scores)), "relevance_score": max(scores)}
    assert found["meta"]["api_version"] == {"version": "2"}
    assert found["meta"]["billed_units"] == {"search_units": 1}
    assert found["meta"]["tokens"]["input_tokens"] > 0
    assert found.keys() == {"id", "results", "meta"}


def test_documents_are_truncated(server: RunningServer) -> None:
    long = {"query": "hello", "documents": ["hello world " * 200, "world"]}
    refused = server.post("/v2/rerank", **long)
    assert refused.status_code == 400 and "context" in refused.json()["message"]
    length = post(server, "/tokenize", prompt="hello", model="ranker", add_special_tokens=False)
    cut = post(server, "/v2/rerank", **long, max_tokens_per_doc=length["count"])
    short = post(server, "/v2/rerank", query="hello", documents=["hello", "world"])
    assert cut["results"] == short["results"] and cut["meta"] == short["meta"]
    whole = post(server, "/v2/rerank", **RERANK, max_tokens_per_doc=40)
    assert whole["results"] == post(server, "/v2/rerank", **RERANK)["results"]


def test_scores_are_relevances(server: RunningServer) -> None:
    found = post(server, "/v1/score", text_1="hello", text_2=TEXTS)
    assert found["model"] == "ranker" and found["object"] == "list"
    assert [(each["index"], each["object"]) for each in found["data"]] == [
        (index, "score") for index in range(3)
    ]
    scores = [each["score"] for each in found["data"]]
    assert scores == pytest.approx(relevance(server), abs=1e-6)
    renamed = post(server, "/score", queries="hello", documents=TEXTS)["data"]
    assert renamed == found["data"]
    pairs = post(server, "/score", text_1=["hello"] * 3, text_2=TEXTS)
    assert pairs["data"] == found["data"]
    single = post(server, "/score", text_1="hello", text_2=TEXTS[1])["data"]
    assert [each["score"] for each in single] == pytest.approx(scores[1:2], abs=1e-6)


def test_scores_of_an_embedding_model_are_similarities(server: RunningServer) -> None:
    queries = ["hello", "world", "hello"]
    scored = post(server, "/score", text_1=queries, text_2=TEXTS, model="bert")
    rows = post(server, "/v1/embeddings", input=[*queries, *TEXTS], model="bert")["data"]
    units = np.array([row["embedding"] for row in rows])
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    expected = (units[:3] * units[3:]).sum(1)
    found = [each["score"] for each in scored["data"]]
    assert found == pytest.approx(expected, abs=1e-5) and len(set(found)) == 3
    same = post(server, "/score", text_1="hello world", text_2="hello world", model="bert")
    assert same["data"][0]["score"] == pytest.approx(1, abs=1e-6)


def test_labels(server: RunningServer) -> None:
    found = post(server, "/classify", input=TEXTS, model="judge")
    for each in found["data"]:
        assert each["num_classes"] == 3 and sum(each["probs"]) == pytest.approx(1)
        assert each["label"] == each["labels"][int(np.argmax(each["probs"]))]
    pooled = post(server, "/pooling", input=TEXTS, model="judge")
    for row, each in zip(pooled["data"], found["data"], strict=True):
        assert row["data"] == pytest.approx(each["probs"], abs=1e-6)


def test_pooled_vectors(server: RunningServer) -> None:
    """A request without a model and a task goes to the embedding model."""
    found = post(server, "/pooling", input=TEXTS)
    rows = post(server, "/v1/embeddings", input=TEXTS)
    assert found["model"] == rows["model"] == "bert" and found["usage"] == rows["usage"]
    for pooled, row in zip(found["data"], rows["data"], strict=True):
        assert pooled["object"] == "pooling"
        assert pooled["data"] == pytest.approx(row["embedding"], abs=1e-6)
    packed = post(server, "/pooling", input=TEXTS[0], encoding_format="base64", dimensions=4)
    vector = np.frombuffer(base64.b64decode(packed["data"][0]["data"]), "<f4")
    assert vector.shape == (4,) and np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("/rerank", {"query": "a"}, "documents"),
    ("/rerank", {"query": "a", "documents": []}, "no input"),
    ("/rerank", {"query": "a", "documents": [5]}, "documents[0]"),
    ("/rerank", {"query": "a", "documents": [{"title": "b"}]}, "documents[0].text is missing"),
    ("/rerank", {"query": "a", "documents": MANY}, "got 2049 inputs; the limit is 2048"),
    ("/rerank", {**RERANK, "topn": 1}, "unknown field 'topn'"),
    ("/rerank", {"query": "a", "documents": ["a", LONG]}, "documents[1]: "),
    ("/v2/rerank", {"query": "a", "documents": [LONG]}, "documents[0]: "),
    ("/score", {"text_1": "a", "text_2": ["a", LONG]}, "text_2[1]: "),
    ("/score", {"queries": "a", "documents": LONG}, "documents[0]: "),
    ("/v1/rerank", {**RERANK, "top_n": 0}, "top_n=0 is not positive"),
    ("/v1/rerank", {**RERANK, "query": "a\0"}, "U+0000"),
    ("/v1/rerank", {**RERANK, "model": "tiny"}, "tiny supports text, embed, not rerank"),
    ("/v1/rerank", {**RERANK, "model": "judge"}, "judge has 3 labels"),
    ("/v1/rerank", {**RERANK, "adapter": "no", "model": "ranker"}, "no"),
    ("/v2/rerank", {"query": "a", "documents": [{"text": "b"}]}, "documents[0]"),
    ("/v2/rerank", {**RERANK, "max_tokens_per_doc": 0}, "max_tokens_per_doc=0 is not positive"),
    ("/v2/rerank", {**RERANK, "priority": 1}, "priority is not supported"),
    ("/v2/rerank", {**RERANK, "relevant_spans": {}}, "marking relevant spans is not supported"),
    ("/v2/rerank", {"query": "a", "documents": MANY}, "the limit is 2048"),
    ("/score", {"text_1": "a"}, "expected text_2 or documents, got none"),
    ("/score", {**SCORE, "queries": "a"}, "expected text_1 or queries, got both"),
    ("/score", {"text_1": ["a"] * 2, "text_2": TEXTS}, "got 2 queries and 3 documents"),
    ("/score", {"text_1": [], "text_2": "a"}, "no texts to score"),
    ("/score", {"text_1": "a", "text_2": []}, "no texts to score"),
    ("/v1/score", {"text_1": "a", "text_2": MANY}, "the limit is 2048"),
    ("/v1/score", {"text_1": "a", "text_2": [{"content": []}]}, "text_2[0]"),
    ("/classify", {"input": []}, "no input"),
    ("/classify", {"input": MANY}, "the limit is 2048"),
    ("/v1/classify", {"input": [1, 2]}, "input[0]"),
    ("/v1/classify", {"input": "a", "model": "bert"}, "bert supports embed, not classify"),
    ("/pooling", {"input": []}, "no input"),
    ("/pooling", {"input": MANY}, "the limit is 2048"),
    ("/pooling", {"input": ["a", 5]}, "mixes"),
    ("/pooling", {"input": [[1, 99999]]}, "99999"),
    ("/pooling", {"input": "a", "task": "token_embed"}, "the task 'token_embed' is not supported"),
    ("/pooling", {"input": "a", "task": "classify", "dimensions": 2}, "dimensions is not"),
    ("/pooling", {"input": [1], "task": "classify"}, "token ids are not supported"),
    ("/pooling", {"input": "a", "encoding_format": "bytes"}, "encoding_format"),
    ("/pooling", {"messages": []}, "a chat is not supported"),
]


def message_of(path: str, body: Any) -> str:
    """The message of an error, in the form of the family of its route."""
    if path == "/v2/rerank":
        assert body.keys() == {"message"}
        return str(body["message"])
    if path.endswith("rerank"):
        assert body.keys() == {"detail"}
        return str(body["detail"])
    return str(body["error"]["message"])


@pytest.mark.parametrize(("path", "body", "message"), BAD)
def test_bad_then_good(
    server: RunningServer, path: str, body: dict[str, Any], message: str
) -> None:
    response = server.post(path, **body)
    assert response.status_code == (404 if "adapter" in body else 400), response.text
    assert message in message_of(path, response.json())
    post(server, path, **ROUTES[path])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"text_1": "a", "text_2": MANY}, "text_2"),
        ({"queries": "a", "documents": MANY}, "documents"),
        ({"text_1": MANY, "documents": "a"}, "text_1"),
        ({"text_1": "a", "text_2": []}, "text_2"),
        ({"text_1": ["a", "b"], "text_2": TEXTS}, "text_1"),
        ({"text_1": "a", "text_2": LONG}, "text_2"),
    ],
)
def test_errors_of_scores_name_the_field_of_the_request(
    server: RunningServer, body: dict[str, Any], param: str
) -> None:
    response = server.post("/v1/score", **body)
    assert response.status_code == 400 and response.json()["error"]["param"] == param


@pytest.mark.parametrize("path", ROUTES)
def test_errors_before_the_request_is_read(server: RunningServer, path: str) -> None:
    deep: Any = "a"
    for _ in range(100):
        deep = [deep]
    for response, status in (
        (server.post(path, documents=deep), 400),
        (server.post(path, **ROUTES[path], model="nothing"), 404),
        (server.get(path), 405),
    ):
        assert response.status_code == status, response.text
        assert message_of(path, response.json())
    post(server, path, **ROUTES[path])
