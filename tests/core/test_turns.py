"""Owners take turns: in queues, in threads, and in the preparation of prompts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest

from ostro.core.errors import Overloaded
from ostro.core.preparation import PromptExecutor
from ostro.core.turns import OWNER, FairThreads, Turns


def test_owners_take_turns_and_keep_their_order() -> None:
    turns = Turns[str]()
    for item in ("a1", "a2", "a3", "b1", "b2", "c1"):
        turns.add(item[0], item)
    assert turns.take(lambda owner: owner == "b") == ("b", "b1")
    assert turns.take(lambda owner: owner == "z") is None
    taken = []
    while (following := turns.take()) is not None:
        taken.append(following[1])
    assert taken == ["a1", "c1", "b2", "a2", "a3"] and not turns


class Gate:
    """Work that waits for its gate, and notes that it has begun."""

    def __init__(self) -> None:
        self.begun, self.open = list[str](), threading.Event()
        self.changed = threading.Condition()

    def work(self, name: str) -> Callable[[], str]:
        def run() -> str:
            with self.changed:
                self.begun.append(name)
                self.changed.notify_all()
            assert self.open.wait(60)
            return name

        return run

    def wait(self, count: int) -> list[str]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.begun) >= count, 60)
            return [*self.begun]


def test_work_of_another_owner_does_not_wait() -> None:
    gate, threads = Gate(), FairThreads(3, "test")
    futures = [threads.submit("a", gate.work(f"a{i}")) for i in range(20)]
    assert sorted(gate.wait(2)) == ["a0", "a1"]
    futures.append(threads.submit("b", gate.work("b0")))
    assert gate.wait(3)[2] == "b0"
    futures += [threads.submit("b", gate.work("b1")), threads.submit("c", gate.work("c0"))]
    gate.open.set()
    assert [future.result(60) for future in futures[-3:]] == ["b0", "b1", "c0"]
    assert [future.result(60) for future in futures[:20]] == [f"a{i}" for i in range(20)]
    # b1 and c0 came last of 23 and began as soon as it was the turn of their owners.
    assert max(gate.begun.index("b1"), gate.begun.index("c0")) < 10
    threads.close()


def test_one_thread_serves_all_owners() -> None:
    threads = FairThreads(1, "test")
    assert [threads.submit(owner, lambda: 7).result(60) for owner in "abab"] == [7] * 4
    threads.close()


class Timed:
    """One thread whose clock is `now`. Work takes the seconds that it is submitted with."""

    def __init__(self) -> None:
        self.now, self.done, self.gate = 0.0, list[str](), Gate()
        self.threads = FairThreads(1, "test", clock=lambda: self.now)
        # What is submitted meanwhile waits.
        self.futures: list[Future[Any]] = [self.threads.submit("first", self.gate.work("first"))]

    def submit(self, owner: str, seconds: float, then: Callable[[], object] = lambda: 0) -> None:
        def run() -> None:
            self.now += seconds
            self.done.append(owner)
            then()

        self.futures.append(self.threads.submit(owner, run))

    def finish(self) -> str:
        """The owners in the order of their work."""
        self.gate.open.set()
        for future in self.futures:  # more are added meanwhile
            future.result(60)
        self.threads._pool.shutdown()
        assert not self.threads._used  # nothing runs: all begin anew
        return "".join(self.done)


def test_owners_get_the_same_time() -> None:
    """Short work does not wait for one long work of another owner each time."""
    timed = Timed()
    for _ in range(3):
        timed.submit("a", 2.0)
    for _ in range(8):
        timed.submit("b", 0.5)
    assert timed.finish() == "abbbbabbbba"


def test_an_owner_that_was_absent_keeps_its_time() -> None:
    """One that submits each work when the one before has ended gets no more than its share."""
    timed = Timed()
    timed.submit("a", 1.0)
    timed.submit("b", 0.25, lambda: timed.submit("a", 1.0))
    for _ in range(7):
        timed.submit("b", 0.25)
    assert timed.finish() == "abbbbabbbb"


def test_a_new_owner_has_no_more_than_its_share_either() -> None:
    timed = Timed()
    for _ in range(3):
        timed.submit("a", 1.0)
    timed.submit("b", 1.0, lambda: [timed.submit("c", 1.0) for _ in range(3)])
    assert timed.finish() == "abcacac"


def test_work_that_is_cancelled_is_dropped_and_errors_are_raised() -> None:
    gate, threads = Gate(), FairThreads(2, "test")

    def fail() -> None:
        raise SystemExit(3)

    first = threads.submit("a", gate.work("first"))
    dropped = [threads.submit("a", gate.work("dropped")) for _ in range(5)]
    failing = threads.submit("a", fail)
    last = threads.submit("a", gate.work("last"))
    assert all(future.cancel() for future in dropped)
    gate.open.set()
    assert (first.result(60), last.result(60)) == ("first", "last")
    with pytest.raises(SystemExit):
        failing.result(60)
    assert gate.begun == ["first", "last"]
    threads.close()


def test_what_waits_is_cancelled_at_the_end() -> None:
    gate, threads = Gate(), FairThreads(2, "test")
    first: Future[str] = threads.submit("a", gate.work("first"))
    waiting = threads.submit("a", gate.work("waiting"))
    gate.wait(1)
    threads.close()
    gate.open.set()
    assert first.result(60) == "first"
    with pytest.raises(CancelledError):
        waiting.result(60)


def test_the_prompts_of_one_owner_leave_room_for_others() -> None:
    """Its conversations of ten thousand messages kept the chats of all others waiting."""
    gate = Gate()

    async def prepare(executor: PromptExecutor, owner: str, name: str, size: int) -> str:
        OWNER.set(owner)  # in the context of this task
        return await executor.run(size, gate.work(name))

    async def main() -> None:
        executor = PromptExecutor(threads=3, max_bytes=75)
        tasks = [asyncio.create_task(prepare(executor, "a", f"a{i}", 25)) for i in range(3)]
        await asyncio.to_thread(gate.wait, 2)
        with pytest.raises(Overloaded):
            await asyncio.create_task(prepare(executor, "a", "a3", 1))
        tasks.append(asyncio.create_task(prepare(executor, "b", "b0", 25)))
        assert (await asyncio.to_thread(gate.wait, 3))[2] == "b0"
        with pytest.raises(Overloaded):
            await asyncio.create_task(prepare(executor, "b", "b1", 1))
        gate.open.set()
        assert await asyncio.gather(*tasks) == ["a0", "a1", "a2", "b0"]
        assert executor.used == 0 and not executor.owners

    asyncio.run(main())
