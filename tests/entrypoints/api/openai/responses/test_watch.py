"""Followers and the runner of responses in the background: what they read of the store."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ostro.core.errors import DocumentNotFound, StoreError
from ostro.core.plugins.manager import PluginManager
from ostro.core.store import DocumentStore
from ostro.core.turns import OWNER
from ostro.entrypoints.api.openai.responses import watch
from ostro.entrypoints.api.openai.responses.request import ResponseRequest
from ostro.entrypoints.api.openai.responses.responses import Responses
from ostro.entrypoints.api.openai.responses.runner import BackgroundRun, ResponseRunner
from ostro.entrypoints.api.openai.responses.store import JOB_KIND, event_kind
from ostro.entrypoints.api.openai.responses.watch import Progress, ResponseWatch
from ostro.entrypoints.operations.access.admission import claim
from ostro.entrypoints.operations.access.caller import ANYONE, Caller
from ostro.entrypoints.operations.documents.jobs import Job
from ostro.entrypoints.operations.documents.state import State, open_state


class Recorded:
    """A store that counts what is read from it, by kind."""

    def __init__(self, store: DocumentStore) -> None:
        self.store, self.reads = store, Counter[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def get(self, owner: str, kind: str, id: str) -> Any:
        self.reads[kind] += 1
        return self.store.get(owner, kind, id)


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> State:
    monkeypatch.setattr(watch, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(watch, "SHARE", 0)
    plugins = PluginManager()
    plugins.load()
    opened = open_state("memory", None, plugins)
    open_store = opened._open
    assert open_store is not None
    opened._open = lambda: Recorded(open_store())  # type: ignore[assignment, return-value]
    return opened


def run(state: State, work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(work(), 60)
        await state.close()

    asyncio.run(main())


async def enqueue(responses: Responses, *, stream: bool = False) -> str:
    """Store a response in the background; no runner generates it."""
    responses.operations = Operations()  # type: ignore[assignment]
    request = ResponseRequest(input="x", background=True, stream=stream)
    return (await responses.enqueue(request, ANYONE)).id


class Operations:
    """Generates until it is cancelled."""

    def __init__(self) -> None:
        self.service, self.chats, self.cancelled = self, 0, 0

    async def admit(self, *_: Any) -> Any:
        return type("Admitted", (), {"name": "m", "model": "m"})

    async def chat(self, *_: Any) -> Any:
        self.chats += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


@contextmanager
def claimed(name: str) -> Iterator[Caller]:
    yield ANYONE


def reads(state: State) -> Counter[str]:
    store: Any = state._store
    return store.reads


async def polls(state: State, count: int) -> None:
    """Wait until jobs were read this many times more."""
    end = reads(state)[JOB_KIND] + count
    while reads(state)[JOB_KIND] < end:
        await asyncio.sleep(0)


@pytest.mark.parametrize("end", ["cancel", "delete"])
def test_the_runner_reads_no_document_until_the_response_is_over(state: State, end: str) -> None:
    """It decoded the response ten times a second: one with a large schema stopped the loop."""

    async def work() -> None:
        responses = Responses(state, None)  # type: ignore[arg-type]
        id = await enqueue(responses)
        operations: Any = responses.operations
        runner = ResponseRunner(responses, claimed)
        running = asyncio.create_task(BackgroundRun(runner, "", id).run())
        while not operations.chats:
            await asyncio.sleep(0)
        before = reads(state).copy()
        await polls(state, 50)
        assert {*(reads(state) - before)} == {JOB_KIND}
        if end == "cancel":
            assert (await responses.cancel(id)).status == "cancelled"
            await running
        else:
            await responses.delete(id)
            with pytest.raises(DocumentNotFound):
                await running
        assert operations.cancelled == 1

    run(state, work)


def test_one_query_serves_all_followers(state: State) -> None:
    async def work() -> None:
        responses = Responses(state, None)  # type: ignore[arg-type]
        ids = [await enqueue(responses) for _ in range(3)]
        following = [
            asyncio.create_task(responses.watch.over("", id)) for id in ids for _ in range(40)
        ]
        await polls(state, 1)
        calls, call = [0], state.call

        async def counted(function: Any) -> Any:
            calls[0] += 1
            return await call(function)

        state.call = counted  # type: ignore[method-assign]
        before = reads(state)[JOB_KIND]
        await polls(state, 30)
        assert reads(state)[JOB_KIND] - before <= 3 * (calls[0] + 1) <= 36
        await state.change("", JOB_KIND, ids[0], Job, lambda job: Job(cancelled=True))
        await asyncio.gather(*following[:40])
        assert not any(task.done() for task in following[40:])
        for id in ids[1:]:
            await state.delete("", JOB_KIND, id)
        await asyncio.gather(*following)
        assert not responses.watch.waiters

    run(state, work)


def test_a_follower_waits_for_new_events(state: State) -> None:
    async def work() -> None:
        followed = ResponseWatch(state)
        await state.put("", JOB_KIND, "a", Job())
        first = await followed.changed("", "a", None)
        assert first == Progress(over=False)
        waiting = asyncio.create_task(followed.changed("", "a", first))
        await polls(state, 5)
        assert not waiting.done()
        await state.put("", event_kind("a"), f"{7:032x}", Job())
        second = await waiting
        assert second == Progress(over=False, events=f"{7:032x}")
        await state.delete("", JOB_KIND, "a")
        assert await followed.changed("", "a", second) == Progress(True, second.events)

    run(state, work)


def test_the_query_belongs_to_no_owner(state: State) -> None:
    """The followers of all API keys would wait for the turn of the first one's."""

    async def work() -> None:
        followed, owners, call = ResponseWatch(state), set[str](), state.call
        await state.put("", JOB_KIND, "a", Job())

        async def recorded(function: Any) -> Any:
            owners.add(OWNER.get())
            return await call(function)

        state.call = recorded  # type: ignore[method-assign]
        with claim(Caller(name="ann")):
            await followed.changed("", "a", None)
        assert owners == {""}

    run(state, work)


def test_an_error_of_the_store_reaches_followers(state: State) -> None:
    async def work() -> None:
        followed = ResponseWatch(state)
        await state.put("", JOB_KIND, "a", Job())
        waiting = asyncio.create_task(followed.over("", "a"))
        await polls(state, 2)
        call = state.call

        async def fail(function: Any) -> Any:
            raise StoreError("the disk is gone")

        state.call = fail  # type: ignore[method-assign]
        with pytest.raises(StoreError, match="the disk is gone"):
            await waiting
        state.call = call  # type: ignore[method-assign]
        waiting = asyncio.create_task(followed.over("", "a"))
        await state.delete("", JOB_KIND, "a")
        await waiting

    run(state, work)


def test_a_client_that_leaves_is_followed_no_more(state: State) -> None:
    async def work() -> None:
        followed = ResponseWatch(state)
        await state.put("", JOB_KIND, "a", Job())
        waiting = asyncio.create_task(followed.over("", "a"))
        await polls(state, 2)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert not followed.waiters and followed.polling is not None
        await followed.polling

    run(state, work)
