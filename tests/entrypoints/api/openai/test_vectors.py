"""Embeddings, rankings and labels over HTTP, from the real engine in a process of its own.

`tests/plugins/apis/ranking` has the other forms of rankings, scores and labels.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from tiny.bert import make_bert
from tiny.model import make_model
from tiny.server import RunningServer, serving
from tiny.trained import train

import ostro
from ostro.core.settings import Settings

pytestmark = pytest.mark.process

TEXTS = ["hello world", "a", "hello hello hello world"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    make_model(root / "tiny")
    make_bert(root / "bert")
    make_bert(root / "ranker", "BertForSequenceClassification", num_labels=1)
    make_bert(root / "judge", "BertForSequenceClassification", num_labels=3)
    return {name: root / name for name in ("tiny", "bert", "ranker", "judge")}


@pytest.fixture(scope="module")
def server(folders: dict[str, Path]) -> Iterator[RunningServer]:
    """One server of four models."""
    first, *also = folders.values()
    asked = Settings(reference=str(first), dtype="float32")
    with serving(asked, also=[str(path) for path in also]) as running:
        yield running


def test_models_are_listed(server: RunningServer, folders: dict[str, Path]) -> None:
    listed = server.get("/v1/models").json()["data"]
    assert [card["id"] for card in listed] == list(folders)
    assert listed[1]["max_model_len"] == 64


def test_inputs_are_truncated_on_request(server: RunningServer) -> None:
    body = {"input": "hello " * 70, "model": "bert"}
    assert server.post("/v1/embeddings", **body).status_code == 400
    for tokens, used in ((5, 5), (-1, 64)):
        answer = server.post("/v1/embeddings", **body, truncate_prompt_tokens=tokens)
        assert answer.json()["usage"]["prompt_tokens"] == used


def test_embeddings_equal_those_of_python(server: RunningServer, folders: dict[str, Path]) -> None:
    with ostro.load(folders["bert"], dtype="float32") as model:
        expected = model.embed(TEXTS)
    answer = server.post("/v1/embeddings", input=TEXTS, model="bert")
    assert answer.status_code == 200, answer.text
    body = answer.json()
    got = torch.tensor([entry["embedding"] for entry in body["data"]])
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)
    assert body["usage"]["prompt_tokens"] == sum(len(model.tokenizer.encode(t)) for t in TEXTS)
    packed = server.post(
        "/v1/embeddings", input=TEXTS[0], model="bert", encoding_format="base64"
    ).json()["data"][0]["embedding"]
    floats = struct.unpack("<32f", base64.b64decode(packed))
    torch.testing.assert_close(torch.tensor(floats), expected[0], atol=1e-5, rtol=0)
    ids = model.tokenizer.encode(TEXTS[0])
    response = server.post("/v1/embeddings", input=ids, model="bert", dimensions=4).json()
    cut = expected[0, :4] / expected[0, :4].norm()
    torch.testing.assert_close(
        torch.tensor(response["data"][0]["embedding"]), cut, atol=1e-5, rtol=0
    )
    nulls = {"encoding_format": None, "dimensions": None, "prompt": None, "user": None}
    response = server.post("/v1/embeddings", input=TEXTS[0], model="bert", **nulls).json()
    assert response["data"] == body["data"][:1]


def test_a_model_is_found_by_its_task(server: RunningServer, folders: dict[str, Path]) -> None:
    ranked = server.post("/v1/rerank", query="hello", documents=TEXTS, top_n=2).json()
    with ostro.load(folders["ranker"], dtype="float32", task="rerank") as model:
        expected = model.rerank("hello", TEXTS)
    assert ranked["model"] == "ranker" and len(ranked["results"]) == 2
    parts = [{"text": text, "title": None} for text in TEXTS]
    nulls = {"top_n": None, "return_documents": None}
    assert (
        server.post("/v1/rerank", query="hello", documents=parts, **nulls).json()["results"][:2]
        == ranked["results"]
    )
    for got, want in zip(ranked["results"], expected, strict=False):
        assert got["index"] == want.index
        assert got["relevance_score"] == pytest.approx(want.score, abs=1e-5)
    judged = server.post("/v1/classify", input=TEXTS, model="judge").json()["data"]
    with ostro.load(folders["judge"], dtype="float32") as model:
        for got, want in zip(judged, model.classify(TEXTS), strict=True):
            assert got["probs"] == pytest.approx(list(want.values()), abs=1e-5)
            assert got["label"] == max(want, key=lambda label: want[label])


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("embeddings", {"input": []}, 400, "no input"),
        ("embeddings", {"input": ["a", ""]}, 400, "input[1] is empty"),
        ("embeddings", {"input": ["a", 5]}, 400, "mixes"),
        ("embeddings", {"input": "hello world " * 200}, 400, "context length is 64"),
        ("embeddings", {"input": "a", "dimensions": 33}, 400, "1..32"),
        ("embeddings", {"input": "a", "prompt": "query"}, 400, "no prompt"),
        ("embeddings", {"input": [[1, 99999]]}, 400, "99999"),
        ("chat/completions", {"messages": "a"}, 400, "supports embed"),
    ],
)
def test_a_rejected_request_leaves_the_next_working(
    server: RunningServer, path: str, body: dict[str, Any], status: int, message: str
) -> None:
    answer: httpx.Response = server.post(f"/v1/{path}", **body, model="bert")
    assert answer.status_code == status, answer.text
    assert message in answer.json()["error"]["message"]
    assert server.post("/v1/embeddings", input="a", model="bert").status_code == 200


PAIRS = {"text_1": "hello", "text_2": TEXTS}
ROUTES: dict[str, list[tuple[str, dict[str, Any], str]]] = {
    "bert": [
        ("/v1/embeddings", {"input": "hello world"}, "data"),
        ("/pooling", {"input": "hello world"}, "data"),
        ("/score", PAIRS, "data"),
    ],
    "ranker": [
        ("/v1/rerank", {"query": "hello", "documents": TEXTS}, "results"),
        ("/v2/rerank", {"query": "hello", "documents": TEXTS}, "results"),
        ("/v1/score", PAIRS, "data"),
    ],
    "judge": [
        ("/v1/classify", {"input": TEXTS}, "data"),
        ("/pooling", {"input": TEXTS, "task": "classify"}, "data"),
    ],
}
KINDS = {
    "bert": ("BertModel", {}),
    "ranker": ("BertForSequenceClassification", {"num_labels": 1}),
    "judge": ("BertForSequenceClassification", {"num_labels": 3}),
}


@pytest.mark.parametrize("name", ROUTES)
def test_responses_list_adapters(name: str, tmp_path: Path) -> None:
    kind, more = KINDS[name]
    reference = make_bert(tmp_path / name, kind, **more)
    train(reference, tmp_path / "it", r=4, target_modules=["query", "value", "dense"])
    settings = Settings(
        reference=str(tmp_path / name),
        dtype="float32",
        adapters=(f"it={tmp_path / 'it'}",),
        adapter_root=str(tmp_path),
    )
    with serving(settings) as server:
        for path, asked, where in ROUTES[name]:
            plain, adapted = server.post(path, **asked), server.post(path, **asked, adapter="it")
            assert adapted.status_code == 200, adapted.text
            [known] = server.get("/v1/lora_adapters").json()["data"]
            before, after = plain.json(), adapted.json()
            assert "adapter_generations" not in before
            assert after["adapter_generations"] == [known["generation"]]
            assert after[where] != before[where]
            assert after.get("usage") == before.get("usage")
            mute = server.post(path, **asked, adapter={"name": "it", "scale": 0}).json()
            assert mute["adapter_generations"] == [] and mute[where] == before[where]
