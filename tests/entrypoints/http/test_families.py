"""API families of plugins: errors have their form, whichever part of the server raises them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import Any

import msgspec
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.testclient import TestClient

from ostro.core.errors import Overloaded
from ostro.core.hooks import hookimpl
from ostro.core.plugins.manager import PluginManager
from ostro.core.routes import Route
from ostro.entrypoints.http.app import make_app
from ostro.entrypoints.http.context import caller_of, operations_of
from ostro.entrypoints.http.options import Options
from ostro.entrypoints.http.stream import EventStream
from ostro.entrypoints.operations.access.keys import KeyRing
from ostro.entrypoints.operations.requests.request_context import request_id


class Failure(msgspec.Struct):
    """An error of the family."""

    kind: str
    status: int
    text: str
    code: str | None
    id: str


def form(status: int, message: str, code: str | None, param: str | None) -> Failure:
    return Failure("error", status, message, code, request_id())


class Family:
    """A family with one route that generates text and one that fails in a stream."""

    @hookimpl
    def ostro_routes(self) -> Iterator[Route]:
        async def say(request: Request) -> Response:
            server = operations_of(request)
            body = server.completion_request(**await request.json())
            done = await (await server.complete(body, caller_of(request))).collect()
            return JSONResponse({"said": done.choices[0].text, "model": done.model})

        async def stream(request: Request) -> Response:
            async def events() -> AsyncGenerator[bytes, None]:
                raise operations_of(request).service.unknown("nothing")
                yield b""

            return EventStream(events())

        async def bug(request: Request) -> Response:
            raise KeyError("secret")

        async def busy(request: Request) -> Response:
            raise Overloaded("later")

        async def models(request: Request) -> Response:
            return JSONResponse({"family": "models"})

        for name, endpoint in (("say", say), ("stream", stream), ("bug", bug), ("busy", busy)):
            yield Route(
                name=f"POST /family/{name}", endpoint=endpoint, errors=form, statuses={503: 529}
            )
        yield Route(
            name="GET /v1/models",
            replaces=True,  # that of Anthropic's API
            endpoint=models,
            response=dict[str, str],
            errors=form,
            header="x-family",
        )


@pytest.fixture
def client(server: Any) -> Iterator[TestClient]:
    plugins = PluginManager()
    plugins.load()
    plugins.register(Family(), "family")
    ring = KeyRing.of(["secret"], None)
    with TestClient(
        make_app(server.service, plugins, Options(), ring=ring), raise_server_exceptions=False
    ) as it:
        yield it


def test_errors_have_the_form_of_the_family(client: TestClient) -> None:
    key = {"x-api-key": "secret"}
    for path, headers, status, code in (
        ("/family/say", {}, 401, "invalid_api_key"),
        ("/family/stream", key, 404, "model_not_found"),
        ("/family/bug", key, 500, "internal"),
        ("/family/busy", key, 529, "overloaded"),
    ):
        response = client.post(path, headers=headers, json={"prompt": "hi"})
        assert response.status_code == status, response.text
        body = response.json()
        assert body["kind"] == "error" and body["status"] == status and body["code"] == code
        assert body["id"] and response.headers.get("request-id", body["id"]) == body["id"]
        assert ("retry-after" in response.headers) is (status == 529)
    wrong = client.get("/family/say", headers=key)
    assert wrong.status_code == 405 and wrong.json()["kind"] == "error"
    other = client.post("/v1/completions", json={"prompt": "hi"})
    assert other.status_code == 401 and other.json()["error"]["code"] == "invalid_api_key"


def test_a_route_with_a_header_precedes_the_built_in_route(client: TestClient) -> None:
    key = {"x-api-key": "secret"}
    assert client.get("/v1/models", headers=key).json()["object"] == "list"
    assert client.get("/v1/models", headers={**key, "X-Family": "1"}).json() == {"family": "models"}
    refused = client.get("/v1/models", headers={"X-Family": "1"})
    assert refused.status_code == 401 and refused.json()["kind"] == "error"
    refused = client.get("/v1/models")
    assert refused.status_code == 401 and refused.json()["error"]["code"] == "invalid_api_key"


def test_the_document_describes_the_errors_of_a_family(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    responses = document["paths"]["/family/busy"]["post"]["responses"]
    assert "503" not in responses and responses["529"]["content"]["application/json"] == {
        "schema": {"$ref": "#/components/schemas/Failure"}
    }
    models = document["paths"]["/v1/models"]["get"]
    assert [each["name"] for each in models["parameters"]] == ["x-family"]
    [schema] = [each["schema"] for each in models["responses"]["200"]["content"].values()]
    assert {"$ref": "#/components/schemas/ModelList"} in schema["anyOf"]
    assert len(schema["anyOf"]) == 2
    [schema] = [each["schema"] for each in models["responses"]["401"]["content"].values()]
    names = [each["$ref"].rpartition("/")[2] for each in schema["anyOf"]]
    assert names == ["ErrorBody", "Failure"]
