"""The store in memory: its size is bounded."""

from __future__ import annotations

import tracemalloc
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


def blob(store: MemoryStore, size: int) -> str:
    writer = store.create_blob()
    writer.write(bytes(size))
    writer.commit()
    return writer.name


def test_who_stores_the_most_loses_the_oldest_documents(make: Make) -> None:
    """Others keep theirs, whatever arrives."""
    store = MemoryStore(limit=10_000)
    store.put(make("b", owner="bob", blob=blob(store, 1000)))
    for id in "cdefghij":
        store.put(make(id, blob=blob(store, 3000)))
    assert [each.id for each in store.list("ann", "note")] == ["i", "j"]
    assert store.get("bob", "note", "b") is not None
    for id in "klmn":
        store.put(make(id, owner="bob", blob=blob(store, 500)))
    assert [each.id for each in store.list(None, "note")] == [*"bjklmn"]
    assert store.nbytes == sum(each.nbytes for each in store.shares.values()) < store.limit


def test_blobs_that_are_written_replace_no_document(make: Make) -> None:
    store = MemoryStore(limit=2000)
    store.put(make("old"))
    first, second = store.create_blob(), store.create_blob()
    first.write(bytes(900))
    second.write(bytes(100))
    with pytest.raises(StoreError, match="1000 bytes on the files that arrive at once"):
        second.write(bytes(1))
    first.discard()
    second.write(bytes(200))
    second.commit()
    second.discard()
    assert store.get("ann", "note", "old") is not None
    assert (store.writing, store.unreferenced, store.blobs) == (0, set(), {})
    for _ in range(9):  # what is stored is not being written
        store.put(make("new", blob=blob(store, 900)))
    assert store.writing == 0 and len(store.blobs) == 1


def test_a_blob_is_read_without_a_copy(make: Make) -> None:
    """A copy of a large one holds the GIL, and so stops all streams."""
    store, size = MemoryStore(), 10_000_000
    store.put(make(blob=blob(store, size)))
    [name] = store.blobs
    tracemalloc.start()
    try:
        assert len(store.open_blob(name).read(10)) == 10
        assert tracemalloc.get_traced_memory()[1] < size / 10
    finally:
        tracemalloc.stop()


def test_deleted_documents_free_their_bytes(make: Make) -> None:
    store = MemoryStore()
    writer = store.create_blob()
    writer.write(bytes(100))
    writer.commit()
    store.put(make(blob=writer.name))
    store.put(make(body=b"longer", blob=writer.name))
    assert store.nbytes == 106 + OVERHEAD and not store.writing
    store.delete("ann", "note", "a")
    assert store.nbytes == store.writing == 0
    assert not (store.blobs or store.shares or store.kinds)
