"""Limits on the stored documents that requests hold in memory.

A small request can refer to large documents. Their bytes are counted before they are decoded, and
count until the request ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from ostro.core.errors import Overloaded
from ostro.entrypoints.operations.access.admission import CLAIM, Claim
from ostro.entrypoints.operations.access.quotas import RateLimited, RequestTooLarge

MAX_REQUEST = 50 << 20
"""Limit in bytes for one request: that of the largest JSON body."""
MAX_CALLER = 256 << 20
"""Limit in bytes for all requests of one caller together."""
MAX_ALL = 1 << 30
"""Limit in bytes for the requests of all callers."""
RETRY_SECONDS = 1.0
"""When to repeat a request that a limit of its caller has refused, in seconds."""


class HeldDocuments:
    """The bytes of stored documents that requests hold, in all and by the name of the caller."""

    def __init__(
        self, request: int = MAX_REQUEST, caller: int = MAX_CALLER, total: int = MAX_ALL
    ) -> None:
        """request, caller, total: limits in bytes, as `MAX_REQUEST`, `MAX_CALLER`, `MAX_ALL`."""
        self.request, self.caller, self.total = request, caller, total
        self.nbytes = 0
        self.callers = Counter[str]()

    def add(self, nbytes: int) -> None:
        """Count bytes that the running request holds until it ends.

        A request may hold one document of any size. Outside of a client's request nothing is
        counted. Raises RequestTooLarge, RateLimited or Overloaded, one for each limit.
        """
        own = CLAIM.get()
        if own is None:
            return
        if own.document_bytes and own.document_bytes + nbytes > self.request:
            raise RequestTooLarge(
                f"the stored documents that the request refers to exceed {self.request} bytes; "
                "refer to fewer or smaller ones"
            )
        self.require(own.caller.name, nbytes)
        if not own.document_bytes:
            own.releases.append(partial(self.release, own))
        own.document_bytes += nbytes
        self.count(own.caller.name, nbytes)

    def add_own(self, nbytes: int) -> None:
        """Count bytes of the running request itself, which was stored, until it ends.

        They are none of the bytes that it refers to. Raises RateLimited or Overloaded as `add`.
        """
        own = CLAIM.get()
        if own is None:
            return
        self.require(own.caller.name, nbytes)
        own.releases.append(partial(self.count, own.caller.name, -nbytes))
        self.count(own.caller.name, nbytes)

    def require(self, name: str, nbytes: int) -> None:
        """Raise RateLimited or Overloaded if a caller may not hold this many bytes more."""
        if self.callers[name] + nbytes > self.caller:
            raise RateLimited(
                f"the requests of this API key hold {self.callers[name]} bytes of stored documents "
                f"and may hold {self.caller}; try again",
                RETRY_SECONDS,
            )
        if self.nbytes + nbytes > self.total:
            raise Overloaded(
                f"all requests hold {self.nbytes} bytes of stored documents, the limit is "
                f"{self.total}; try again"
            )

    def count(self, name: str, nbytes: int) -> None:
        """Add to the bytes that a caller holds."""
        self.nbytes += nbytes
        self.callers[name] += nbytes
        self.callers += Counter()  # drops callers without bytes

    @contextmanager
    def counting(self) -> Iterator[Callable[[int], None]]:
        """Yield a function like `add` whose bytes count until the end of the block."""
        own, counted = CLAIM.get(), 0

        def add(nbytes: int) -> None:
            nonlocal counted
            self.add(nbytes)
            counted += nbytes

        try:
            yield add
        finally:
            if own is not None:
                self.release(own, counted)

    def release(self, own: Claim, nbytes: int | None = None) -> None:
        """Stop counting bytes of a request: all of them at its end."""
        released = own.document_bytes if nbytes is None else nbytes
        own.document_bytes -= released
        self.count(own.caller.name, -released)
