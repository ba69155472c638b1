"""Turns of owners: however much one of them queues, the work of others is soon next."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from threading import Lock
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

    def take(self, may: Callable[[str], bool] = lambda owner: True) -> tuple[str, T] | None:
        """Remove and return the next owner that `may` take an item, and its first item."""
        owner = next(filter(may, self.queues), None)
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
    """

    def __init__(self, threads: int, name: str, most: int | None = None) -> None:
        """name: the start of the threads' names. most: the threads of one owner, if fewer."""
        self._threads, self._most = threads, most or max(1, threads - 1)
        self._pool = ThreadPoolExecutor(threads, name)
        self._lock = Lock()
        self._turns = Turns[Work]()
        self._busy = 0  # threads that work
        self._running: dict[str, int] = {}  # those of each owner

    def submit(self, owner: str, work: Callable[[], T]) -> Future[T]:
        """Run the work of an owner in a thread. Cancelling the future drops it before its turn."""
        future = Future[T]()
        with self._lock:
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

    def _run(self, owner: str, item: Work) -> None:
        """Do the work of an owner, and then what waits for a thread."""
        following: tuple[str, Work] | None = (owner, item)
        while following is not None:
            owner, (future, work) = following
            if future.set_running_or_notify_cancel():
                try:
                    result = work()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
            following = self._next(owner)

    def _next(self, ended: str) -> tuple[str, Work] | None:
        """Return the work whose turn it is, None if there is none.

        ended: the owner whose work this thread has done.
        """
        with self._lock:
            self._running[ended] -= 1
            if not self._running[ended]:
                del self._running[ended]
            following = self._turns.take(self._may_run) if self._turns else None
            if following is None:
                self._busy -= 1
            else:
                self._running[following[0]] = self._running.get(following[0], 0) + 1
            return following
