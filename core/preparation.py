"""The prompt executor: threads that render and tokenize requests, with limits on their sizes.

The owners of requests take turns (`core/turns.py`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from threading import Lock
from typing import TypeVar

from ostro.core.errors import Overloaded
from ostro.core.turns import OWNER, FairThreads

THREADS = 5
"""Four for the requests of one owner, and another one for those of others."""
MAX_BYTES = 16 << 20
"""Total bytes of an owner's requests that wait or are prepared; those of all owners together may
have a third more. Tokenizing needs about 100 times as much memory and, on one core, several seconds
for that.
"""
T = TypeVar("T")


class PromptExecutor:
    """Prepares prompts in its own threads.

    Cancelling the caller drops work that has not started. Several event loops may use it.
    """

    def __init__(self, threads: int = THREADS, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.used = 0
        self.owners = Counter[str]()  # bytes of each owner
        self._lock = Lock()  # both change in event loops and in worker threads
        self._threads = FairThreads(threads, "prompt")

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """Run `work`, which prepares a request of `size` bytes, and return its result.

        A request of more than half the limit counts as just that much. So one such request is
        prepared at a time, whatever its size, and small ones still fit beside it. Raises Overloaded
        if other requests leave no room.
        """
        size, owner = min(size, self.max_bytes // 2 + 1), OWNER.get()
        with self._lock:
            room = min(self.max_bytes - self.owners[owner], self.max_bytes // 3 * 4 - self.used)
            if size > room:
                raise Overloaded(
                    f"prompts of {self.used >> 20} MiB are being prepared, at most "
                    f"{self.max_bytes >> 20} MiB at once; try again"
                )
            self.used += size
            self.owners[owner] += size
        future = self._threads.submit(owner, work)
        # The future's callback and not `finally`: a cancelled caller leaves while the work goes on.
        future.add_done_callback(lambda _: self._release(owner, size))
        return await asyncio.wrap_future(future)

    def _release(self, owner: str, size: int) -> None:
        """Subtract the size of a request that is prepared or was cancelled."""
        with self._lock:
            self.used -= size
            self.owners[owner] -= size
            self.owners += Counter()  # drops owners without requests


PREPARATION_EXECUTOR = PromptExecutor()
"""The executor that all pipelines of this process share."""
