"""Which requests a worker forwards to the server, and how they are answered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from ostro.core.records import Route
from ostro.entrypoints.http.workers import forwarding
from ostro.entrypoints.http.workers.forwarding import Forwarding, handle
from ostro.entrypoints.http.workers.messages import Forward, Forwarded


async def endpoint(request: Any) -> Any:
    raise AssertionError("the routes are only matched")


ROUTES = [
    Route(name="GET /metrics", endpoint=endpoint, scope="metrics"),
    Route(name="POST /v1/models/{id:path}/requantize", endpoint=endpoint, scope="admin"),
    Route(name="GET /ready", endpoint=endpoint, scope="open"),
    Route(name="GET /docs", endpoint=endpoint, scope="open"),
    Route(name="POST /v1/completions", endpoint=endpoint),
]


async def answer(
    method: str, path: str, *parts: bytes, leaves: bool = False
) -> tuple[Forward | None, list[Message]]:
    """What the server gets, and what the client gets, of a request in parts."""
    forwarded: list[Forward] = []
    sent: list[Message] = []
    messages = [
        {"type": "http.request", "body": part, "more_body": i < len(parts) - 1 or leaves}
        for i, part in enumerate(parts or (b"",))
    ]

    async def exchange(forward: Forward) -> Forwarded:
        forwarded.append(forward)
        headers = [(b"x-request-id", b"1")]
        return Forwarded(number=forward.number, status=202, headers=headers, body=b"server")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> Message:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "query_string": b"a=b"}
    scope |= {"headers": [(b"x-api-key", b"k")], "client": ("192.0.2.1", 5)}
    await Forwarding(app, ROUTES, exchange)(scope, receive, send)
    return (forwarded[0] if forwarded else None), sent


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/metrics"), ("GET", "/ready"), ("POST", "/v1/models/a/b/requantize")],
)
def test_requests_about_the_server_are_forwarded(method: str, path: str) -> None:
    forward, sent = asyncio.run(answer(method, path, b"ab", b"c"))
    assert forward is not None and (forward.method, forward.path) == (method, path)
    assert forward.query_string == b"a=b" and forward.headers == [(b"x-api-key", b"k")]
    assert forward.client == ("192.0.2.1", 5) and forward.body == b"abc"
    start, body = sent
    assert start["status"] == 202 and start["headers"] == [(b"x-request-id", b"1")]
    assert body["body"] == b"server"


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/completions"), ("GET", "/docs"), ("POST", "/metrics"), ("GET", "/none")],
)
def test_other_requests_are_not(method: str, path: str) -> None:
    forward, sent = asyncio.run(answer(method, path))
    assert forward is None and sent[0]["status"] == 200


def test_long_and_incomplete_bodies_are_not_forwarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "MAX_BYTES", 5)
    forward, sent = asyncio.run(answer("GET", "/metrics", b"123", b"456"))
    assert forward is None and sent[0]["status"] == 413
    forward, _ = asyncio.run(answer("GET", "/metrics", b"123", leaves=True))
    assert forward is None


def test_the_server_answers_with_its_application() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        assert scope["method"] == "PUT" and scope["client"] == ("192.0.2.1", 5)
        with pytest.raises(TimeoutError):  # the client does not disconnect
            await asyncio.wait_for(receive(), 0.01)
        await send({"type": "http.response.start", "status": 201, "headers": [(b"a", b"b")]})
        for more in (True, False):
            await send({"type": "http.response.body", "body": message["body"], "more_body": more})

    forward = Forward(
        number=3,
        method="PUT",
        path="/p",
        query_string=b"",
        headers=[],
        client=("192.0.2.1", 5),
        body=b"x",
    )
    found = asyncio.run(handle(app, forward))
    assert found == Forwarded(number=3, status=201, headers=[(b"a", b"b")], body=b"xx")
