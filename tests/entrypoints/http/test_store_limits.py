"""Limits on what keys and servers store, in every API that stores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from ostro.core.plugins.manager import PluginManager
from ostro.entrypoints.operations.access.keys import KeyRing, sha256_of
from ostro.entrypoints.operations.documents.state import State, open_state

DOCUMENTS = 4
HI = [{"role": "user", "content": "hi"}]
MESSAGE = {"model": "echo", "max_tokens": 4, "messages": HI}
UPLOAD = {"filename": "a", "purpose": "user_data", "bytes": 9, "mime_type": "text/plain"}
JSON: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": HI, "store": True}),
    "response": ("/v1/responses", {"input": "hi"}),
    "background response": ("/v1/responses", {"input": "hi", "background": True}),
    "streamed response": ("/v1/responses", {"input": "hi", "stream": True}),
    "conversation": ("/v1/conversations", {}),
    "upload": ("/v1/uploads", UPLOAD),
    "message batch": (
        "/v1/messages/batches",
        {"requests": [{"custom_id": "a", "params": MESSAGE}]},
    ),
}
"""Requests that store something, and make nothing before it is refused."""


@pytest.fixture(scope="module")
def make_state() -> Callable[..., State]:
    plugins = PluginManager()
    plugins.load()
    return lambda limit=None: open_state("memory", 3600.0, plugins, limit)


@pytest.fixture(scope="module")
def server(start: Any, make_state: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    file: Path = tmp_path_factory.mktemp("keys") / "keys.toml"
    file.touch(mode=0o600)
    file.write_text(
        f'[[keys]]\nname = "ann"\nsha256 = "{sha256_of("ann")}"\n'
        f"stored_documents = {DOCUMENTS}\n"
        f'[[keys]]\nname = "bob"\nsha256 = "{sha256_of("bob")}"\nstored_bytes = 20_000\n'
    )
    return start(ring=KeyRing(file=file), state=make_state())


def send(server: Any, method: str, path: str, name: str = "ann", **more: Any) -> httpx.Response:
    found: httpx.Response = server.http.request(method, path, headers={"x-api-key": name}, **more)
    return found


def upload(server: Any, data: bytes = b"x", name: str = "ann") -> httpx.Response:
    return send(
        server,
        "POST",
        "/v1/files",
        name,
        data={"purpose": "batch"},
        files={"file": ("a.jsonl", data)},
    )


def refused(answer: httpx.Response, path: str, *words: str, status: int = 429) -> None:
    """Check an error in the form of a path's family."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    message = body["error"]["message"]
    assert all(word in message for word in words), message
    if path.startswith("/v1/messages"):
        assert body["type"] == "error"
        assert body["error"]["type"] == ("rate_limit_error" if status == 429 else "api_error")
    else:
        assert body["error"]["code"] == ("store_limit_reached" if status == 429 else "store_full")


def test_a_key_stores_no_more_than_its_limits(server: Any) -> None:
    """Every API refuses, nothing is generated for it, and a deletion gives room back."""
    files = [upload(server).json()["id"] for _ in range(DOCUMENTS)]
    assert len(set(files)) == DOCUMENTS
    ran = len(server.echo.seen)
    refused(upload(server), "", "4 documents (stored_documents)")
    batch = {"input_file_id": files[0], "endpoint": JSON["chat"][0], "completion_window": "24h"}
    for path, body in [*JSON.values(), ("/v1/batches", batch)]:
        refused(send(server, "POST", path, json=body), path, "4 documents (stored_documents)")
    assert len(server.echo.seen) == ran
    for path, body in (JSON["chat"], JSON["response"]):
        unstored = send(server, "POST", path, json={**body, "store": False})
        assert unstored.status_code == 200, unstored.text
    assert upload(server, name="bob").status_code == 200
    assert send(server, "DELETE", f"/v1/files/{files[0]}").status_code == 200
    assert upload(server).status_code == 200
    for path, body in (JSON["chat"], JSON["message batch"]):
        refused(send(server, "POST", path, json=body), path)
    for id in [
        *files[1:],
        *(each["id"] for each in send(server, "GET", "/v1/files").json()["data"]),
    ]:
        send(server, "DELETE", f"/v1/files/{id}")
    for path, body in (JSON["chat"], JSON["conversation"]):
        assert send(server, "POST", path, json=body).status_code == 200


def test_a_file_beyond_the_bytes_of_a_key(server: Any) -> None:
    refused(upload(server, b"x" * 20_001, "bob"), "", "(stored_bytes)")
    assert upload(server, b"x" * 15_000, "bob").status_code == 200
    path = "/v1/conversations"
    made = send(server, "POST", path, "bob", json={}).json()
    items = [{"type": "message", "role": "user", "content": "x" * 6_000}]
    for long in (path, f"{path}/{made['id']}/items"):
        refused(send(server, "POST", long, "bob", json={"items": items}), path, "(stored_bytes)")


def test_a_server_stores_no_more_than_its_limit(start: Any, make_state: Any) -> None:
    server = start(state=make_state(10_000))
    made = upload(server, b"x" * 9_700)
    assert made.status_code == 200
    refused(upload(server, b"x" * 500), "", "(--store-limit)", status=507)
    path, body = JSON["message batch"]
    body = {"requests": [{"custom_id": "a", "params": {**MESSAGE, "system": "x" * 500}}]}
    refused(send(server, "POST", path, json=body), path, "(--store-limit)", status=507)
    assert send(server, "POST", JSON["chat"][0], json={"messages": HI}).status_code == 200
    send(server, "DELETE", f"/v1/files/{made.json()['id']}")
    assert send(server, "POST", path, json=body).status_code == 200
