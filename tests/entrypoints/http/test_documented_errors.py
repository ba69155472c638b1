"""Each error status that the OpenAPI document lists for a route is the answer to some request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest
from echo.server import Running, Start

from ostro.core.errors import AdapterConflict, AdapterError, InsufficientMemory, OstroError
from ostro.core.plugins.manager import PluginManager
from ostro.core.routes import Route
from ostro.entrypoints.http import body, budget
from ostro.entrypoints.http.app import routes_of
from ostro.entrypoints.http.openapi import EXAMPLES, PARAMETER, WITH_QUERY, error_type, openapi
from ostro.entrypoints.operations.access.admin import Admin
from ostro.entrypoints.operations.access.caller import Caller
from ostro.entrypoints.operations.access.keys import KeyRing, sha256_of
from ostro.entrypoints.operations.documents.state import open_state

FORM = "multipart/form-data"
KEYS = {
    "user": "",
    "limited": "requests_per_minute = 1",
    "watcher": 'scopes = ["metrics"]',
    "chief": 'scopes = ["infer", "admin", "metrics"]',
}
"""Keys and their fields; the text of a key is its name."""
UNKNOWN = f"x-{'0' * 32}"
"""An id that no document has."""
FORMS: dict[str, dict[str, Any]] = {
    "/v1/audio": {"files": {"file": ("a.wav", b"RIFF")}},
    "/v1/images/variations": {"files": {"image": ("a.png", b"\x89PNG")}},
    "/v1/images": {"data": {"prompt": "x"}, "files": {"image": ("a.png", b"\x89PNG")}},
    "/v1/files": {"data": {"purpose": "batch"}, "files": {"file": ("a.jsonl", b"{}")}},
    "/v1/uploads": {"files": {"data": ("a", b"x")}},
}
"""Valid forms by the start of their paths, as arguments of httpx."""


@pytest.fixture(scope="module")
def routes(plugins: PluginManager) -> list[Route]:
    """The routes that have errors."""
    found = routes_of(plugins)
    assert {"POST /v1/messages", "POST /api/chat", "POST /rerank"} <= {each.name for each in found}
    hidden = ("WEBSOCKET ", "FILES ")
    return [each for each in found if each.scope != "open" and not each.name.startswith(hidden)]


@dataclass
class Servers:
    """Servers that are in order, without a store, with a damaged one, and still loading."""

    good: Running
    stateless: Running
    damaged: Running
    loading: Running


@pytest.fixture(scope="module")
def servers(start: Start, plugins: PluginManager, tmp_path_factory: Any) -> Servers:
    folder: Path = tmp_path_factory.mktemp("errors")
    file = folder / "keys.toml"
    file.touch(mode=0o600)
    file.write_text(
        "\n".join(
            f'[[keys]]\nname = "{name}"\nsha256 = "{sha256_of(name)}"\n{fields}'
            for name, fields in KEYS.items()
        )
    )
    broken = folder / "state"
    broken.mkdir(mode=0o700)
    (broken / "state.db").write_bytes(b"not a database" * 1000)
    adapters = folder / "adapters"
    adapters.mkdir()
    return Servers(
        start(
            ring=KeyRing(file=file),
            state=open_state("memory", None, plugins),
            adapter_root=adapters,
        ),
        start(),
        start(state=open_state(str(broken), None, plugins)),
        start(loading=True),
    )


@dataclass(frozen=True)
class Target:
    """A route under test."""

    route: Route

    @property
    def method(self) -> str:
        return self.route.name.partition(" ")[0]

    @property
    def path(self) -> str:
        return PARAMETER.sub(UNKNOWN, self.route.name.partition(" ")[2])

    @property
    def has_body(self) -> bool:
        return self.route.request is not None and not self.route.name.startswith(WITH_QUERY)

    @property
    def is_form(self) -> bool:
        return getattr(self.route.request, "media_type", "") == FORM

    @property
    def type(self) -> dict[str, str]:
        return {"content-type": f"{FORM}; boundary=x" if self.is_form else "application/json"}

    def send_head(self, server: Running, length: int) -> httpx.Response:
        """Send the head of a request with a body of `length` bytes, and no body."""
        given = {**self.type, "host": "localhost", "authorization": "Bearer chief"}
        lines = [f"{name}: {value}" for name, value in {**given, "content-length": length}.items()]
        first = f"{self.method} {self.path} HTTP/1.1"
        answer = server.talk("\r\n".join([first, *lines, "\r\n"]).encode())
        head, _, content = answer.partition(b"\r\n\r\n")
        return httpx.Response(int(head.split()[1]), content=content)

    def send(self, server: Running, document: str = UNKNOWN, **options: Any) -> httpx.Response:
        """Send a request with the headers of the route. document: the id in its path."""
        given = {"authorization": "Bearer chief", **options.pop("headers", {})}
        header = {self.route.header: "2023-06-01"} if self.route.header else {}
        path = self.path.replace(UNKNOWN, document)
        return server.http.request(self.method, path, headers={**header, **given}, **options)

    def valid(self, **fields: Any) -> dict[str, Any]:
        """A request that fits the type, as arguments of httpx."""
        if not self.has_body:
            return {"params": fields}
        if self.is_form:
            form = next(form for start, form in FORMS.items() if self.path.startswith(start))
            return {**form, "data": {**form.get("data", {}), **fields}}
        example = self.route.example or EXAMPLES[self.route.name]
        return {"json": {**example, **fields}}


Attempt = Callable[[Target, Servers, pytest.MonkeyPatch], httpx.Response]


def without_key(target: Target, servers: Servers, patch: pytest.MonkeyPatch) -> httpx.Response:
    return target.send(servers.good, headers={"authorization": "Bearer unknown"})


def without_scope(target: Target, servers: Servers, patch: pytest.MonkeyPatch) -> httpx.Response:
    key = "watcher" if target.route.scope == "infer" else "user"
    return target.send(servers.good, headers={"authorization": f"Bearer {key}"})


def beyond_limit(target: Target, servers: Servers, patch: pytest.MonkeyPatch) -> httpx.Response:
    limited = {"authorization": "Bearer limited"}
    servers.good.http.get("/v1/models", headers=limited)
    return target.send(servers.good, headers=limited)


def bug(target: Target, servers: Servers, patch: pytest.MonkeyPatch) -> httpx.Response:
    patch.setattr(Caller, "require", lambda *_: 1 / 0)
    return target.send(servers.good, headers={"connection": "close"})


def late(target: Target, servers: Servers, patch: pytest.MonkeyPatch) -> httpx.Response:
    patch.setattr(body, "SECONDS", 0.02)
    patch.setattr(body, "FORM_SECONDS", 0.02)
    return target.send_head(servers.good, length=10)


def too_large(target: Target, servers: Servers, patch: pytest.MonkeyPatch) -> httpx.Response:
    return target.send_head(servers.good, length=1 << 40)


def other_type(target: Target, servers: Servers, patch: pytest.MonkeyPatch) -> httpx.Response:
    headers = {"content-type": "text/plain", "origin": "https://a.example"}
    return target.send(servers.good, content=b"x", headers=headers)


def malformed(target: Target, servers: Servers, patch: pytest.MonkeyPatch) -> httpx.Response:
    return target.send(servers.good, content=b"[", headers=target.type)


def unknown_parameter(
    target: Target, servers: Servers, patch: pytest.MonkeyPatch
) -> httpx.Response:
    return target.send(servers.good, params={"banana": "1"})


def stateless(target: Target, servers: Servers, patch: pytest.MonkeyPatch) -> httpx.Response:
    return target.send(servers.stateless, **target.valid())


def valid(target: Target, servers: Servers, patch: pytest.MonkeyPatch) -> httpx.Response:
    """The id in the path is unknown."""
    return target.send(servers.good, **target.valid())


def unknown_model(target: Target, servers: Servers, patch: pytest.MonkeyPatch) -> httpx.Response:
    return target.send(servers.good, **target.valid(model="none"))


def damaged(target: Target, servers: Servers, patch: pytest.MonkeyPatch) -> httpx.Response:
    return target.send(servers.damaged, **target.valid())


def loading(target: Target, servers: Servers, patch: pytest.MonkeyPatch) -> httpx.Response:
    return target.send(servers.loading, **target.valid())


def models_loading(target: Target, servers: Servers, patch: pytest.MonkeyPatch) -> httpx.Response:
    patch.setattr(servers.good.service, "manager", SimpleNamespace(started=False))
    return target.send(servers.good, **target.valid())


def many_bodies(target: Target, servers: Servers, patch: pytest.MonkeyPatch) -> httpx.Response:
    patch.setattr(budget, "MAX_HELD", 0)
    return target.send(servers.good, content=b" " * 100_000, headers=target.type)


def conflict(target: Target, servers: Servers, patch: pytest.MonkeyPatch) -> httpx.Response:
    return failing(AdapterConflict("in use"), target, servers, patch)


def misfit(target: Target, servers: Servers, patch: pytest.MonkeyPatch) -> httpx.Response:
    return failing(AdapterError("malformed"), target, servers, patch)


def failing(
    error: OstroError, target: Target, servers: Servers, patch: pytest.MonkeyPatch
) -> httpx.Response:
    """Send a valid request to a server whose engine and models fail."""

    async def fail(*_: Any) -> None:
        raise error

    manager = SimpleNamespace(started=True, max_context=64, load=fail, unload=fail, requantize=fail)
    patch.setattr(Admin, "check", lambda self: None)
    patch.setattr(Admin, "find", lambda self, path: path)
    patch.setattr(servers.good.service, "manager", manager)
    patch.setattr(servers.good.service.engine, "adapt", fail)
    return target.send(servers.good, **target.valid())


def memory(target: Target, servers: Servers, patch: pytest.MonkeyPatch) -> httpx.Response:
    return failing(InsufficientMemory("no memory"), target, servers, patch)


def full(target: Target, servers: Servers, patch: pytest.MonkeyPatch) -> httpx.Response:
    """The store is full when the request arrives; the document that it names exists."""
    server, chief = servers.good, {"authorization": "Bearer chief"}

    def create(path: str, **given: Any) -> str:
        given = given or {"json": EXAMPLES[f"POST {path}"]}
        return str(server.http.post(path, headers=chief, **given).json()["id"])

    path, document, valid = target.route.name.partition(" ")[2], UNKNOWN, target.valid()
    for parent in ("/v1/uploads", "/v1/conversations"):
        if path.startswith(f"{parent}/"):
            document = create(parent)
    if path == "/v1/batches":
        valid["json"]["input_file_id"] = create("/v1/files", **FORMS["/v1/files"])
    if path == "/v1/chat/completions":
        valid["json"]["store"] = True
    patch.setattr(server.app.state.operations.documents.state.limits, "total", 0)
    return target.send(server, document, **valid)


ATTEMPTS: dict[int, list[Attempt]] = {
    400: [malformed, unknown_parameter, stateless, valid],
    401: [without_key],
    403: [without_scope],
    404: [valid, unknown_model, stateless],
    408: [late],
    409: [conflict],
    413: [too_large],
    415: [other_type],
    422: [misfit],
    429: [beyond_limit],
    500: [bug],
    503: [loading, damaged, many_bodies, models_loading],
    507: [full, memory],
}
"""Requests that produce a status, for the routes that have it."""


def documented(route: Route) -> set[int]:
    """The error statuses of a route in the document."""
    (methods,) = openapi([route])["paths"].values()
    (operation,) = methods.values()
    return {int(status) for status in operation["responses"]} - {200}


@pytest.mark.parametrize("status", ATTEMPTS)
def test_every_documented_error_is_reached(
    servers: Servers, routes: list[Route], monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """The error has the documented form; no request gets a status that is not documented."""
    missing, undocumented = [], []
    for route in routes:
        target, listed = Target(route), documented(route)
        wanted = route.statuses.get(status, status)
        if wanted not in listed:
            continue
        for attempt in ATTEMPTS[status]:
            with monkeypatch.context() as patch:
                response = attempt(target, servers, patch)
            if response.status_code == wanted:
                msgspec.json.decode(response.content, type=error_type(route))
                break
            if response.status_code not in {200, *listed}:
                undocumented.append((route.name, attempt.__name__, response.status_code))
        else:
            missing.append(route.name)
    assert not missing and not undocumented
