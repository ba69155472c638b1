"""Threads that turn requests into prompts, with a limit on the bytes under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TypeVar

from ostro.core.errors import Overloaded

THREADS = 4
MAX_BYTES = 16 << 20
"""Bytes of requests that may wait or be prepared at once; tokenizing takes about 100 times that in
memory and, on one core, several seconds.
"""
T = TypeVar("T")


class PromptExecutor:
    """Prepares prompts in threads of its own.

    Work that has not begun is dropped when its caller is cancelled. Safe to use from several event
    loops.
    """

    def __init__(self, threads: int = THREADS, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.used = 0
        self._lock = Lock()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="prompt")

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """The result of `work`, which prepares a request of `size` bytes.

        A request of more than half the limit counts as that much: one of them is prepared at a
        time, whatever its size, and there is room for small ones beside it. Raises Overloaded where
        other requests leave no room.
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
        future.add_done_callback(lambda _: self._release(size))
        return await asyncio.wrap_future(future)

    def _release(self, size: int) -> None:
        with self._lock:
            self.used -= size


EXECUTOR = PromptExecutor()
"""The one that all pipelines of this process share."""
