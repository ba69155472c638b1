"""Turns of owners: however much one of them queues, the work of others is soon next.

Threads give owners the same time, not the same number of turns: an owner whose work is short does
much of it for one long work of another owner.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from threading import Lock
from time import monotonic
from typing import Any, Generic, TypeVar

OWNER: ContextVar[str] = ContextVar("OWNER", default="")
"""The owner of what the running task queues: the name of an API key, "" without keys."""
T = TypeVar("T")
Work = tuple[Future[Any], Callable[[], Any]]
"""A function, and the future of its result."""


class Turns(Generic[T]):
    """A queue whose owners take turns. The items of one owner stay in order."""

    def __init__(self) -> None:
        self.queues: dict[str, deque[T]] = {}  # the next owner is first

    def __bool__(self) -> bool:
        return bool(self.queues)

    def add(self, owner: str, item: T) -> None:
        """Add an item of an owner."""
        self.queues.setdefault(owner, deque()).append(item)

    def take(
        self,
        may: Callable[[str], bool] = lambda owner: True,
        used: Callable[[str], float] = lambda owner: 0.0,
    ) -> tuple[str, T] | None:
        """Remove and return the next owner that `may` take an item, and its first item.

        It is the one that has `used` least; of several the one whose turn was longest ago.
        """
        owner = min(filter(may, self.queues), key=used, default=None)
        if owner is None:
            return None
        queue = self.queues.pop(owner)
        item = queue.popleft()
        if queue:
            self.queues[owner] = queue
        return owner, item


class FairThreads:
    """Threads in which the work of owners runs in turn. Methods are thread-safe.

    One owner gets all threads but one at most, so that the first work of another one does not wait.
    A turn is that of the owner whose work has taken the least time while others waited.
    """

    def __init__(
        self,
        threads: int,
        name: str,
        most: int | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """name: the start of the threads' names. most: the threads of one owner, if fewer.

        clock: seconds, with which work is timed.
        """
        self._threads, self._most, self._clock = threads, most or max(1, threads - 1), clock
        self._pool = ThreadPoolExecutor(threads, name)
        self._lock = Lock()
        self._turns = Turns[Work]()
        self._busy = 0  # threads that work
        self._running: dict[str, int] = {}  # those of each owner
        self._used: dict[str, float] = {}
        """Seconds of each owner. One that was absent begins with those of the owner with least."""

    def submit(self, owner: str, work: Callable[[], T]) -> Future[T]:
        """Run the work of an owner in a thread. Cancelling the future drops it before its turn."""
        future = Future[T]()
        with self._lock:
            if owner not in self._running and owner not in self._turns.queues:
                self._used[owner] = max(self._used.get(owner, 0.0), self._least())
            # If a thread is free, only work of owners that have their threads waits.
            starts = self._busy < self._threads and self._may_run(owner)
            if starts:
                self._busy += 1
                self._running[owner] = self._running.get(owner, 0) + 1
            else:
                self._turns.add(owner, (future, work))
        if starts:
            self._pool.submit(self._run, owner, (future, work))
        return future

    def close(self) -> None:
        """Cancel what waits; threads end with their work."""
        with self._lock:
            while (waiting := self._turns.take()) is not None:
                waiting[1][0].cancel()
        self._pool.shutdown(wait=False)

    def _may_run(self, owner: str) -> bool:
        return self._running.get(owner, 0) < self._most

    def _least(self) -> float:
        """The least seconds of an owner whose work runs or waits; 0 without one."""
        seconds = [self._used[owner] for owner in {*self._running, *self._turns.queues}]
        return min(seconds, default=0.0)

    def _forget(self) -> None:
        """Forget absent owners, except those with more seconds than one that is present."""
        present, least = {*self._running, *self._turns.queues}, self._least()
        for owner in [*self._used]:
            if not present or (owner not in present and self._used[owner] <= least):
                del self._used[owner]

    def _run(self, owner: str, item: Work) -> None:
        """Do the work of an owner, and then what waits for a thread."""
        following: tuple[str, Work] | None = (owner, item)
        while following is not None:
            owner, (future, work) = following
            begun = self._clock()
            if future.set_running_or_notify_cancel():
                try:
                    result = work()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
            following = self._next(owner, self._clock() - begun)

    def _next(self, ended: str, seconds: float) -> tuple[str, Work] | None:
        """Return the work whose turn it is, None if there is none.

        ended: the owner whose work this thread has done, in so many `seconds`.
        """
        with self._lock:
            self._used[ended] += seconds
            self._running[ended] -= 1
            if not self._running[ended]:
                del self._running[ended]
                self._forget()
            following = None
            if self._turns:
                following = self._turns.take(self._may_run, lambda owner: self._used[owner])
            if following is None:
                self._busy -= 1
            else:
                self._running[following[0]] = self._running.get(following[0], 0) + 1
            return following
