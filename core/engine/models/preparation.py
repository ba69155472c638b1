"""Prepares requests for their logits processors, in threads, while other requests go on.

The owners of requests take turns (`core/turns.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any

from ostro.core.turns import FairThreads

THREADS = 3
"""Two slow requests of one owner run beside those of others; more would slow down the engine's
thread.
"""

Prepared = dict[str, Any]
"""The results of `prepare` of the processors of a request, by the processor's name."""


@dataclass
class RequestPreparer:
    """The preparations under way, by the id of their request. Methods belong to one thread.

    A thread that ends a preparation puts it on the queue `finished`, then calls `wake`.
    """

    wake: Callable[[], None] = lambda: None
    threads: FairThreads = field(default_factory=lambda: FairThreads(THREADS, "ostro-prepare"))
    running: dict[str, Future[Prepared]] = field(default_factory=dict)
    finished: SimpleQueue[tuple[str, Future[Prepared]]] = field(default_factory=SimpleQueue)

    @property
    def busy(self) -> bool:
        """Whether a request is being prepared."""
        return bool(self.running)

    @property
    def has_finished(self) -> bool:
        """Whether `poll` has something to return."""
        return not self.finished.empty()

    def start(self, id: str, owner: str, work: Callable[[], Prepared]) -> None:
        """Run the work of an owner's request in a thread."""
        future = self.running[id] = self.threads.submit(owner, work)
        future.add_done_callback(partial(self.end, id))

    def end(self, id: str, future: Future[Prepared]) -> None:
        """Called in the thread that ends a preparation."""
        self.finished.put((id, future))
        self.wake()

    def cancel(self, id: str) -> None:
        """Forget a request; its work ends in its thread."""
        if (future := self.running.pop(id, None)) is not None:
            future.cancel()

    def poll(self) -> list[tuple[str, Future[Prepared]]]:
        """The preparations that ended since the last call, without cancelled ones."""
        ended = []
        while not self.finished.empty():
            id, future = self.finished.get()
            if self.running.get(id) is future:
                del self.running[id]
                ended.append((id, future))
        return ended

    def close(self) -> None:
        """Forget all requests; threads end with their work."""
        self.running.clear()
        self.threads.close()
