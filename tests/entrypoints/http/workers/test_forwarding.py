"""Which requests a worker forwards to the server, and what it checks before.

Requests of the routes that are forwarded have the same limits as in a server without workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import ClassVar

import msgspec
import pytest
from echo.server import Running, Start, wait_until
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from ostro import hookimpl
from ostro.core.routes import FORM, Route
from ostro.core.uploaded_file import UploadedFile
from ostro.entrypoints.http import body as bodies
from ostro.entrypoints.http import budget
from ostro.entrypoints.http.budget import COUNT_BYTES, SMALL
from ostro.entrypoints.http.workers import forwarding
from ostro.entrypoints.http.workers.forwarding import ForwardHandler, Forwarding, run
from ostro.entrypoints.http.workers.messages import Forward, Forwarded
from ostro.entrypoints.operations.access.admission import Claim
from ostro.entrypoints.operations.access.caller import Caller
from ostro.entrypoints.operations.requests.request_context import base_url

HEADERS = {"x-api-key": "boss", "content-type": "application/json"}
LOAD, UPLOAD = "POST /v1/load_lora_adapter", "PUT /upload"
BODY = b'{"lora_name": "a", "lora_path": "b"}'
JSON = "Content-Type: application/json"


class Form(msgspec.Struct):
    """A form with a file."""

    media_type: ClassVar[str] = FORM

    file: UploadedFile


class Server:
    """The server of a worker: the requests that it gets."""

    def __init__(self) -> None:
        self.requests, self.error = list[Forward](), ""

    async def handle(self, forward: Forward) -> Forwarded:
        self.requests.append(forward)
        headers = [(b"content-length", b"6"), (b"x-request-id", b"another")]
        return Forwarded(
            number=forward.number, status=202, headers=headers, body=b"server", error=self.error
        )


class Plugin:
    """Routes that read their requests themselves."""

    @hookimpl
    def ostro_routes(self) -> list[Route]:
        async def read(request: Request) -> Response:
            data = await bodies.read_json(request) if request.method == "PUT" else {}
            return PlainTextResponse(f"{len(data)} members")

        async def store(operations: object, caller: object, form: Form) -> list[object]:
            return [form.file.filename, form.file.size, base_url()]

        return [
            Route(name=UPLOAD, endpoint=read, scope="admin"),
            Route(name="GET /upload", endpoint=read, scope="admin"),
            Route(name="POST /mine", endpoint=read),
            Route(name="POST /form", handler=store, request=Form, scope="admin"),
        ]


@pytest.fixture(scope="module")
def main() -> Server:
    return Server()


@pytest.fixture(scope="module")
def worker(start: Start, main: Server) -> Running:
    return start(
        keys=["user"],
        admin_key="boss",
        plugin=Plugin(),
        forwarding=Forwarding(main.handle).endpoint_of,
        request_timeout=1000.0,
    )


@pytest.fixture(scope="module")
def single(start: Start) -> Running:
    """A server without workers."""
    return start(keys=["user"], admin_key="boss", plugin=Plugin())


@pytest.fixture(params=["worker", "single"])
def any_server(request: pytest.FixtureRequest) -> Iterator[Running]:
    yield request.getfixturevalue(request.param)


def head(route: str, *fields: str, key: str = "boss") -> bytes:
    """A head after which the client waits until the server reads the body."""
    own = [f"X-API-Key: {key}"] if key else []
    lines = [f"{route} HTTP/1.1", "Host: localhost", "Expect: 100-continue", *own, *fields]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode()


@pytest.mark.parametrize(
    ("route", "fields", "key", "status"),
    [
        (LOAD, ["Content-Length: 40", JSON], "", 401),
        (LOAD, ["Transfer-Encoding: chunked", JSON], "wrong", 401),
        (LOAD, ["Content-Length: 40", JSON], "user", 403),
        (LOAD, ["Content-Length: 99999999", JSON], "boss", 413),
        (LOAD, ["Content-Length: 40", "Content-Type: text/plain"], "boss", 415),
        (UPLOAD, ["Content-Length: 40", JSON], "", 401),
        (UPLOAD, ["Transfer-Encoding: chunked", JSON], "user", 403),
        (UPLOAD, ["Content-Length: 99999999", JSON], "boss", 413),
        ("POST /health", ["Content-Length: 40"], "", 405),
        ("POST /ready", ["Content-Length: 40"], "boss", 405),
        ("DELETE /v1/lora_adapters", ["Content-Length: 40"], "boss", 405),
        ("OPTIONS /v1/models/load", ["Content-Length: 40"], "boss", 405),
        ("POST /unknown", ["Content-Length: 40"], "boss", 404),
    ],
)
def test_requests_are_refused_before_their_bodies_are_read(
    any_server: Running, main: Server, route: str, fields: list[str], key: str, status: int
) -> None:
    count = len(main.requests)
    with any_server.connect() as client:
        client.sendall(head(route, *fields, key=key))
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 %d" % status)
    assert len(main.requests) == count


@pytest.mark.parametrize(
    "path", ["/health", "/ready", "/load", "/metrics", "/upload", "/v1/lora_adapters"]
)
def test_a_get_does_not_wait_for_its_body(any_server: Running, path: str) -> None:
    for method in ("GET", "HEAD"):
        answer = any_server.talk(head(f"{method} {path}", "Content-Length: 40"))
        assert b"HTTP/1.1 20" in answer, answer


@pytest.mark.parametrize("route", [LOAD, UPLOAD])
def test_long_bodies_without_a_length_are_refused(
    any_server: Running, monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    for module in (forwarding, bodies):
        monkeypatch.setattr(module, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(forwarding, "max_bytes", lambda *_: 1 << 20)
    monkeypatch.setattr(bodies, "max_bytes", lambda *_: 1 << 20)
    monkeypatch.setattr(bodies.read_json, "__defaults__", (1 << 20,))
    part = b"%x\r\n%b\r\n" % (1 << 16, bytes(1 << 16))
    data = head(route, "Transfer-Encoding: chunked", JSON) + part * 17
    answer = any_server.talk(data)
    assert b"HTTP/1.1 413" in answer and b"exceeds 1048576 bytes" in answer


@pytest.mark.parametrize("route", [LOAD, UPLOAD])
def test_bodies_that_do_not_end(any_server: Running, main: Server, route: str) -> None:
    count = len(main.requests)
    with any_server.connect() as client:
        client.sendall(head(route, "Content-Length: 40", JSON))
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 100")
        client.sendall(BODY[:30])
        any_server.loop.advance(bodies.SECONDS)
        assert b"".join(iter(lambda: client.recv(1 << 16), b"")).startswith(b"HTTP/1.1 408")
    assert len(main.requests) == count


@pytest.mark.parametrize("route", [LOAD, UPLOAD])
def test_bodies_count_towards_the_limit_of_all(
    any_server: Running, monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    monkeypatch.setattr(budget, "MAX_HELD", 0)
    data = b'{"a": "' + b"x" * SMALL + b'"}'
    answer = any_server.talk(head(route, f"Content-Length: {len(data)}", JSON) + data)
    assert b"HTTP/1.1 503" in answer and b"the bodies of all requests exceed" in answer


def test_processes_have_one_limit(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MAX_HELD", 4 * SMALL)
    counts = memoryview(bytearray(3 * COUNT_BYTES)).cast("q")
    server = start(body_counts=counts, own_count=1)
    body = {"prompt": "a", "user": "x" * 2 * SMALL}

    def status() -> int:
        return server.http.post("/v1/completions", json=body).status_code

    assert status() == 200
    wait_until(lambda: counts.tolist() == [0, 0, 0])
    counts[2] = 3 * SMALL
    assert status() == 503
    wait_until(lambda: counts.tolist() == [0, 0, 3 * SMALL])
    assert server.complete("a").status_code == 200, "small bodies are always read"


def test_a_request_is_forwarded(worker: Running, main: Server) -> None:
    headers = {**HEADERS, "x-request-id": "mine"}
    response = worker.http.post("/v1/load_lora_adapter?a=b", content=BODY, headers=headers)
    assert (response.status_code, response.text) == (202, "server")
    assert response.headers["x-request-id"] == "mine"
    forward = main.requests[-1]
    assert (forward.method, forward.path) == ("POST", "/v1/load_lora_adapter")
    assert (forward.query_string, forward.body, forward.id) == (b"a=b", BODY, "mine")
    assert (b"x-request-id", b"mine") in forward.headers
    assert forward.client is not None and forward.client[0] == "127.0.0.1"
    assert forward.seconds is not None and 0 < forward.seconds <= 1000
    data = b'{"a": 1}'
    answer = worker.http.put("/upload", content=data, headers=headers)
    assert answer.status_code == 202 and main.requests[-1].body == data
    for route in ("GET /metrics", "GET /ready", "HEAD /load", "GET /v1/models/a/b/status"):
        method, path = route.split()
        assert worker.http.request(method, path, headers=headers).status_code == 202
        assert (main.requests[-1].method, main.requests[-1].path) == (method, path)


def test_other_requests_are_not_forwarded(worker: Running, main: Server) -> None:
    count, headers = len(main.requests), {"x-api-key": "boss"}
    for route in ("GET /version", "GET /v1/models", "GET /docs", "POST /mine"):
        method, path = route.split()
        answer = worker.http.request(method, path, headers=headers)
        assert answer.status_code == 200, (route, answer.text)
    assert len(main.requests) == count


def test_a_forwarded_request_counts_once(worker: Running) -> None:
    responses = worker.app.state.metrics.requests.http.responses
    labels = ("POST", "/v1/load_lora_adapter", "202")
    before = responses.get(labels, 0)
    assert worker.http.post("/v1/load_lora_adapter", content=BODY, headers=HEADERS).text == "server"
    wait_until(lambda: responses.get(labels) == before + 1)


def test_the_codes_of_errors_are_recorded(worker: Running, main: Server) -> None:
    errors = worker.app.state.metrics.requests.http.errors
    main.error = "a_code"
    worker.http.get("/v1/lora_adapters", headers=HEADERS)
    main.error = ""
    wait_until(lambda: errors.get(("/v1/lora_adapters", "a_code")) == 1)


def test_a_response_in_parts_is_joined() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        await send({"type": "http.response.start", "status": 201, "headers": [[b"a", b"b"]]})
        for more in (True, False):
            await send({"type": "http.response.body", "body": message["body"], "more_body": more})

    response = asyncio.run(run(app, {"type": "http"}, b"x"))
    assert response == {"status": 201, "headers": [(b"a", b"b")], "body": b"xx"}


def test_a_form_is_forwarded_as_it_is(worker: Running, single: Running, main: Server) -> None:
    headers = {"x-api-key": "boss"}
    form = worker.http.build_request("POST", "/form", files={"file": ("a", bytes(2 << 20))})
    headers |= {"content-type": form.headers["content-type"]}
    response = worker.http.post("/form", content=form.read(), headers=headers)
    assert (response.status_code, response.text) == (202, "server"), response.text
    assert main.requests[-1].body == form.read()
    assert (b"content-type", headers["content-type"].encode()) in main.requests[-1].headers
    handled = single.http.post("/form", content=form.read(), headers=headers)
    assert handled.json() == ["a", 2 << 20, f"{single.url}/"]
    boss = Caller(scopes=frozenset(("admin",)))
    handler = ForwardHandler(single.app, lambda key: Claim(boss))
    forwarded = asyncio.run(handler.handle(main.requests[-1]))
    assert msgspec.json.decode(forwarded.body) == ["a", 2 << 20, f"{worker.url}/"]
