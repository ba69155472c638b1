"""A key does the same work for an id of another key as for an id that does not exist."""

from __future__ import annotations

from typing import Any

import pytest
from echo.server import Running, Start

from ostro.entrypoints.operations.documents.state import State
from ostro.plugins.stores.memory.store import MemoryStore

ANN, BOB = ({"x-api-key": name} for name in ("ann", "bob"))
NAME = "api-key 2"
"""The owner of what the second key stores. The first one's batch runs meanwhile."""
ABSENT = "0" * 32
CASES = [
    ("file", "GET", "/v1/files/{id}", None),
    ("file", "GET", "/v1/files/{id}/content", None),
    ("file", "DELETE", "/v1/files/{id}", None),
    ("file", "POST", "/v1/batches", {"input_file_id": "{id}"}),
    ("batch", "GET", "/v1/batches/{id}", None),
    ("batch", "POST", "/v1/batches/{id}/cancel", {}),
    ("response", "GET", "/v1/responses/{id}", None),
    ("response", "GET", "/v1/responses/{id}/input_items", None),
    ("response", "DELETE", "/v1/responses/{id}", None),
    ("response", "POST", "/v1/responses/{id}/cancel", {}),
    ("response", "POST", "/v1/responses", {"input": "x", "previous_response_id": "{id}"}),
    ("item", "POST", "/v1/responses", {"input": [{"type": "item_reference", "id": "{id}"}]}),
    ("conversation", "POST", "/v1/responses", {"input": "x", "conversation": "{id}"}),
    ("conversation", "GET", "/v1/conversations/{id}", None),
    ("conversation", "GET", "/v1/conversations/{id}/items", None),
    ("conversation", "DELETE", "/v1/conversations/{id}", None),
    ("chat", "GET", "/v1/chat/completions/{id}", None),
    ("chat", "DELETE", "/v1/chat/completions/{id}", None),
]
"""Kinds of ids, and requests with one."""


class RecordingStore(MemoryStore):
    """A store that records its queries for documents."""

    def __init__(self) -> None:
        super().__init__()
        self.queries: list[tuple[str, str | None, str]] = []

    def get(self, owner: str, kind: str, id: str, /) -> Any:
        self.queries.append(("get", owner, kind))
        return super().get(owner, kind, id)

    def list(self, owner: str | None, kind: str, /, **options: Any) -> Any:
        self.queries.append(("list", owner, kind))
        return super().list(owner, kind, **options)

    def delete(self, owner: str, kind: str, id: str | None = None, /) -> int:
        self.queries.append(("delete", owner, kind))
        return super().delete(owner, kind, id)


@pytest.fixture(scope="module")
def store() -> RecordingStore:
    return RecordingStore()


@pytest.fixture(scope="module")
def server(start: Start, store: RecordingStore) -> Running:
    return start(keys=["ann", "bob"], state=State(lambda: store))


@pytest.fixture(scope="module")
def ids(server: Running) -> dict[str, str]:
    """Ids of documents of one key, by kind."""

    def post(path: str, **options: Any) -> Any:
        return server.http.post(path, headers=ANN, **options).raise_for_status().json()

    file = post("/v1/files", files={"file": ("a.jsonl", b"{}")}, data={"purpose": "batch"})
    wanted = {"input_file_id": file["id"], "endpoint": "/v1/embeddings", "completion_window": "24h"}
    response = post("/v1/responses", json={"input": "x"})
    chat = {"messages": [{"role": "user", "content": "x"}], "store": True}
    return {
        "file": file["id"],
        "batch": post("/v1/batches", json=wanted)["id"],
        "response": response["id"],
        "item": response["output"][0]["id"],
        "conversation": post("/v1/conversations", json={})["id"],
        "chat": post("/v1/chat/completions", json=chat)["id"],
    }


def filled(body: Any, id: str) -> Any:
    """Return a body with an id in its place."""
    if isinstance(body, dict):
        return {name: filled(value, id) for name, value in body.items()}
    if isinstance(body, list):
        return [filled(value, id) for value in body]
    return body.replace("{id}", id)


@pytest.mark.parametrize(("kind", "method", "path", "body"), CASES)
def test_ids_of_another_key_are_like_absent_ones(
    server: Running,
    store: RecordingStore,
    ids: dict[str, str],
    kind: str,
    method: str,
    path: str,
    body: Any,
) -> None:
    if path == "/v1/batches":
        body = {**body, "endpoint": "/v1/embeddings", "completion_window": "24h"}

    def ask(id: str, headers: dict[str, str]) -> tuple[int, str, list[tuple[str, str]]]:
        store.queries.clear()
        sent = None if body is None else filled(body, id)
        response = server.http.request(method, path.replace("{id}", id), json=sent, headers=headers)
        found = [
            (verb, kind.replace(id, "ID")) for verb, owner, kind in store.queries if owner == NAME
        ]
        return response.status_code, response.text.replace(id, "ID"), found

    theirs, absent = ids[kind], ids[kind][:-32] + ABSENT
    assert ask(theirs, BOB) == ask(absent, BOB)
    status, _, queries = ask(absent, BOB)
    assert status == 404 and queries
