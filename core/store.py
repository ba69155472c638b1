"""State stores: documents that outlive a request, such as responses, files and batches.

A document is identified by its owner, kind and id. `ostro serve --store` selects the store; plugins
yield stores from `ostro_stores`. The server calls a store from one thread only.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from secrets import token_hex
from threading import Lock
from typing import BinaryIO, Protocol

_lock = Lock()
_last = 0


def new_id(prefix: str) -> str:
    """Return `prefix` with 32 hexadecimal digits; ids of one process sort in order of creation.

    The first 13 digits are microseconds since 1970, the other 19 are random.
    """
    global _last
    with _lock:
        _last = max(time.time_ns() // 1000, _last + 1)
        return f"{prefix}{_last:013x}{token_hex(10)[1:]}"


@dataclass(frozen=True, kw_only=True)
class Document:
    """A stored document.

    body     bytes that the store does not interpret; ostro stores JSON
    version  count of the writes of this document; set by the store
    created  seconds since 1970
    expires  time of deletion in seconds since 1970; None keeps the document
    blob     name of the document's blob, deleted with the document; empty without a blob
    """

    owner: str
    kind: str
    id: str
    body: bytes
    version: int = 0
    created: float = 0.0
    expires: float | None = None
    blob: str = ""


@dataclass(frozen=True, kw_only=True)
class StoreUsage:
    """The documents of one owner and kind: their count, bytes with blobs, and oldest creation."""

    owner: str
    kind: str
    documents: int
    nbytes: int
    oldest: float


class BlobWriter(Protocol):
    """A blob that is being written. It is readable after `commit`, and gone after `discard`."""

    name: str

    def write(self, data: bytes, /) -> None:
        """Append bytes."""

    def commit(self) -> None:
        """Finish the blob. A document with `blob=name` must be written next."""

    def discard(self) -> None:
        """Delete the blob."""


class DocumentStore(Protocol):
    """The interface of a store. Every method raises StoreError if the store cannot do its work.

    Another process may use the same store. Methods treat an expired document as missing. One thread
    calls all methods; any thread may read and write a blob.
    """

    def put(self, document: Document, /, *, expected: int | None = None) -> int:
        """Write a document and return its new version. A blob that it replaces is deleted.

        expected: the version to replace, 0 for a document that must not exist, None for any.
        Raises StoreConflict if the stored version is another one.
        """

    def get(self, owner: str, kind: str, id: str, /) -> Document | None:
        """Return a document, None for a missing one."""

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
        """Return at most `limit` documents, ordered by id, that follow the id `after`.

        No owner selects those of all owners. A document with the id `after` need not exist.
        """

    def delete(self, owner: str, kind: str, id: str | None = None, /) -> int:
        """Delete a document, or all of this owner and kind, with their blobs. Return the count."""

    def expire(self) -> int:
        """Delete expired documents and abandoned blobs. Return the count of documents."""

    def usage(self) -> Sequence[StoreUsage]:
        """Return the usage by owner and kind."""

    def create_blob(self) -> BlobWriter:
        """Begin a blob."""

    def open_blob(self, name: str, /) -> BinaryIO:
        """Open a blob for reading. Raises StoreError for a missing one."""

    def compact(self) -> None:
        """Erase what deleted documents leave in files of the store."""

    def close(self) -> None:
        """Close the store."""


class StoreOpener(Protocol):
    """`Store.open`: opens the store at a location. Raises StoreError, and UsageError if unsafe."""

    def __call__(self, location: str, /) -> DocumentStore: ...
