"""The interface of stores, for each built-in store."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ostro import Document, DocumentStore, new_id
from ostro.core.plugins.manager import PluginManager
from ostro.errors import StoreConflict, StoreError

Make = Callable[..., Document]


def blob(store: DocumentStore, data: bytes) -> str:
    writer = store.create_blob()
    writer.write(data[:3])
    writer.write(data[3:])
    writer.commit()
    return writer.name


def test_a_document_comes_back_as_written(store: DocumentStore, make: Make) -> None:
    written = make("x", b"\0\xff body", lifetime=5)
    assert store.put(written) == 1
    found = store.get("ann", "note", "x")
    assert found is not None
    assert found.version == 1
    assert (found.body, found.created, found.expires) == (b"\0\xff body", *times(written))


def times(document: Document) -> tuple[float, float | None]:
    return document.created, document.expires


@pytest.mark.parametrize("key", [("bob", "note", "a"), ("ann", "file", "a"), ("ann", "note", "A")])
def test_another_key_finds_nothing(
    store: DocumentStore, make: Make, key: tuple[str, str, str]
) -> None:
    store.put(make())
    assert store.get(*key) is None
    assert store.delete(*key) == 0
    assert store.get("ann", "note", "a") is not None


def test_a_write_needs_the_version_it_replaces(store: DocumentStore, make: Make) -> None:
    assert store.put(make(body=b"1"), expected=0) == 1
    assert store.put(make(body=b"2"), expected=1) == 2
    for wrong in (0, 1, 3):
        with pytest.raises(StoreConflict, match=f"has version 2, expected {wrong}"):
            store.put(make(body=b"lost"), expected=wrong)
    found = store.get("ann", "note", "a")
    assert found is not None and (found.body, found.version) == (b"2", 2)
    store.delete("ann", "note", "a")
    with pytest.raises(StoreConflict):  # deleted between reading and writing
        store.put(make(body=b"3"), expected=2)


@pytest.mark.parametrize("descending", [False, True])
def test_pages_cover_all_documents_once(store: DocumentStore, make: Make, descending: bool) -> None:
    ids = [new_id("file-") for _ in range(25)]
    for id in reversed(ids):
        store.put(make(id))
        store.put(make(id, owner="bob"))
    seen: list[str] = []
    while page := store.list(
        "ann", "note", after=seen[-1] if seen else None, limit=4, descending=descending
    ):
        assert len(page) <= 4 and {each.owner for each in page} == {"ann"}
        seen += [each.id for each in page]
        store.delete("ann", "note", seen[-1])  # a cursor may be deleted
    assert seen == (ids[::-1] if descending else ids)


def test_no_owner_lists_those_of_all_owners(store: DocumentStore, make: Make) -> None:
    for owner in ("ann", "bob", ""):
        store.put(make(f"id-{owner}", owner=owner))
    store.put(make("other", kind="file"))
    assert [each.owner for each in store.list(None, "note")] == ["", "ann", "bob"]
    assert [each.owner for each in store.list("", "note")] == [""]


def test_a_kind_is_deleted_as_a_whole(store: DocumentStore, make: Make) -> None:
    for id in "abc":
        store.put(make(id, kind="line/1"))
        store.put(make(id, kind="line/10"))
    assert store.delete("ann", "line/1") == 3
    assert len(store.list("ann", "line/10")) == 3 and not store.list("ann", "line/1")


def test_an_expired_document_is_missing_before_it_is_deleted(
    store: DocumentStore, make: Make, clock: Callable[[], float]
) -> None:
    store.put(make("short", lifetime=10))
    store.put(make("long", lifetime=20))
    store.put(make("kept"))
    clock.now += 10  # type: ignore[attr-defined]
    assert store.get("ann", "note", "short") is None
    assert [each.id for each in store.list("ann", "note")] == ["kept", "long"]
    assert store.usage()[0].documents == 2
    assert store.put(make("short"), expected=0) == 1
    assert store.expire() == 0
    clock.now += 10  # type: ignore[attr-defined]
    assert store.expire() == 1
    assert [each.id for each in store.list("ann", "note")] == ["kept", "short"]


def test_a_blob_is_deleted_with_its_document(store: DocumentStore, make: Make) -> None:
    name = blob(store, b"0123456789")
    store.put(make(blob=name))
    with store.open_blob(name) as file:
        assert file.read(4) == b"0123"
        file.seek(8)
        assert file.read() == b"89"
    store.put(make(body=b"new", blob=name))
    store.open_blob(name).close()
    other = blob(store, b"other")
    store.put(make(blob=other))  # the first blob is replaced
    with pytest.raises(StoreError):
        store.open_blob(name)
    store.delete("ann", "note", "a")
    with pytest.raises(StoreError):
        store.open_blob(other)


def test_a_discarded_blob_is_gone(store: DocumentStore) -> None:
    for commit in (False, True):
        writer = store.create_blob()
        writer.write(b"abc")
        if commit:
            writer.commit()
        writer.discard()
        with pytest.raises(StoreError):
            store.open_blob(writer.name)


@pytest.mark.parametrize("name", ["", "../state.db", "/etc/passwd", "0" * 32, "a\0b"])
def test_a_blob_name_is_no_path(store: DocumentStore, name: str) -> None:
    with pytest.raises(StoreError):
        store.open_blob(name)


def test_usage_counts_documents_and_bytes(
    store: DocumentStore, make: Make, clock: Callable[[], float]
) -> None:
    start = clock()
    store.put(make("a", b"12345"))
    clock.now += 60  # type: ignore[attr-defined]
    store.put(make("b", b"123", blob=blob(store, b"0123456789")))
    store.put(make("c", b"1", owner="bob", kind="file"))
    found = [(each.owner, each.kind, each.documents, each.nbytes) for each in store.usage()]
    assert found == [("ann", "note", 2, 18), ("bob", "file", 1, 1)]
    assert store.usage()[0].oldest == start
    store.compact()
    assert len(store.usage()) == 2


def test_ids_sort_by_creation() -> None:
    ids = [new_id("file-") for _ in range(1000)]
    assert ids == sorted(set(ids))
    assert {len(id) for id in ids} == {len("file-") + 32}


@pytest.mark.parametrize(
    ("location", "name"),
    [
        ("memory", "memory"),
        ("./state", "sqlite"),
        ("/var/lib/ostro", "sqlite"),
        ("redis://x", None),
    ],
)
def test_one_store_claims_a_location(location: str, name: str | None) -> None:
    plugins = PluginManager()
    plugins.load()
    found = plugins.claimant("stores", lambda store: store.claims(location), location)
    assert (found and found.name) == name
