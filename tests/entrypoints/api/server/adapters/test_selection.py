"""Adapters over HTTP: how requests select them."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pytest
from starlette.datastructures import FormData, UploadFile
from tiny.adapter_routes import CHAT, COMPLETE, GENERATION, LOAD, last, load, refused

from ostro.core.errors import OstroError, RequestError
from ostro.core.messages.commands import AdapterInfo
from ostro.core.messages.requests import AdapterRef
from ostro.core.messages.target import ModelTarget
from ostro.entrypoints.api.openai.transcriptions import TranscriptionForm
from ostro.entrypoints.http.forms import parse_form
from ostro.entrypoints.operations.models.adapters import adapter_refs


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, []),
        ({"adapters": []}, []),
        ({"adapters": ["sql", "style"]}, [("sql", 1), ("style", 1)]),
        (
            {"adapters": [{"name": "sql", "scale": 0.5}, {"name": "style", "scale": -1}]},
            [("sql", 0.5), ("style", -1)],
        ),
        ({"adapters": ["style", {"name": "sql", "scale": 0}]}, [("style", 1), ("sql", 0)]),
        ({"adapter": "sql"}, [("sql", 1)]),
        ({"adapter": {"name": "sql", "scale": 2}}, [("sql", 2)]),
        ({"model": "sql"}, [("sql", 1)]),
        ({"model": "echo:sql"}, [("sql", 1)]),
        ({"model": "default:sql", "adapters": ["style"]}, [("sql", 1), ("style", 1)]),
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETE])
def test_adapters_are_selected_by_three_fields(
    server: Any, path: str, body: Any, expected: Any
) -> None:
    load(server, "sql"), load(server, "style")
    prompt = {"messages": "hi"} if path == CHAT else {"prompt": "hi"}
    answer = server.post(path, **prompt, **body)
    assert answer.status_code == 200, answer.text
    assert last(server) == expected
    assert answer.json()["model"] == body.get("model", "echo")


def test_a_request_can_select_a_generation(server: Any) -> None:
    generation = load(server, "sql")["generation"]
    answer = server.complete(adapter={"generation": generation}).json()
    assert server.echo.seen[-1].adapters == (AdapterRef(generation=generation),)
    assert answer["adapter_generations"] == [generation]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"adapters": "sql"}, "adapters"),
        ({"adapters": {"sql": 1}}, "adapters"),
        ({"adapters": [7]}, "adapters[0]"),
        ({"adapters": [{"name": "sql", "scale": "much"}]}, "adapters[0].scale"),
        ({"adapters": [{"name": "sql", "weight": 1}]}, "adapters[0].weight"),
        ({"adapters": [{"name": "sql", "scale": 10**400}]}, "adapters[0].scale"),
        ({"adapters": [{"scale": 1}]}, "adapters"),
        ({"adapters": [{"name": "sql", "generation": GENERATION}]}, "adapters"),
        ({"adapters": [{"generation": "abc"}]}, "adapters"),
        ({"adapters": [{"generation": "G" * 64}]}, "adapters"),
        ({"adapters": ["sql", "sql"]}, "adapters"),
        ({"adapter": "sql", "adapters": ["sql"]}, "adapters"),
        ({"model": "sql", "adapter": {"name": "sql", "scale": 0.5}}, "adapters"),
        ({"adapters": [f"a{i}" for i in range(17)]}, "adapters"),
        ({"adapter": ["sql"]}, "adapter"),
        ({"adapter": ""}, "adapter"),
        ({"adapter": "a" * 1_000_000}, "adapter"),
        ({"model": "echo:"}, "model"),
    ],
)
def test_malformed_adapter_fields_are_rejected(server: Any, body: Any, param: str) -> None:
    load(server, "sql")
    answer = server.complete(**body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert server.complete(adapter="sql").status_code == 200


def test_an_infinite_scale(server: Any) -> None:
    """JSON cannot write infinity; a number that is too large is refused."""
    text = '{"prompt": "a", "adapters": [{"name": "sql", "scale": 1e999}]}'
    headers = {"content-type": "application/json"}
    answer = server.http.post(COMPLETE, content=text, headers=headers)
    assert "out of range" in refused(answer, 400, "invalid_request_error")


def test_unknown_names_are_rejected(server: Any) -> None:
    load(server, "style")
    refused(server.complete(adapter="sql"), 404, "adapter_not_found")
    refused(server.complete(model="echo:sql"), 404, "adapter_not_found")
    message = refused(server.complete(model="styl"), 404, "model_not_found", "model")
    assert message.endswith("available: 'echo', 'default', 'style'")
    refused(server.complete(adapter="x", stream=True), 404, "adapter_not_found")
    assert server.complete(model="style").status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": "hi"}),
        (COMPLETE, {"prompt": "hi"}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/embeddings", {"input": "hi"}),
        ("/v1/rerank", {"query": "hi", "documents": ["a"]}),
        ("/v1/score", {"text_1": "hi", "text_2": "a"}),
        ("/tokenize", {"prompt": "hi"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/api/chat", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/api/generate", {"prompt": "hi"}),
        ("/api/embed", {"input": "hi"}),
        ("/api/show", {}),
        ("/v1/images/generations", {"prompt": "hi"}),
        ("/v1/audio/speech", {"input": "hi", "voice": "a"}),
    ],
)
def test_the_error_for_an_unknown_name_lists_all(server: Any, path: str, body: Any) -> None:
    load(server, "french", "sql"), load(server, "style")
    answer = server.post(path, model="gpt-4", **body)
    assert answer.status_code == 404, answer.text
    assert "available: 'echo', 'default', 'french', 'style'" in answer.text
    listed = [card["id"] for card in server.http.get("/v1/models").json()["data"]]
    assert listed == ["echo", "french", "style"]


def test_sixteen_adapters(server: Any) -> None:
    names = [f"a{i}" for i in range(16)]
    for name in names:
        load(server, name, "sql")
    assert server.complete(adapters=names).status_code == 200
    assert [name for name, _ in last(server)] == names


def test_the_longest_model_name_wins(server: Any) -> None:
    service = server.service
    service.names = ("echo", "org/echo", "org/echo:7b")
    try:
        assert service.locate("org/echo:7b") == ("org/echo:7b", None)
        assert service.locate("org/echo:7b:sql") == ("org/echo:7b", "sql")
        assert service.locate("org/echo:sql") == ("org/echo", "sql")
        with pytest.raises(OstroError, match="not found; available: "):
            service.locate("org:sql")
    finally:
        service.names = ("echo",)


def test_an_adapter_cannot_have_a_model_s_name(server: Any) -> None:
    message = refused(server.post(LOAD, lora_name="echo", lora_path="sql"), 409, "adapter_conflict")
    assert "name of a model" in message


def test_the_engine_resolves_unknown_names(server: Any) -> None:
    server.service.resolves = True
    try:
        refused(server.complete(model="sql"), 404, "adapter_not_found")
        assert server.http.get("/v1/models/sql").status_code == 404
        server.echo.adapters["sql"] = AdapterInfo(name="sql", reference="sql")
        assert server.complete(model="sql").status_code == 200 and last(server) == [("sql", 1)]
        cards = server.http.get("/v1/models").json()["data"]
        assert [card["id"] for card in cards] == ["echo", "sql"]
    finally:
        server.service.resolves = False


def test_forms_name_adapters() -> None:
    file = UploadFile(BytesIO(b""))

    def wanted(**fields: str) -> list[tuple[str, float]]:
        request = parse_form(FormData({**fields, "file": file}), TranscriptionForm)
        return [(ref.name, ref.scale) for ref in adapter_refs(request)]

    assert wanted() == []
    assert wanted(adapter="sql") == wanted(adapters="sql") == [("sql", 1)]
    assert wanted(adapter='{"name": "sql", "scale": 2}') == [("sql", 2)]
    given = '["sql", {"name": "style", "scale": 0.5}]'
    assert wanted(adapters=given) == [("sql", 1), ("style", 0.5)]
    for bad in ("[", "[1]", '["\\ud800"]', '[{"name": "a", "scale": NaN}]', "[" * 5000):
        with pytest.raises(RequestError):
            wanted(adapters=bad)


def test_duplicate_adapters_are_rejected() -> None:
    assert adapter_refs(ModelTarget(adapters=["a"]), "b") == (
        AdapterRef(name="b"),
        AdapterRef(name="a"),
    )
    with pytest.raises(RequestError, match="duplicate"):
        adapter_refs(ModelTarget(adapters=["a"]), "a")
