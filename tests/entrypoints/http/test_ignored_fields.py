"""Unknown fields of requests are ignored: the response names them, and the log once each."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any, ClassVar

import httpx
import msgspec
import pytest
from echo.server import Running, Start, make_state, wait_until

from ostro import Route, hookimpl
from ostro.entrypoints.operations.requests import ignored
from ostro.http import FORM, UploadedFile, read_request, respond

HEADER = "x-ostro-ignored"
MESSAGE = {"role": "user", "content": "hi"}


class Query(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The query of the tested route."""

    limit: int = 20


class Form(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The form of the tested route."""

    media_type: ClassVar[str] = FORM
    unsupported: ClassVar[Mapping[str, str]] = {"mask": "masks"}

    file: UploadedFile
    count: int = 0


async def same(operations: Any, caller: Any, request: Any) -> Any:
    """Return the numbers of the request."""
    return {"number": getattr(request, "limit", None) or getattr(request, "count", 0)}


async def endpoint(request: Any) -> Any:
    """Read a request in a route of Starlette."""
    return respond(200, await read_request(request, Query))


class Plugin:
    @hookimpl
    def ostro_routes(self) -> list[Route]:
        return [
            Route(name="GET /numbers", handler=same, request=Query),
            Route(name="POST /forms", handler=same, request=Form),
            Route(name="POST /own", endpoint=endpoint),
        ]


@pytest.fixture(scope="module")
def server(start: Start) -> Running:
    """A server as `ostro serve` starts it."""
    return start(plugin=Plugin(), strict_fields=False, state=make_state("memory"))


@pytest.fixture(scope="module")
def strict(start: Start) -> Running:
    return start(plugin=Plugin(), strict_fields=True)


@pytest.fixture(autouse=True)
def fresh_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """No name has been logged before a test."""
    monkeypatch.setattr(ignored, "LOGGED", set())


def names(answer: httpx.Response) -> list[str]:
    """What a successful response names as ignored."""
    assert answer.status_code == 200, answer.text
    return answer.headers.get(HEADER, "").split(", ")


NESTED: list[tuple[dict[str, Any], list[str]]] = [
    ({"new": 1}, ["new"]),
    ({"new": {"a": [1]}, "newer": None}, ["new"]),
    ({"messages": [{**MESSAGE, "id": "m"}, {**MESSAGE, "id": "n"}]}, ["messages[].id"]),
    (
        {"messages": [{**MESSAGE, "reasoning_details": [], "content": "a"}], "stop": None, "x": 1},
        ["x", "messages[].reasoning_details"],
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "index": 0}]}]},
        ["messages[].content[].index"],
    ),
    ({"stream_options": {"include_usage": True, "new": 1}, "stream": True}, ["stream_options.new"]),
]


@pytest.mark.parametrize(("fields", "expected"), NESTED, ids=[str(i) for i in range(len(NESTED))])
def test_a_response_names_what_was_ignored(
    server: Running, strict: Running, fields: dict[str, Any], expected: list[str]
) -> None:
    assert names(server.chat(**fields)) == expected
    refused = strict.chat(**fields)
    assert refused.status_code == 400 and HEADER not in refused.headers
    assert refused.json()["error"]["message"].startswith("unknown field")


def test_ignored_fields_change_nothing(server: Running) -> None:
    plain = server.chat("hello", seed=1)
    assert HEADER not in plain.headers
    known = server.echo.seen[-1]
    more = server.chat("hello", seed=1, new=[1], temprature=0.1)
    assert names(more) == ["new", "temprature"]
    seen = server.echo.seen[-1]
    assert (seen.tokens, seen.sampling) == (known.tokens, known.sampling)
    assert more.json()["choices"] == plain.json()["choices"]


def test_wrong_values_of_known_fields_are_errors_beside_unknown_ones(server: Running) -> None:
    for fields, param in (
        ({"temperature": "hot"}, "temperature"),
        ({"messages": [{"role": "user", "content": 1, "id": "a"}]}, "messages[0].content"),
        ({"messages": None}, "messages"),
        ({"functions": []}, "functions"),
        ({"bad_words": ["a"]}, "bad_words"),
    ):
        refused = server.chat(new=1, **fields)
        assert refused.status_code == 400 and refused.json()["error"]["param"] == param


def test_a_large_body_is_read_in_a_thread(server: Running) -> None:
    messages = [{**MESSAGE, "content": "a" * 10, "id": str(i)} for i in range(2000)]
    assert len(json.dumps(messages)) > 64 << 10
    answer = server.post("/tokenize", content="a", messages=None, new=messages)
    assert names(answer) == ["new"]


def test_the_log_has_each_name_once(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, ignored.__name__):
        for _ in range(3):
            server.chat(new=1, messages=[{**MESSAGE, "id": "a"}])
    lines = [record.message for record in caplog.records if record.name == ignored.__name__]
    assert lines == [
        "requests contain new, which the server ignores",
        "requests contain messages[].id, which the server ignores",
    ]


def test_names_of_clients_are_bounded_and_harmless(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, ignored.__name__):
        answer = server.chat(**{"a\r\nset-cookie: b": 1, "c, d": 1, "é": 1, "x" * 5000: 1})
        assert names(answer) == ["a??set-cookie: b", "c? d", "?", "x" * 80]
        for start in range(0, 2000, 500):
            answer = server.chat(**{f"name{start + i}": 1 for i in range(500)})
            assert len(names(answer)) == ignored.MAX_NAMES
    assert len(caplog.records) == ignored.MAX_LOGGED
    assert not any("\n" in record.message for record in caplog.records)


def test_queries_forms_and_endpoints(server: Running, strict: Running) -> None:
    for place, ok in ((server, True), (strict, False)):
        file = {"file": ("a", b"x")}
        answers = [
            place.http.get("/numbers", params={"limit": "3", "client_version": "1"}),
            place.http.post("/forms", files=file, data={"count": "3", "new": "a"}),
            place.http.post("/forms", files={**file, "other": ("b", b"y")}, data={"count": "3"}),
            place.post("/own", limit=3, new=1),
            place.http.get("/v1/models", params={"limit": "3"}),
        ]
        expected = ["client_version", "new", "other", "new", "limit"]
        for answer, name in zip(answers, expected, strict=True):
            if ok:
                assert names(answer) == [name]
            else:
                assert answer.status_code == 400 and name in answer.json()["error"]["message"]
    refused = server.http.post("/forms", files={"file": ("a", b"x"), "mask": ("b", b"y")})
    assert refused.status_code == 400 and "masks" in refused.text
    text = server.http.post("/forms", files={"file": ("a", b"x"), "count": ("b", b"y")})
    assert text.status_code == 400 and "expected text, got a file" in text.text


def test_messages_of_text_tools(server: Running, strict: Running) -> None:
    for path in ("/tokenize", "/apply-template"):
        body = {"messages": [{**MESSAGE, "id": "a"}], "new": 1}
        assert names(server.post(path, **body)) == ["new", "messages[].id"]
        del body["new"]
        refused = strict.post(path, **body)
        assert refused.status_code == 400 and "messages[0].id" in refused.text


def test_pages_of_other_origins_may_read_the_names(start: Start) -> None:
    server = start(strict_fields=False, cors_origins=["https://app.example"])
    body = {"messages": [MESSAGE], "new": 1}
    origin = {"origin": "https://app.example"}
    answer = server.http.post("/v1/chat/completions", json=body, headers=origin)
    assert names(answer) == ["new"]
    assert HEADER in answer.headers["access-control-expose-headers"].split(", ")


def test_numbers_beside_unknown_fields_are_read(server: Running) -> None:
    assert server.http.get("/numbers", params={"limit": "3", "new": "1"}).json() == {"number": 3}
    answer = server.http.post("/forms", files={"file": ("a", b"x")}, data={"count": "4", "b": "c"})
    assert answer.json() == {"number": 4}


def test_a_batch_ignores_the_same_fields(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    params = {"model": "echo", "max_tokens": 9, "messages": [{**MESSAGE, "id": "a"}], "new": 1}
    made = server.post("/v1/messages/batches", requests=[{"custom_id": "a", "params": params}])
    assert made.status_code == 200, made.text
    url = f"/v1/messages/batches/{made.json()['id']}"

    def ended() -> bool:
        return server.http.get(url).json()["processing_status"] == "ended"

    with caplog.at_level(logging.WARNING, ignored.__name__):
        wait_until(ended)
    result = server.http.get(f"{url}/results").json()["result"]
    assert result["type"] == "succeeded", result
    text = " ".join(record.message for record in caplog.records)
    assert "requests contain new," in text and "requests contain messages[].id," in text
