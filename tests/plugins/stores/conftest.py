"""Fixtures: a clock that tests set, and each built-in store."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ostro import Document, DocumentStore
from ostro.plugins.stores.memory.store import MemoryStore
from ostro.plugins.stores.sqlite.store import SqliteStore

START = 1_700_000_000.0


class Clock:
    """Seconds since 1970."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def close_connections(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the databases that a test opens: Python 3.13 warns of open ones that it deletes."""
    connect, opened = sqlite3.connect, list[sqlite3.Connection]()

    def record(*args: Any, **options: Any) -> sqlite3.Connection:
        opened.append(connect(*args, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", record)
    yield
    for connection in opened:
        connection.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture(params=["sqlite", "memory"])
def store(request: pytest.FixtureRequest, folder: Path, clock: Clock) -> Iterator[DocumentStore]:
    made: DocumentStore
    if request.param == "sqlite":
        made = SqliteStore(folder, clock=clock)
    else:
        made = MemoryStore(clock=clock)
    yield made
    made.close()


Make = Callable[..., Document]


@pytest.fixture
def make(clock: Clock) -> Make:
    """Make a document; `lifetime` is in seconds."""

    def document(
        id: str = "a",
        body: bytes = b"{}",
        *,
        owner: str = "ann",
        kind: str = "note",
        lifetime: float | None = None,
        blob: str = "",
    ) -> Document:
        now = clock()
        expires = None if lifetime is None else now + lifetime
        return Document(
            owner=owner, kind=kind, id=id, body=body, created=now, expires=expires, blob=blob
        )

    return document
