"""Keys, hosts, origins, request ids, health, plugins' routes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from echo.server import PATIENCE, Start, wait_until
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from ostro.core.deprecated import RemovedInOstro1
from ostro.core.errors import UsageError
from ostro.core.hooks import hookimpl
from ostro.core.ipc import client
from ostro.core.ipc.client import AsyncEngine
from ostro.core.plugins.manager import PluginManager
from ostro.core.routes import Route
from ostro.entrypoints.http.app import make_app, routes_of
from ostro.entrypoints.http.context import operations_of
from ostro.entrypoints.http.listener import listen, url_of
from ostro.entrypoints.http.measurement import RequestMetrics
from ostro.entrypoints.http.middleware import AccessMiddleware, RequestMiddleware
from ostro.entrypoints.http.options import Options
from ostro.entrypoints.operations.access.keys import Key, KeyRing, sha256_of
from ostro.entrypoints.operations.access.quotas import Quotas
from ostro.entrypoints.operations.operations import Operations

PATHS = ["/v1/models", "/v1/models/echo", "/nowhere", "/v1/chat/completions", "/v1"]


def make_access(app: Any, *keys: str, hosts: Sequence[str] = ()) -> AccessMiddleware:
    return AccessMiddleware(app, ring=KeyRing.of(keys), quotas=Quotas(), hosts=hosts)


def recorded(app: Any) -> RequestMiddleware:
    return RequestMiddleware(app, RequestMetrics("echo"))


@pytest.fixture(scope="module")
def locked(start: Any) -> Any:
    return start(keys=["secret", "clé"])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "secret"},
        {"authorization": "Basic secret"},
        {"authorization": "Bearer secre"},
        {"authorization": "Bearer secret2"},
        {"authorization": "Bearer"},
        {"authorization": b"Bearer \xff\xfe"},
        {"authorization": "Bearer " + "x" * 20_000},
    ],
)
def test_wrong_keys(locked: Any, path: str, headers: Any) -> None:
    for response in (
        locked.http.get(path, headers=headers),
        locked.http.get(path + "?api_key=secret", headers=headers),
        locked.http.post(path, headers=headers),
    ):
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert "secret" not in response.text


@pytest.mark.parametrize("key", [b"secret", "clé".encode()])
def test_right_keys(locked: Any, key: bytes) -> None:
    headers = {"authorization": b"Bearer " + key}
    assert locked.http.get("/v1/models", headers=headers).status_code == 200
    assert locked.http.get("/nowhere", headers=headers).status_code == 404


@pytest.mark.parametrize("name", ["x-api-key", "api-key", "X-API-Key"])
def test_other_key_headers(locked: Any, name: str) -> None:
    """Anthropic's clients send x-api-key, Azure's api-key."""
    assert locked.http.get("/v1/models", headers={name: "secret"}).status_code == 200
    assert locked.http.get("/v1/models", headers={name: "clé".encode()}).status_code == 200
    for wrong in ("", "secre", "Bearer secret"):
        assert locked.http.get("/v1/models", headers={name: wrong}).status_code == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([("authorization", "Bearer secret"), ("x-api-key", "secret")], 200),
        ([("authorization", "Basic dXNlcg=="), ("x-api-key", "secret")], 200),
        ([("authorization", "Bearer secret"), ("x-api-key", "wrong")], 401),
        ([("authorization", "Bearer wrong"), ("api-key", "secret")], 401),
        ([("x-api-key", "secret"), ("api-key", "wrong")], 401),
        ([("x-api-key", "secret"), ("x-api-key", "wrong")], 401),
        ([("authorization", "Bearer secret"), ("authorization", "Bearer wrong")], 401),
        ([("x-api-key", "secret"), ("api-key", "clé".encode())], 401),
    ],
)
def test_several_keys_in_one_request(locked: Any, headers: Any, status: int) -> None:
    assert locked.http.get("/v1/models", headers=headers).status_code == status


def test_probes_need_no_key(locked: Any) -> None:
    for path in ("/health", "/ready"):
        assert locked.http.get(path).status_code == 200
        assert locked.http.get(path + "/x").status_code == 401
    assert locked.http.get("/metrics").status_code == 401


@pytest.mark.parametrize("extension", [True, False])
@pytest.mark.parametrize(
    ("headers", "reached"),
    [
        ([], False),
        ([(b"host", b"localhost"), (b"x-api-key", b"wrong")], False),
        ([(b"host", b"evil.example"), (b"x-api-key", b"secret")], False),
        ([(b"host", b"localhost"), (b"x-api-key", b"secret")], True),
    ],
)
def test_websockets_need_a_key(headers: Any, reached: bool, extension: bool) -> None:
    sent, calls = list[Any](), list[str]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        calls.append(scope["state"]["request_id"])

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "websocket", "path": "/v1/realtime", "headers": headers}
    if extension:
        scope["extensions"] = {"websocket.http.response": {}}
    middleware = recorded(make_access(app, "secret", hosts=["box.lan"]))
    asyncio.run(middleware(scope, None, send))  # type: ignore[arg-type]
    assert bool(calls) == reached
    if not reached and extension:
        assert sent[0]["type"] == "websocket.http.response.start"
        assert sent[0]["status"] in (401, 403)
        assert b"x-request-id" in dict(sent[0]["headers"])
    elif not reached:
        assert [message["type"] for message in sent] == ["websocket.close"]


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/v1/lora_adapters", "/nowhere"])
@pytest.mark.parametrize("key", ["", "x-api-key: wrong\r\n"])
def test_websockets_over_a_socket_need_a_key(locked: Any, path: str, key: str) -> None:
    """Paths of the scopes infer, metrics and admin, and one without a route."""
    head = (
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{key}Connection: Upgrade, close\r\n"
        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    answer = locked.talk(head.encode())
    assert answer.startswith(b"HTTP/1.1 401 ") and b"invalid_api_key" in answer
    assert b"sec-websocket-accept" not in answer.lower()


def test_the_lifespan_needs_no_key() -> None:
    calls = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        calls.append(scope["type"])

    middleware = recorded(make_access(app, "secret"))
    asyncio.run(middleware({"type": "lifespan"}, None, None))  # type: ignore[arg-type]
    assert calls == ["lifespan"]


def test_hosts(start: Any) -> None:
    server = start(allow_hosts=["box.lan"])
    for host in ("evil.example", "localhost.evil.example", "1.2.3.4.evil.example", "a:b"):
        response = server.http.get("/health", headers={"host": host})
        assert response.status_code == 403 and response.json()["error"]["code"] == "forbidden"
    for host in ("localhost:1", "LOCALHOST", "127.0.0.1:99", "[::1]:5", "[::1]", "BOX.lan:80"):
        assert server.http.get("/health", headers={"host": host}).status_code == 200


def test_no_cross_origin_by_default(server: Any) -> None:
    asked = {"origin": "https://a.example", "access-control-request-method": "POST"}
    response = server.http.options("/v1/chat/completions", headers=asked)
    assert response.status_code == 405
    response = server.http.get("/health", headers={"origin": "https://a.example"})
    assert not any(name.startswith("access-control") for name in response.headers)


def test_allowed_origins(start: Any) -> None:
    server = start(cors_origins=["https://a.example"], keys=["secret"])
    for origin, allowed in (("https://a.example", True), ("https://b.example", False)):
        asked = {"origin": origin, "access-control-request-method": "POST"}
        response = server.http.options("/v1/chat/completions", headers=asked)
        assert (response.headers.get("access-control-allow-origin") == origin) == allowed
        assert "access-control-allow-credentials" not in response.headers
    refused = server.http.get("/v1/models", headers={"origin": "https://a.example"})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://a.example"


def test_request_ids(server: Any) -> None:
    mine = server.http.get("/nowhere", headers={"x-request-id": "trace-1"})
    assert mine.headers["x-request-id"] == "trace-1"
    for bad in ("a b", "x" * 200, "é", "<script>"):
        given = server.http.get("/health", headers={"x-request-id": bad.encode()})
        assert given.headers["x-request-id"] not in ("", bad)
    answer = server.http.post(
        "/v1/completions", json={"prompt": "a"}, headers={"x-request-id": "trace-2"}
    )
    assert answer.json()["id"] == "cmpl-trace-2"


@pytest.mark.parametrize("path", ["/nowhere", "/v1", "/v1/chat/nothing/", "/documents", "/%00"])
def test_unknown_routes(server: Any, path: str) -> None:
    response = server.http.get(path)
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "unknown_url"
    assert server.http.get("/health").status_code == 200


def test_wrong_methods(server: Any) -> None:
    response = server.http.get("/v1/embeddings")
    assert response.status_code == 405 and "error" in response.json()
    assert server.http.post("/health").status_code == 405


def test_while_loading(start: Any) -> None:
    server = start(loading=True)
    assert server.http.get("/health").status_code == 200
    ready = server.http.get("/ready")
    assert ready.status_code == 503 and ready.json()["status"] == "loading"
    response = server.complete("a")
    assert response.status_code == 503 and response.headers["retry-after"]
    assert response.json()["error"]["code"] == "overloaded"


def test_draining(start: Any) -> None:
    server = start()
    assert server.http.get("/ready").status_code == 200
    server.service.engine.draining = True
    assert server.http.get("/ready").json()["status"] == "draining"
    assert server.complete("a").status_code == 503
    assert server.http.get("/health").status_code == 200


def test_engine_bug(start: Any) -> None:
    """An exception in the engine's thread fails what is under way and shows in /health."""
    server = start()
    response = server.complete("a", cache_salt="crash")
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "engine_unavailable"
    assert "bug" not in response.text
    for path in ("/health", "/ready"):
        assert server.http.get(path).status_code == 503
    assert server.complete("a").status_code == 503


