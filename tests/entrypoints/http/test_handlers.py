"""How HTTP calls handlers: what they get, when they are cancelled, and how results are written."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ostro.core.errors import PluginError, Unsupported
from ostro.core.plugins.manager import PluginManager
from ostro.core.routes import Content, RequestBody, Route
from ostro.entrypoints.http.app import routes_of
from ostro.entrypoints.http.handlers import endpoint_of

OPERATIONS = SimpleNamespace(strict_fields=True)


class Options(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The query string of the tested routes."""

    limit: int = 1


async def answer(route: Route, *messages: dict[str, Any], query: bytes = b"") -> Response:
    """The response to a request with the id "a" in its path, whose client sends messages."""
    queue = list(messages)

    async def receive() -> dict[str, Any]:
        if not queue:
            await asyncio.Event().wait()
        return queue.pop(0)

    scope: dict[str, Any] = {
        "type": "http",
        "app": SimpleNamespace(state=SimpleNamespace(operations=OPERATIONS)),
        "method": route.name.partition(" ")[0],
        "path": "/x",
        "path_params": {"id": "a"},
        "query_string": query,
        "headers": [],
    }
    return await endpoint_of(route)(Request(scope, receive))


def test_a_handler_gets_the_request_the_query_and_the_path() -> None:
    async def handler(operations: Any, caller: Any, request: Any, **parameters: Any) -> Any:
        assert operations is OPERATIONS
        return {"request": request, **parameters}

    get = Route(name="GET /x/{id}", handler=handler, request=Options)
    response = asyncio.run(answer(get, query=b"limit=3"))
    assert msgspec.json.decode(response.body) == {"request": {"limit": 3}, "id": "a"}
    post = Route(name="POST /x/{id}", handler=handler, query=Options)
    response = asyncio.run(answer(post, query=b"limit=4"))
    assert msgspec.json.decode(response.body) == {
        "request": None,
        "query": {"limit": 4},
        "id": "a",
    }


def test_what_a_route_requires_is_checked_before_its_body_is_read() -> None:
    def requires(operations: Any) -> None:
        assert operations is OPERATIONS
        raise Unsupported("no store")

    async def handler(*_: Any, **__: Any) -> Any:
        raise AssertionError("called")

    route = Route(name="POST /x", handler=handler, request=Options, requires=requires)
    with pytest.raises(Unsupported):  # a read would raise for the missing content type
        asyncio.run(answer(route))


@pytest.mark.parametrize("cancels", [True, False])
def test_a_handler_is_cancelled_unless_its_route_says_otherwise(cancels: bool) -> None:
    ended = []

    async def handler(operations: Any, caller: Any, request: Any, *, id: str) -> str:
        for _ in range(100):
            await asyncio.sleep(0)
        ended.append(id)
        return id

    route = Route(name="DELETE /x/{id}", handler=handler, cancel_on_disconnect=cancels)
    work = answer(route, {"type": "http.disconnect"})
    if cancels:
        with pytest.raises(ClientDisconnect):
            asyncio.run(work)
    else:
        assert asyncio.run(work).body == b'"a"'
    assert ended == ([] if cancels else ["a"])


@pytest.mark.parametrize(
    ("method", "scope", "cancels"),
    [
        ("GET", "infer", True),
        ("GET", "admin", True),
        ("POST", "infer", True),
        ("POST", "admin", False),
        ("DELETE", "infer", False),
        ("DELETE", "admin", False),
    ],
)
def test_changes_of_what_is_stored_or_loaded_are_not_cancelled(
    method: str, scope: Any, cancels: bool
) -> None:
    async def handler(*_: Any) -> Any:
        return None

    route = Route(name=f"{method} /x", handler=handler, scope=scope)
    assert route.is_cancelled_on_disconnect is cancels
    for stated in (True, False):
        route = replace(route, cancel_on_disconnect=stated)
        assert route.is_cancelled_on_disconnect is stated


STATES = """
POST /v1/models/load
POST /v1/models/unload
POST /v1/models/reload
POST /v1/models/{id:path}/requantize
POST /re_isq
POST /v1/load_lora_adapter
POST /v1/unload_lora_adapter
POST /v1/chat/completions/{id}
DELETE /v1/chat/completions/{id}
DELETE /v1/responses/{id}
POST /v1/responses/{id}/cancel
POST /v1/conversations
POST /v1/conversations/{id}
DELETE /v1/conversations/{id}
POST /v1/conversations/{id}/items
DELETE /v1/conversations/{id}/items/{item}
DELETE /v1/files/{id}
POST /v1/files
POST /v1/uploads
POST /v1/uploads/{id}/parts
POST /v1/uploads/{id}/complete
POST /v1/uploads/{id}/cancel
POST /v1/batches
POST /v1/batches/{id}/cancel
POST /v1/messages/batches
DELETE /v1/messages/batches/{id}
POST /v1/messages/batches/{id}/cancel
"""
"""The routes whose handlers go on when the client leaves; all others are cancelled."""


def test_which_routes_are_not_cancelled() -> None:
    plugins = PluginManager()
    plugins.load()
    routes = [route for route in routes_of(plugins) if route.handler is not None]
    kept = {route.name for route in routes if not route.is_cancelled_on_disconnect}
    assert kept == set(STATES.strip().splitlines())


def test_content_has_its_status_and_headers() -> None:
    async def handler(*_: Any, **__: Any) -> Content:
        return Content(data=b"x", media_type="text/plain", status=503, headers={"a": "b"})

    response = asyncio.run(answer(Route(name="GET /x", handler=handler)))
    assert (response.status_code, response.body) == (503, b"x")
    assert response.headers["retry-after"] == "1" and response.headers["a"] == "b"


def test_a_route_has_one_of_handler_and_endpoint() -> None:
    async def handler(*_: Any, **__: Any) -> Any:
        return None

    for fields in ({}, {"handler": handler, "endpoint": handler}):
        with pytest.raises(PluginError, match="either a handler or an endpoint"):
            Route(name="GET /x", **fields)  # type: ignore[arg-type]
    ignored: tuple[dict[str, Any], ...] = (
        {"body": RequestBody()},
        {"query": Options},
        {"requires": print},
        {"cancel_on_disconnect": False},
    )
    for fields in ignored:
        with pytest.raises(PluginError, match=next(iter(fields))):
            Route(name="GET /x", endpoint=handler, **fields)
