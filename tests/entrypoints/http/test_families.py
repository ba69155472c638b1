"""API families of plugins: errors have their form, whichever part of the server raises them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.testclient import TestClient

from ostro.core.hooks import hookimpl
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Route
from ostro.entrypoints.http.app import make_app
from ostro.entrypoints.http.context import caller_of
from ostro.entrypoints.http.stream import EventStream
from ostro.entrypoints.operations.keys import KeyRing
from ostro.entrypoints.operations.operations import Operations


def form(status: int, message: str, code: str | None, param: str | None) -> dict[str, Any]:
    """Errors of the family."""
    return {"kind": "error", "status": status, "text": message, "code": code, "field": param}


class Family:
    """A family with one route that generates text and one that fails in a stream."""

    @hookimpl
    def ostro_routes(self, server: Operations) -> Iterator[Route]:
        async def say(request: Request) -> Response:
            body = server.completion_request(**await request.json())
            done = await (await server.complete(body, caller_of(request))).collect()
            return JSONResponse({"said": done.choices[0].text, "model": done.model})

        async def stream(request: Request) -> Response:
            async def events() -> AsyncGenerator[bytes, None]:
                raise server.service.unknown("nothing")
                yield b""

            return EventStream(events())

        async def bug(request: Request) -> Response:
            raise KeyError("secret")

        for name, endpoint in (("say", say), ("stream", stream), ("bug", bug)):
            yield Route(name=f"POST /family/{name}", endpoint=endpoint, errors=form)


@pytest.fixture
def client(server: Any) -> Iterator[TestClient]:
    plugins = PluginManager()
    plugins.load()
    plugins.register(Family(), "family")
    ring = KeyRing.of(["secret"], None)
    with TestClient(
        make_app(server.service, plugins, ring=ring), raise_server_exceptions=False
    ) as it:
        yield it


def test_errors_have_the_form_of_the_family(client: TestClient) -> None:
    key = {"x-api-key": "secret"}
    for path, headers, status, code in (
        ("/family/say", {}, 401, "invalid_api_key"),
        ("/family/stream", key, 404, "model_not_found"),
        ("/family/bug", key, 500, "internal"),
    ):
        response = client.post(path, headers=headers, json={"prompt": "hi"})
        assert response.status_code == status, response.text
        body = response.json()
        assert body["kind"] == "error" and body["status"] == status and body["code"] == code
    wrong = client.get("/family/say", headers=key)
    assert wrong.status_code == 405 and wrong.json()["kind"] == "error"
    other = client.post("/v1/completions", json={"prompt": "hi"})
    assert other.status_code == 401 and other.json()["error"]["code"] == "invalid_api_key"
