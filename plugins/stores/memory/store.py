"""The store in memory. Its size is bounded: new documents replace the oldest ones.

They replace those of the owner who stores the most. So an owner keeps what it stores as long as
that is less than its share of the limit.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import merge
from io import BytesIO
from itertools import islice
from secrets import token_hex
from threading import RLock
from typing import BinaryIO

from ostro import BlobWriter, Document, DocumentStore, StoreUsage
from ostro.errors import StoreConflict, StoreError

LIMIT = 1 << 30
"""Limit on the bytes of all documents with their blobs. Blobs being written may have half of it in
addition.
"""
OVERHEAD = 512
"""Approximate bytes of a document besides its body."""
Key = tuple[str, str, str]


def open_store(location: str) -> DocumentStore:
    """Return a new, empty store. The location is "memory"."""
    return MemoryStore()


@dataclass
class Share:
    """The documents of an owner, oldest first, and their bytes with blobs."""

    nbytes: int = 0
    keys: dict[Key, None] = field(default_factory=dict)


class MemoryBlob:
    """A blob that is being written; see `ostro.BlobWriter`."""

    def __init__(self, store: MemoryStore) -> None:
        self.name, self.store, self.nbytes = token_hex(16), store, 0
        self.data = BytesIO()

    def write(self, data: bytes, /) -> None:
        """Append bytes. Raises StoreError beyond the limit of the store."""
        self.store.reserve(len(data))
        self.nbytes += len(data)
        self.data.write(data)

    def commit(self) -> None:
        """Make the blob readable."""
        with self.store.lock:
            # BytesIO gives and takes bytes without a copy, for which it would hold the GIL.
            self.store.blobs[self.name] = self.data.getvalue()
            self.store.unreferenced.add(self.name)
            self.data, self.nbytes = BytesIO(), 0

    def discard(self) -> None:
        """Delete the blob."""
        with self.store.lock:
            self.store.writing -= self.nbytes
            self.data, self.nbytes = BytesIO(), 0
            if self.name in self.store.unreferenced:
                self.store.writing -= len(self.store.reference(self.name))
                del self.store.blobs[self.name]


class MemoryStore:
    """A `DocumentStore` in memory; see `ostro.DocumentStore` for the methods."""

    def __init__(self, limit: int = LIMIT, *, clock: Callable[[], float] = time.time) -> None:
        """limit: on the bytes of all documents and blobs. clock: returns seconds since 1970."""
        self.limit, self.clock = limit, clock
        self.documents: dict[Key, Document] = {}
        self.kinds: dict[str, dict[str, list[str]]] = {}  # ids in order, by kind and owner
        self.shares: dict[str, Share] = {}  # by owner
        self.blobs: dict[str, bytes] = {}
        self.unreferenced: set[str] = set()  # blobs that no document has yet
        self.nbytes = 0  # of documents with their blobs
        self.writing = 0  # of blobs without a document
        self.lock = RLock()

    def reserve(self, count: int) -> None:
        """Count bytes of a blob that is being written. Raises StoreError beyond the limit."""
        with self.lock:
            if self.writing + count > self.limit // 2:
                raise StoreError(
                    f"the store in memory has a limit of {self.limit // 2} bytes on the files that "
                    "arrive at once; try again later, or start the server with --store FOLDER"
                )
            self.writing += count

    def reference(self, name: str) -> bytes:
        """Return a blob that a document gets or that is deleted."""
        self.unreferenced.remove(name)
        return self.blobs[name]

    def put(self, document: Document, /, *, expected: int | None = None) -> int:
        key = (document.owner, document.kind, document.id)
        with self.lock:
            old = self.documents.get(key)
            stored = old.version if old is not None and self.is_live(old) else 0
            if expected not in (None, stored):
                raise StoreConflict(
                    f"{document.id!r:.80} has version {stored}, expected {expected}; read it again"
                )
            if self.size(document) > self.limit:
                raise StoreError(f"the store in memory has a limit of {self.limit} bytes")
            if old is not None:
                self.remove(key, keep=document.blob)
            if document.blob in self.unreferenced:
                self.writing -= len(self.reference(document.blob))
            self.add(key, replace(document, version=stored + 1))
        return stored + 1

    def add(self, key: Key, document: Document) -> None:
        """Add a document, and remove others beyond the limit."""
        owner, kind, id = key
        self.documents[key] = document
        insort(self.kinds.setdefault(kind, {}).setdefault(owner, []), id)
        share, size = self.shares.setdefault(owner, Share()), self.size(document)
        share.keys[key] = None
        share.nbytes += size
        self.nbytes += size
        while self.nbytes > self.limit:
            most = max(self.shares.values(), key=lambda each: each.nbytes)
            self.remove(next(iter(most.keys)))

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
            owners = self.kinds.get(kind, {})
            groups = [
                following(ids, name, after, descending)
                for name, ids in owners.items()
                if owner in (None, name)
            ]
            found = (
                self.documents[name, kind, id] for id, name in merge(*groups, reverse=descending)
            )
            return [*islice(filter(self.is_live, found), limit)]

    def delete(self, owner: str, kind: str, id: str | None = None, /) -> int:
        with self.lock:
            ids = [id] if id is not None else [*reversed(self.kinds.get(kind, {}).get(owner, []))]
            keys = [key for each in ids if (key := (owner, kind, each)) in self.documents]
            return self.remove_all(keys)

    def expire(self) -> int:
        with self.lock:
            keys = [key for key, each in self.documents.items() if not self.is_live(each)]
            return self.remove_all(keys)

    def remove_all(self, keys: Sequence[Key]) -> int:
        """Remove documents and return their count."""
        for key in keys:
            self.remove(key)
        return len(keys)

    def remove(self, key: Key, keep: str = "") -> None:
        """Remove a document, and its blob unless that is `keep`."""
        owner, kind, id = key
        found, share = self.documents.pop(key), self.shares[owner]
        size = self.size(found)
        self.nbytes -= size
        share.nbytes -= size
        del share.keys[key]
        if not share.keys:
            del self.shares[owner]
        ids = self.kinds[kind][owner]
        del ids[bisect_left(ids, id)]
        if not ids:
            del self.kinds[kind][owner]
            if not self.kinds[kind]:
                del self.kinds[kind]
        if found.blob != keep:
            self.blobs.pop(found.blob, None)

    def size(self, document: Document) -> int:
        """Return the approximate bytes of a document with its blob."""
        return OVERHEAD + len(document.body) + len(self.blobs.get(document.blob, b""))

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
        for each in (self.documents, self.kinds, self.shares, self.blobs, self.unreferenced):
            each.clear()


def following(
    ids: Sequence[str], owner: str, after: str | None, descending: bool
) -> Iterator[tuple[str, str]]:
    """Yield the ids that follow `after`, with their owner; `ids` are in order."""
    if descending:
        end = len(ids) if after is None else bisect_left(ids, after)
        places = range(end - 1, -1, -1)
    else:
        places = range(0 if after is None else bisect_right(ids, after), len(ids))
    for place in places:
        yield ids[place], owner
