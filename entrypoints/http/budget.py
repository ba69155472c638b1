"""A limit on the bytes of all request bodies that the processes of a server hold at once."""

from __future__ import annotations

import asyncio
import ctypes
import mmap
from contextlib import suppress

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from ostro.entrypoints.http.errors import CLOSE

MAX_HELD = 1 << 30
"""Limit in bytes: twice the largest body, a form."""
SMALL = 64 << 10
"""Bytes that every body may have even above the limit: large bodies cannot block small ones."""
TRIM_SECONDS = 1.0
"""Seconds from the end of a request with a large body until freed memory is returned."""
MAP_BYTES = 512 << 10
"""Blocks of at least this size are mapped, and so returned to the system when they are freed."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt."""
COUNT_BYTES = 8
"""Size of the count of one process in the file of `map_counts`."""
BODY_KEY = "ostro.body"
"""The key of a request's `HeldBody` in its scope."""


class BodyBudget:
    """ASGI middleware that counts the bytes of bodies from arrival to the end of the response.

    A parsed body lives as long as its request and needs at least as much memory as its bytes.
    """

    def __init__(self, app: ASGIApp, counts: memoryview | None = None, own: int = 0) -> None:
        """counts: the bytes that each process holds, see `map_counts`; None for one process. own:
        the index of this process, which changes no other count.
        """
        self.app = app
        self.counts, self.own = counts or memoryview(bytearray(COUNT_BYTES)).cast("q"), own
        self.trim: asyncio.TimerHandle | None = None
        map_large_blocks()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request and release the bytes of its body."""
        held = scope[BODY_KEY] = HeldBody(self)
        try:
            await self.app(scope, receive, send)
        finally:
            if held.size > SMALL and self.trim is None:
                self.trim = asyncio.get_running_loop().call_later(TRIM_SECONDS, self.start_trim)
            held.release()

    def add(self, size: int) -> None:
        """Add to the bytes that this process holds."""
        self.counts[self.own] += size

    def start_trim(self) -> None:
        """Return freed memory in a thread: this takes milliseconds."""
        self.trim = None
        asyncio.get_running_loop().run_in_executor(None, trim_memory)


class HeldBody:
    """The bytes of one request's body."""

    def __init__(self, budget: BodyBudget) -> None:
        self.budget, self.size = budget, 0

    @classmethod
    def of(cls, request: Request) -> HeldBody:
        """Return the counter that `BodyBudget` attached to a request."""
        held: HeldBody = request.scope[BODY_KEY]
        return held

    def add(self, size: int) -> None:
        """Add bytes to the count.

        Raises HTTPException 503 if this body exceeds `SMALL` and all bodies exceed `MAX_HELD`.
        """
        budget = self.budget
        if self.size + size > SMALL and sum(budget.counts) + size > MAX_HELD:
            self.release()
            message = f"the bodies of all requests exceed {MAX_HELD >> 20} MiB; try again"
            raise HTTPException(503, message, CLOSE)
        self.size += size
        budget.add(size)

    def release(self) -> None:
        """Subtract the bytes of this body from the count."""
        self.budget.add(-self.size)
        self.size = 0


def map_counts(file: int) -> memoryview:
    """Return the counts of several processes, `COUNT_BYTES` each, in a file that they all map.

    file: a descriptor.
    """
    return memoryview(mmap.mmap(file, 0)).cast("q")


def trim_memory() -> None:
    """Return freed memory to the system; without effect on systems without glibc.

    glibc keeps what other threads than the first have freed. Tokenizing a large prompt needs a
    hundred times its bytes.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def map_large_blocks() -> None:
    """Let the allocator of this process map blocks of `MAP_BYTES`; without effect without glibc.

    glibc raises this threshold up to 32 MB when large blocks are freed. Later blocks are parts of
    arenas, and each keeps up to twice the threshold at its end, which `malloc_trim` leaves there.
    """
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, MAP_BYTES)
        mallopt(M_TRIM_THRESHOLD, MAP_BYTES)
