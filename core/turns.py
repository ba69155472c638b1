"""Turns of owners: however much one of them queues, the work of others is soon next."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from threading import Lock
from typing import Any, Generic, TypeVar

OWNER: ContextVar[str] = ContextVar("OWNER", default="")
"""The owner of what the running task queues: the name of an API key, "" without keys."""
T = TypeVar("T")


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

    def __init__(self, threads: int, name: str) -> None:
        """name: the start of the threads' names."""
        self._threads, self._most = threads, max(1, threads - 1)
        self._pool = ThreadPoolExecutor(threads, name)
        self._lock = Lock()
        self._turns = Turns[tuple[Future[Any], Callable[[], Any]]]()
        self._running = Counter[str]()

    def submit(self, owner: str, work: Callable[[], T]) -> Future[T]:
        """Run the work of an owner in a thread. Cancelling the future drops it before its turn."""
        future = Future[T]()
        with self._lock:
            self._turns.add(owner, (future, work))
            self._start()
        return future

    def close(self) -> None:
        """Cancel what waits; threads end with their work."""
        with self._lock:
            while (waiting := self._turns.take()) is not None:
                waiting[1][0].cancel()
        self._pool.shutdown(wait=False)

    def _start(self) -> None:
        """Give free threads to the owners whose turn it is. The lock is held."""
        while self._running.total() < self._threads:
            following = self._turns.take(lambda owner: self._running[owner] < self._most)
            if following is None:
                return
            owner, (future, work) = following
            if future.set_running_or_notify_cancel():
                self._running[owner] += 1
                self._pool.submit(self._run, owner, future, work)

    def _run(self, owner: str, future: Future[Any], work: Callable[[], Any]) -> None:
        try:
            result = work()
        except BaseException as error:
            self._end(owner)
            future.set_exception(error)
        else:
            self._end(owner)
            future.set_result(result)

    def _end(self, owner: str) -> None:
        """Give the thread of an owner to the next one."""
        with self._lock:
            self._running[owner] -= 1
            self._running += Counter()  # drops owners without work
            self._start()