def test_a_hung_engine(start: Start) -> None:
    """A step that takes long is no fault until the patience is over."""
    server = start()
    engine = server.service.engine
    with ThreadPoolExecutor(1) as pool:
        with server.paused() as stands:
            answer = pool.submit(server.complete, "abc")
            assert stands.wait(PATIENCE) and server.http.get("/health").status_code == 200
            wait_until(lambda: server.loop.advance(client.HEARTBEAT) or engine.silence)
            assert server.http.get("/health").json() == {"status": "ok"}
            engine.patience = 0.0
            health = server.http.get("/health")
            assert health.status_code == 503 and health.json()["error"]["code"] == "engine_hung"
            assert "not responded for" in health.text and health.headers["retry-after"]
            assert server.http.get("/ready").json()["error"]["code"] == "engine_hung"
            assert server.complete("a").status_code == 503
        assert answer.result().status_code == 200
    wait_until(lambda: not engine.silence)
    engine.patience = client.PATIENCE
    assert server.http.get("/health").status_code == 200
    assert server.complete("ok").json()["choices"][0]["text"] == "ok"


def test_bug_in_a_route(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()
    monkeypatch.setattr(type(server.service), "locate", lambda *_: 1 / 0)
    response = server.http.get("/v1/models/echo")
    assert response.status_code == 500 and response.json()["error"]["type"] == "server_error"
    assert "ZeroDivision" not in response.text and "division" not in response.text


class Hello:
    """A plugin with a route that works and three that must not."""

    @hookimpl
    def ostro_routes(self) -> list[Route]:
        async def hello(request: Any) -> PlainTextResponse:
            return PlainTextResponse(f"ready: {operations_of(request).service.ready}")

        names = ("GET /hello", "GET /health", "GET /v1/models/mine", "nonsense")
        return [Route(name=name, endpoint=hello) for name in names]


class ServerHello:
    """A plugin that still asks for the operations."""

    @hookimpl
    def ostro_routes(self, server: Operations) -> list[Route]:
        async def hello(request: Any) -> PlainTextResponse:
            return PlainTextResponse(f"ready: {server.service.ready}")

        return [Route(name="GET /old", endpoint=hello)]


class EngineHello:
    """A plugin that still asks for the engine."""

    @hookimpl
    def ostro_routes(self, engine: AsyncEngine) -> list[Route]:
        async def hello(request: Any) -> PlainTextResponse:
            return PlainTextResponse(f"ready: {engine.ready}")

        return [Route(name="GET /old", endpoint=hello)]


def test_plugin_routes(server: Any) -> None:
    plugins = PluginManager()
    plugins.load()
    plugins.register(Hello(), "hello")
    app = make_app(server.service, plugins, Options())
    with TestClient(app, base_url="http://localhost") as client:
        assert client.get("/hello").text == "ready: True"
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/v1/models/mine").status_code == 404


class Pages:
    """A plugin with files and routes of several scopes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @hookimpl
    def ostro_routes(self) -> list[Route]:
        async def hello(request: Any) -> PlainTextResponse:
            return PlainTextResponse("hello")

        return [
            Route(name="FILES /pages", endpoint=self.folder, scope="open"),
            Route(name="FILES /inner", endpoint=self.folder, scope="admin"),
            Route(name="GET /open", endpoint=hello, scope="open"),
            Route(name="GET /mine", endpoint=hello),
        ]


def test_scopes_of_routes_and_files(server: Any, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    plugins = PluginManager()
    plugins.load()
    plugins.register(Pages(tmp_path), "pages")
    scopes = {"user": ["infer"], "watch": ["metrics"], "boss": ["admin"]}
    ring = KeyRing(
        [Key(name=n, sha256=sha256_of(n), scopes=frozenset(s)) for n, s in scopes.items()]
    )
    open_paths = ("/pages/a.txt", "/open", "/health")
    needed = {"/inner/a.txt": "boss", "/mine": "user", "/v1/models": "user", "/metrics": "watch"}
    needed["/v1/lora_adapters"] = "boss"
    with TestClient(make_app(server.service, plugins, Options(), ring=ring)) as client:
        for path in open_paths:
            assert client.get(path).status_code == 200, path
        for path in ("/pagesa.txt", "/pages/../mine", "/openly", *needed):
            assert client.get(path).status_code == 401, path
        for path, owner in needed.items():
            if path != "/v1/lora_adapters":  # it needs the engine's event loop
                assert client.get(path, headers={"x-api-key": owner}).status_code == 200, path
            for other in scopes.keys() - {owner}:
                assert client.get(path, headers={"x-api-key": other}).status_code == 403, path


@pytest.mark.parametrize("plugin", [ServerHello(), EngineHello()], ids=["server", "engine"])
def test_arguments_of_routes_are_deprecated(
    server: Any, plugin: object, caplog: pytest.LogCaptureFixture
) -> None:
    plugins = PluginManager()
    plugins.load()
    with pytest.warns(RemovedInOstro1, match=r"write ostro_routes\(\)"):
        plugins.register(plugin, "hello")
    assert "GET /old" not in {route.name for route in routes_of(plugins)}
    assert "plugin hello: only a running server knows its routes" in caplog.text
    app = make_app(server.service, plugins, Options())
    with TestClient(app, base_url="http://localhost") as client:
        assert client.get("/old").text == "ready: True"
        assert "/old" in client.get("/openapi.json").json()["paths"]


def test_outside_needs_a_key() -> None:
    for host in ("0.0.0.0", "::"):
        with pytest.raises(UsageError, match="--api-key"):
            listen(host, 0, False).close()
    listen("0.0.0.0", 0, True).close()
    listen("localhost", 0, False).close()


def test_port_in_use() -> None:
    first = listen("127.0.0.1", 0, False)
    try:
        port = first.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} .* in use.*--port"):
            listen("127.0.0.1", port, False)
        assert url_of(first) == f"http://127.0.0.1:{port}"
    finally:
        first.close()
    with pytest.raises(UsageError, match="unknown address"):
        listen("no.such.host.invalid", 0, False)
    for port in (-1, 65_536, 99_999):
        with pytest.raises(UsageError, match=rf"--port {port}: expected 0\.\.65535"):
            listen("127.0.0.1", port, False)


def test_host_names() -> None:
    access = make_access(None)
    assert (
        access.accepts_host("")
        and access.accepts_host("10.0.0.7:1234")
        and access.accepts_host("[fe80::1]")
    )
    assert not access.accepts_host("localhost@evil.example") and not access.accepts_host(
        "[::1].evil"
    )


def test_connections_are_reused(server: Any) -> None:
    with httpx.Client(base_url=server.url) as client:
        for _ in range(3):
            assert client.get("/health").status_code == 200
