"""The store in memory. Its size is bounded: a new document replaces the oldest ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import BytesIO
from secrets import token_hex
from threading import RLock
from typing import BinaryIO

from ostro import BlobWriter, Document, DocumentStore, StoreUsage
from ostro.errors import StoreConflict, StoreError

LIMIT = 1 << 30
"""Limit on the bytes of all bodies and blobs."""
OVERHEAD = 512
"""Approximate bytes of a document besides its body."""
Key = tuple[str, str, str]


def open_store(location: str) -> DocumentStore:
    """Return a new, empty store. The location is "memory"."""
    return MemoryStore()


class MemoryBlob:
    """A blob that is being written; see `ostro.BlobWriter`."""

    def __init__(self, store: MemoryStore) -> None:
        self.name, self.store, self.data = token_hex(16), store, bytearray()

    def write(self, data: bytes, /) -> None:
        """Append bytes. Raises StoreError beyond the limit of the store."""
        self.store.reserve(len(data))
        self.data += data

    def commit(self) -> None:
        """Make the blob readable."""
        self.store.blobs[self.name], self.data = self.data, bytearray()

    def discard(self) -> None:
        """Delete the blob."""
        self.store.release(self.data or self.store.blobs.pop(self.name, b""))
        self.data = bytearray()


class MemoryStore:
    """A `DocumentStore` in memory; see `ostro.DocumentStore` for the methods."""

    def __init__(self, limit: int = LIMIT, *, clock: Callable[[], float] = time.time) -> None:
        """limit: on the bytes of all documents and blobs. clock: returns seconds since 1970."""
        self.limit, self.clock = limit, clock
        self.documents: dict[Key, Document] = {}
        self.blobs: dict[str, bytes | bytearray] = {}
        self.nbytes = 0  # of documents, and of blobs, those being written included
        self.lock = RLock()

    def reserve(self, count: int) -> None:
        """Count new bytes, and delete the oldest documents beyond the limit.

        Raises StoreError if the bytes being written exceed the limit on their own.
        """
        with self.lock:
            while self.nbytes + count > self.limit and self.documents:
                self.remove(next(iter(self.documents)))
            if self.nbytes + count > self.limit:
                raise StoreError(f"the store in memory has a limit of {self.limit} bytes")
            self.nbytes += count

    def release(self, data: bytes | bytearray) -> None:
        """Subtract the bytes of a deleted blob."""
        with self.lock:
            self.nbytes -= len(data)

    def put(self, document: Document, /, *, expected: int | None = None) -> int:
        key = (document.owner, document.kind, document.id)
        with self.lock:
            old = self.documents.get(key)
            stored = old.version if old is not None and self.is_live(old) else 0
            if expected not in (None, stored):
                raise StoreConflict(
                    f"{document.id!r:.80} has version {stored}, expected {expected}; read it again"
                )
            if old is not None:
                self.remove(key, keep=document.blob)
            self.reserve(size(document))
            self.documents[key] = replace(document, version=stored + 1)
        return stored + 1

    def get(self, owner: str, kind: str, id: str, /) -> Document | None:
        found = self.documents.get((owner, kind, id))
        return found if found is not None and self.is_live(found) else None

    def list(
        self,
        owner: str | None,
        kind: str,
        /,
        *,
        after: str | None = None,
        limit: int = 100,
        descending: bool = False,
    ) -> Sequence[Document]:
        with self.lock:
            found = [
                each
                for each in self.documents.values()
                if each.kind == kind and owner in (None, each.owner) and self.is_live(each)
            ]
        found.sort(key=lambda each: each.id, reverse=descending)
        if after is not None:
            found = [each for each in found if each.id != after and (each.id < after) == descending]
        return found[:limit]

    def delete(self, owner: str, kind: str, id: str | None = None, /) -> int:
        def chosen(each: Document) -> bool:
            return (each.owner, each.kind) == (owner, kind) and id in (None, each.id)

        return self.remove_all(chosen)

    def expire(self) -> int:
        return self.remove_all(lambda each: not self.is_live(each))

    def remove_all(self, chosen: Callable[[Document], bool]) -> int:
        """Remove documents and return their count."""
        with self.lock:
            keys = [key for key, each in self.documents.items() if chosen(each)]
            for key in keys:
                self.remove(key)
        return len(keys)

    def remove(self, key: Key, keep: str = "") -> None:
        """Remove a document, and its blob unless that is `keep`."""
        found = self.documents.pop(key)
        self.nbytes -= size(found)
        if found.blob != keep:
            self.release(self.blobs.pop(found.blob, b""))

    def is_live(self, document: Document) -> bool:
        """Whether a document is not expired."""
        return document.expires is None or document.expires > self.clock()

    def usage(self) -> Sequence[StoreUsage]:
        groups: dict[tuple[str, str], list[Document]] = {}
        with self.lock:
            for each in filter(self.is_live, self.documents.values()):
                groups.setdefault((each.owner, each.kind), []).append(each)
        return [
            StoreUsage(
                owner=owner,
                kind=kind,
                documents=len(found),
                nbytes=sum(len(each.body) + len(self.blobs.get(each.blob, b"")) for each in found),
                oldest=min(each.created for each in found),
            )
            for (owner, kind), found in sorted(groups.items())
        ]

    def create_blob(self) -> BlobWriter:
        return MemoryBlob(self)

    def open_blob(self, name: str, /) -> BinaryIO:
        try:
            return BytesIO(self.blobs[name])
        except KeyError:
            raise StoreError(f"the blob {name!r:.80} is gone from the store in memory") from None

    def compact(self) -> None:
        """Do nothing: deleted documents leave nothing behind."""

    def close(self) -> None:
        self.documents.clear()
        self.blobs.clear()


def size(document: Document) -> int:
    """Return the approximate bytes of a document without its blob."""
    return OVERHEAD + len(document.body)
