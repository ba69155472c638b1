"""State: typed documents in a store that runs in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ostro.core.errors import (
    DocumentNotFound,
    RequestError,
    StoreConflict,
    StoreError,
    Unsupported,
    UsageError,
)
from ostro.core.plugins.manager import PluginManager
from ostro.core.store import DocumentStore, new_id
from ostro.core.turns import OWNER
from ostro.entrypoints.operations.access.keys import Key
from ostro.entrypoints.operations.documents.state import State, open_state, read_chunks
from ostro.entrypoints.operations.documents.store_limits import (
    MOMENT,
    REFRESH_SECONDS,
    StoreFull,
    StoreLimitReached,
)


class Note(msgspec.Struct):
    """A value."""

    text: str = ""
    count: int = 0


class Broken(msgspec.Struct):
    """A value that no note can be decoded to."""

    text: int


def run(work: Callable[[State], Awaitable[Any]], state: State) -> Any:
    """Run a coroutine with a started state, which is closed at its end."""

    async def main() -> Any:
        await state.start()
        try:
            return await work(state)
        finally:
            await state.close()

    return asyncio.run(main())


def key(**limits: int) -> Key:
    return Key(name="ann", sha256="0" * 64, **limits)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limits", "total", "error", "words"),
    [
        ({"stored_documents": 3}, None, StoreLimitReached, "3 documents (stored_documents)"),
        ({"stored_bytes": 3_563}, None, StoreLimitReached, "(stored_bytes)"),
        ({}, 3_563, StoreFull, "(--store-limit)"),
    ],
    ids=["documents", "bytes", "server"],
)
def test_limits_of_what_is_stored(
    plugins: PluginManager, limits: Any, total: int | None, error: Any, words: str, tmp_path: Path
) -> None:
    """A deletion gives room back; other owners, and replaced documents, are no reason to refuse."""
    state = open_state(str(tmp_path / "state"), None, plugins, total)
    state.limits.key_of = lambda name: key(**limits) if name == "ann" else None

    async def put(id: str, owner: str = "ann", **more: Any) -> int:
        return await state.put(owner, "note", id, Note("x" * 1000), **{"limited": True, **more})

    async def work(state: State) -> None:
        if total is None:
            await put("other", "bob")
        for id in "abaabb":
            await put(id)
        async with state.writing_blob() as blob:
            await blob.write(b"x" * 500)
        await put("c", blob=blob)
        for refused in (put("d"), state.room("ann"), state.require_room("ann", 1, 600)):
            with pytest.raises(error) as raised:
                await refused
            assert words in str(raised.value)
        if total is None:
            await put("more", "bob")
        await put("d", limited=False)  # of a request that was accepted
        await state.delete("ann", "note", "c")
        await state.delete("ann", "note", "d")
        assert await state.room("ann") >= 1000
        await put("e")

    run(work, state)


def test_a_limit_holds_for_documents_of_other_servers(
    plugins: PluginManager, tmp_path: Path
) -> None:
    location = str(tmp_path / "state")
    first, second = (open_state(location, None, plugins, 2_500) for _ in range(2))
    now = [0.0]
    for each in (first, second):
        each.limits.clock = lambda: now[0]

    async def main() -> None:
        await second.put("bob", "note", "a", Note("x" * 1000), limited=True)
        await first.put("ann", "note", "a", Note("x" * 1000), limited=True)
        now[0] += REFRESH_SECONDS
        with pytest.raises(StoreFull):
            await second.put("bob", "note", "b", Note("x" * 1000), limited=True)
        await first.delete("ann", "note", "a")
        now[0] += MOMENT
        await second.put("bob", "note", "b", Note("x" * 1000), limited=True)
        for each in (first, second):
            await each.close()

    asyncio.run(main())


def test_values_come_back(plugins: PluginManager) -> None:
    async def work(state: State) -> None:
        assert await state.put("ann", "note", "a", Note("hello")) == 1
        found = await state.get("ann", "note", "a", Note)
        assert found.value == Note("hello")
        for key in (("bob", "note", "a"), ("ann", "file", "a"), ("ann", "note", "b")):
            with pytest.raises(DocumentNotFound) as caught:
                await state.get(*key, Note)
            assert (caught.value.status, caught.value.code) == (404, "not_found")
        assert await state.delete("ann", "note", "a") == 1

    run(work, open_state("memory", None, plugins))


def test_a_list_is_read_page_by_page(plugins: PluginManager) -> None:
    async def work(state: State) -> None:
        ids = [new_id("note-") for _ in range(5)]
        for id in ids:
            await state.put("ann", "note", id, Note(id))
        first = await state.list("ann", "note", Note, limit=3)
        assert [each.value.text for each in first.items] == ids[:1:-1] and first.has_more
        last = await state.list("ann", "note", Note, limit=3, after=first.items[-1].document.id)
        assert [each.value.text for each in last.items] == ids[1::-1] and not last.has_more
        for cursor in ("", "banana", "note-", "../x", "note-" + "g" * 32, ids[0] + "\n"):
            with pytest.raises(RequestError) as caught:
                await state.list("ann", "note", Note, after=cursor)
            assert caught.value.param == "after"

    run(work, open_state("memory", None, plugins))


def test_a_page_has_a_limited_size(plugins: PluginManager) -> None:
    async def work(state: State) -> None:
        for size in (100, 100, 500, 10, 10, 10):
            await state.put("ann", "note", new_id("note-"), Note("x" * size))
        sizes, after, more = list[list[int]](), None, True
        while more:
            page = await state.list(
                "ann", "note", Note, after=after, limit=3, descending=False, max_bytes=400
            )
            sizes.append([len(item.value.text) for item in page.items])
            after, more = page.items[-1].document.id, page.has_more
        assert sizes == [[100, 100], [500], [10, 10, 10]]

    run(work, open_state("memory", None, plugins))


def test_the_bytes_of_documents_are_counted_before_they_are_decoded(
    plugins: PluginManager,
) -> None:
    def refuse(nbytes: int) -> None:
        raise RequestError(f"{nbytes} bytes are too many")

    async def work(state: State) -> None:
        for id in ("a", "b"):
            await state.put("ann", "note", id, Note("x" * 88))
        with pytest.raises(RequestError, match=r"^109 bytes"):
            await state.get("ann", "note", "a", Broken, count=refuse)
        with pytest.raises(RequestError, match=r"^218 bytes"):
            await state.list("ann", "note", Broken, count=refuse)

    run(work, open_state("memory", None, plugins))


def test_changes_of_two_servers_are_not_lost(plugins: PluginManager, tmp_path: Path) -> None:
    def more(note: Note) -> Note:
        return msgspec.structs.replace(note, count=note.count + 1)

    async def work(state: State) -> None:
        other = open_state(str(tmp_path / "state"), None, plugins)
        await state.put("ann", "note", "n", Note())
        servers = [state, other] * 20
        changes = (each.change("ann", "note", "n", Note, more) for each in servers)
        await asyncio.gather(*changes)
        found = await other.get("ann", "note", "n", Note)
        assert (found.value.count, found.document.version) == (40, 41)
        same = await state.change("ann", "note", "n", Note, lambda note: note)
        assert same.count == 40
        assert (await state.get("ann", "note", "n", Note)).document.version == 41
        await other.close()

    run(work, open_state(str(tmp_path / "state"), None, plugins))


def test_a_deleted_document_cannot_be_changed(plugins: PluginManager) -> None:
    async def work(state: State) -> None:
        await state.put("ann", "note", "n", Note())

        def delete_first(note: Note) -> Note:
            assert state._store is not None
            state._store.delete("ann", "note", "n")
            return Note("back")

        with pytest.raises(DocumentNotFound):
            await state.change("ann", "note", "n", Note, delete_first)
        with pytest.raises(DocumentNotFound):
            await state.get("ann", "note", "n", Note)

    run(work, open_state("memory", None, plugins))


@pytest.mark.parametrize(
    ("retention", "lifetime", "expected"),
    [(100.0, None, 100), (100.0, 50, 50), (100.0, 500, 100), (None, 500, 500), (None, None, None)],
)
def test_no_document_outlives_the_retention(
    plugins: PluginManager, retention: float | None, lifetime: float | None, expected: float | None
) -> None:
    async def work(state: State) -> None:
        await state.put("ann", "note", "n", Note(), lifetime=lifetime)
        before = (await state.get("ann", "note", "n", Note)).document
        seconds = before.expires and before.expires - before.created
        assert seconds == expected or seconds == pytest.approx(expected)
        await state.change("ann", "note", "n", Note, lambda note: Note("new"))
        after = (await state.get("ann", "note", "n", Note)).document
        assert (after.created, after.expires) == (before.created, before.expires)

    run(work, open_state("memory", retention, plugins))


def test_blobs_are_streamed(plugins: PluginManager, tmp_path: Path) -> None:
    async def work(state: State) -> None:
        async with state.writing_blob() as blob:
            for _ in range(3):
                await blob.write(b"x" * 700_000)
        assert blob.size == 2_100_000
        await state.put("ann", "note", "n", Note(), blob=blob)
        document = (await state.get("ann", "note", "n", Note)).document
        chunks = [each async for each in read_chunks(await state.open_blob(document))]
        assert [len(each) for each in chunks] == [1 << 20, 1 << 20, 2_100_000 - (2 << 20)]
        await state.delete("ann", "note", "n")
        with pytest.raises(DocumentNotFound):  # deleted between reading and use
            await state.open_blob(document)

    run(work, open_state(str(tmp_path / "state"), None, plugins))


def test_a_lost_blob_of_a_document_is_an_error_of_the_store(
    plugins: PluginManager, tmp_path: Path
) -> None:
    async def work(state: State) -> None:
        async with state.writing_blob() as blob:
            await blob.write(b"x")
        await state.put("ann", "note", "n", Note(), blob=blob)
        (tmp_path / "state/blobs" / blob.name).unlink()
        with pytest.raises(StoreError, match="No such file"):
            await state.open_blob((await state.get("ann", "note", "n", Note)).document)

    run(work, open_state(str(tmp_path / "state"), None, plugins))


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
def test_an_unfinished_blob_is_deleted(
    plugins: PluginManager, tmp_path: Path, error: type[BaseException]
) -> None:
    async def work(state: State) -> None:
        with pytest.raises(error):
            async with state.writing_blob() as blob:
                await blob.write(b"x")
                raise error

    run(work, open_state(str(tmp_path / "state"), None, plugins))
    assert not list((tmp_path / "state/blobs").iterdir())


def test_without_a_store_requests_that_need_one_are_refused() -> None:
    async def work(state: State) -> None:
        assert not state.enabled
        with pytest.raises(Unsupported, match="no store; start it with --store memory") as caught:
            await state.get("ann", "note", "a", Note)
        assert caught.value.status == 400

    run(work, State())


def test_an_unknown_location_is_refused(plugins: PluginManager) -> None:
    with pytest.raises(UsageError, match="redis://x: no plugin has such a store"):
        open_state("redis://x", None, plugins)
    assert not open_state("none", None, plugins).enabled


def test_a_damaged_store_is_an_error_until_it_is_moved_away(
    plugins: PluginManager, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    (folder / "state.db").write_bytes(b"damaged" * 1000)

    async def work(state: State) -> None:
        assert "requests that need the store get status 503" in caplog.text
        for _ in range(2):
            with pytest.raises(StoreError) as caught:
                await state.put("ann", "note", "a", Note())
            assert caught.value.status == 503
        folder.rename(tmp_path / "damaged")
        assert await state.put("ann", "note", "a", Note()) == 1

    run(work, open_state(str(folder), None, plugins))


def test_an_unsafe_location_stops_the_start(plugins: PluginManager, tmp_path: Path) -> None:
    (tmp_path / "state").symlink_to(tmp_path)
    with pytest.raises(UsageError, match="symbolic link"):
        asyncio.run(open_state(str(tmp_path / "state"), None, plugins).start())


def test_a_document_of_another_type_is_an_error_of_the_store(plugins: PluginManager) -> None:
    class Other(msgspec.Struct):
        text: int

    async def work(state: State) -> None:
        await state.put("ann", "note", "a", Note("words"))
        with pytest.raises(StoreError, match="is invalid"):
            await state.get("ann", "note", "a", Other)

    run(work, open_state("memory", None, plugins))


class Slow:
    """A store whose `get` waits until `answers` is set, and fails in the second call."""

    def __init__(self) -> None:
        self.threads: set[int] = set()
        self.answers = threading.Event()

    def get(self, *key: str) -> None:
        self.threads.add(threading.get_ident())
        assert self.answers.wait(60), "the event loop stands"
        if key[2] == "exit":
            raise SystemExit("a secret")
        if len(key[2]) > 1:
            raise ZeroDivisionError("a secret")

    def expire(self) -> int:
        return 0

    def close(self) -> None:
        self.threads.add(threading.get_ident())


def test_a_slow_store_does_not_block_the_loop() -> None:
    slow = Slow()

    async def work(state: State) -> None:
        waiting = asyncio.ensure_future(state.get("ann", "note", "a", Note))
        while not slow.threads:
            await asyncio.sleep(0)
        slow.answers.set()
        with pytest.raises(DocumentNotFound):
            await waiting
        with pytest.raises(StoreError, match="ZeroDivisionError") as caught:
            await state.get("ann", "note", "two", Note)
        assert "secret" not in str(caught.value)
        with pytest.raises(StoreError, match="the store has failed"):
            await state.get("ann", "note", "exit", Note)

    run(work, State(lambda: slow))  # type: ignore[arg-type,return-value]
    assert len(slow.threads) == 1


def test_a_document_that_always_changes_is_a_conflict(
    plugins: PluginManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(state: State) -> None:
        await state.put("ann", "note", "n", Note())

        def race(note: Note) -> Note:
            store = state._store
            assert store is not None
            document = store.get("ann", "note", "n")
            assert document is not None
            store.put(replace(document, body=b"{}"))
            return Note("mine")

        with pytest.raises(StoreConflict, match="changes too often"):
            await state.change("ann", "note", "n", Note, race)

    run(work, open_state("memory", None, plugins))


def test_the_store_serves_owners_in_turn(plugins: PluginManager) -> None:
    """Very many calls of one API key kept those of all others waiting."""

    async def main() -> None:
        state = open_state("memory", None, plugins)
        gate, order = threading.Event(), list[str]()

        async def call(owner: str, name: str) -> None:
            def work(store: DocumentStore) -> None:
                assert gate.wait(60)
                order.append(name)

            OWNER.set(owner)  # in the context of this task
            await state.call(work)

        calls = [asyncio.create_task(call("ann", f"a{i}")) for i in range(20)]
        await asyncio.sleep(0)
        calls += [asyncio.create_task(call("bob", f"b{i}")) for i in range(2)]
        await asyncio.sleep(0)
        calls[5].cancel()
        closing = asyncio.create_task(state.close())  # after the calls in progress
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*calls, closing, return_exceptions=True)
        assert order[:2] == ["a0", "b0"]
        assert [name for name in order if name[0] == "b"] == ["b0", "b1"]
        assert [name for name in order if name[0] == "a"] == [f"a{i}" for i in range(20) if i != 5]

    asyncio.run(asyncio.wait_for(main(), 120))
