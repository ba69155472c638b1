"""The prompt executor: threads that tokenize requests, with a limit on their total size."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TypeVar

from ostro.core.errors import Overloaded

THREADS = 4
MAX_BYTES = 16 << 20
"""Total bytes of the requests that wait or are prepared. Tokenizing needs about 100 times as much
memory and, on one core, several seconds for that.
"""
T = TypeVar("T")


class PromptExecutor:
    """Prepares prompts in its own threads.

    Cancelling the caller drops work that has not started. Several event loops may use it.
    """

    def __init__(self, threads: int = THREADS, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.used = 0
        self._lock = Lock()  # `used` changes in event loops and in worker threads
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="prompt")

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """Run `work`, which prepares a request of `size` bytes, and return its result.

        A request of more than half the limit counts as just that much. So one such request is
        prepared at a time, whatever its size, and small ones still fit beside it. Raises Overloaded
        if other requests leave no room.
        """
        size = min(size, self.max_bytes // 2 + 1)
        with self._lock:
            if self.used + size > self.max_bytes:
                raise Overloaded(
                    f"prompts of {self.used >> 20} MiB are being prepared, at most "
                    f"{self.max_bytes >> 20} MiB at once; try again"
                )
            self.used += size
        future = self._threads.submit(work)
        # The future's callback and not `finally`: a cancelled caller leaves while the work goes on.
        future.add_done_callback(lambda _: self._release(size))
        return await asyncio.wrap_future(future)

    def _release(self, size: int) -> None:
        """Subtract the size of a request that is prepared or was cancelled."""
        with self._lock:
            self.used -= size


EXECUTOR = PromptExecutor()
"""The executor that all pipelines of this process share."""
