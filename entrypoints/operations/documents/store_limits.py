"""Limits on what is stored: of each key, and of the whole server."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from ostro.core.errors import OstroError
from ostro.core.store import DocumentStore
from ostro.entrypoints.operations.access.keys import Key

REFRESH_SECONDS, MOMENT = 10.0, 1.0
"""Age at which counts are read again, before a document is accepted and before one is refused.

Other servers may use the same store.
"""


class StoreLimitReached(OstroError):
    """What the caller's key may store is stored already."""

    status, code = 429, "store_limit_reached"


class StoreFull(OstroError):
    """What the server may store is stored already."""

    status, code = 507, "store_full"


@dataclass
class StoredSize:
    """The documents of a caller, and their bytes with blobs."""

    documents: int = 0
    nbytes: int = 0


class StoreLimits:
    """The limits of a server and its keys, and what is stored. One thread uses it at a time.

    key_of: returns the key of a name, None for a caller without limits of its own.
    """

    def __init__(
        self, total: int | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """total: limit on the bytes of all documents, None for no limit."""
        self.total, self.clock = total, clock
        self.key_of: Callable[[str], Key | None] = lambda name: None
        self.stored: dict[str, StoredSize] = {}
        self.read_at = -inf

    def check(self, store: DocumentStore, owner: str, documents: int, nbytes: int) -> None:
        """Raise StoreLimitReached or StoreFull unless an owner may store this much more."""
        if not self.limits(owner):
            return
        if self.clock() - self.read_at >= REFRESH_SECONDS:
            self.read(store)
        error = self.refusal(owner, documents, nbytes)
        if error is not None and self.clock() - self.read_at >= MOMENT:
            self.read(store)
            error = self.refusal(owner, documents, nbytes)
        if error is not None:
            raise error

    def limits(self, owner: str) -> bool:
        """Whether any limit applies to an owner."""
        key = self.key_of(owner)
        own = key is not None and (key.stored_bytes or key.stored_documents)
        return bool(own) or self.total is not None

    def refusal(self, owner: str, documents: int, nbytes: int) -> OstroError | None:
        """Return the error of an owner who may not store this much more."""
        key, own = self.key_of(owner), self.stored.get(owner, StoredSize())
        if key is not None and key.stored_documents is not None:
            if own.documents + documents > key.stored_documents:
                return StoreLimitReached(
                    f"this API key may store {key.stored_documents} documents (stored_documents) "
                    f"and stores {own.documents}; delete some"
                )
        if key is not None and key.stored_bytes is not None:
            if own.nbytes + nbytes > key.stored_bytes:
                return StoreLimitReached(
                    f"this API key may store {key.stored_bytes} bytes (stored_bytes) and "
                    f"stores {own.nbytes} bytes; delete some"
                )
        if self.total is not None and self.nbytes + nbytes > self.total:
            return StoreFull(
                f"the server may store {self.total} bytes (--store-limit) and stores "
                f"{self.nbytes} bytes; delete some"
            )
        return None

    def room(self, store: DocumentStore, owner: str) -> float:
        """Return the bytes that an owner may still store. Raises as `check`, for one document."""
        self.check(store, owner, 1, 1)
        key, found = self.key_of(owner), inf
        if key is not None and key.stored_bytes is not None:
            found = key.stored_bytes - self.stored.get(owner, StoredSize()).nbytes
        return found if self.total is None else min(found, self.total - self.nbytes)

    @property
    def nbytes(self) -> int:
        """The bytes of all documents."""
        return sum(each.nbytes for each in self.stored.values())

    def read(self, store: DocumentStore) -> None:
        """Count what is stored."""
        self.stored = {}
        for each in store.usage():
            self.add(each.owner, each.documents, each.nbytes)
        self.read_at = self.clock()

    def add(self, owner: str, documents: int, nbytes: int) -> None:
        """Count documents that were stored."""
        found = self.stored.setdefault(owner, StoredSize())
        found.documents += documents
        found.nbytes += nbytes

    def forget(self) -> None:
        """Read the counts again before the next document: some were deleted or replaced."""
        self.read_at = -inf
