"""The store in memory: its size is bounded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ostro import Document
from ostro.errors import StoreError
from ostro.plugins.stores.memory.store import OVERHEAD, MemoryStore

Make = Callable[..., Document]


def test_the_newest_documents_replace_the_oldest(make: Make) -> None:
    store = MemoryStore(limit=3 * (OVERHEAD + 100))
    for id in "abcde":
        store.put(make(id, bytes(100)))
    assert [each.id for each in store.list("ann", "note")] == ["c", "d", "e"]
    with pytest.raises(StoreError, match="limit"):
        store.put(make("f", bytes(5000)))


def test_blobs_count_while_they_are_written(make: Make) -> None:
    store = MemoryStore(limit=2000)
    store.put(make("old"))
    first, second = store.create_blob(), store.create_blob()
    first.write(bytes(1200))
    second.write(bytes(700))
    assert store.get("ann", "note", "old") is None
    with pytest.raises(StoreError):
        second.write(bytes(200))
    first.discard()
    second.write(bytes(200))
    second.discard()
    assert store.nbytes == 0


def test_deleted_documents_free_their_bytes(make: Make) -> None:
    store = MemoryStore()
    writer = store.create_blob()
    writer.write(bytes(100))
    writer.commit()
    store.put(make(blob=writer.name))
    store.put(make(body=b"longer", blob=writer.name))
    assert store.nbytes == 106 + OVERHEAD
    store.delete("ann", "note", "a")
    assert store.nbytes == 0 and not store.blobs
