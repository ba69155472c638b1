"""Documents of a server that outlive a request: responses, conversations, files and batches.

`State` calls the store that `--store` selects from one thread, so that the event loop never waits
for it; the owners of calls take turns (`core/turns.py`). Values are msgspec structs, stored as
JSON. Every document ends with the retention time.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, BinaryIO, Generic, TypeVar

import msgspec

from ostro.core.errors import (
    DocumentNotFound,
    OstroError,
    RequestError,
    StoreConflict,
    StoreError,
    Unsupported,
    UsageError,
)
from ostro.core.plugins.manager import PluginManager
from ostro.core.plugins.task_errors import task_errors
from ostro.core.records import Store, resolve
from ostro.core.store import BlobWriter, Document, DocumentStore, StoreUsage
from ostro.core.turns import OWNER, FairThreads
from ostro.entrypoints.operations.documents.held_documents import HeldDocuments
from ostro.entrypoints.operations.documents.store_limits import StoreLimits
from ostro.entrypoints.operations.requests.decoding import json_aside

log = logging.getLogger(__name__)
NONE = "none"
"""The value of `--store` for a server without state."""
RETENTION = 30 * 86400.0
"""Seconds for which documents are kept by default."""
SWEEP_SECONDS = 600.0
"""Interval at which expired documents are deleted. They are never returned."""
ATTEMPTS = 20
"""Attempts to change a document that other requests change at the same time."""
CHUNK = 1 << 20
"""Bytes that are read or written at a time."""
PAGE_BYTES = 8 << 20
"""Limit on the documents of one page of a list whose documents can be large."""
CURSOR = re.compile(r"[a-z_-]{0,32}[0-9a-f]{32}")
"""An id: a prefix and 32 hexadecimal digits, as `new_id` makes it."""
Count = Callable[[int], object]
"""Called with the bytes of documents before they are decoded. It may raise."""
T = TypeVar("T")
V = TypeVar("V", bound=msgspec.Struct)


@dataclass(frozen=True)
class StoredValue(Generic[V]):
    """A value and its document."""

    value: V
    document: Document


@dataclass(frozen=True)
class Page(Generic[V]):
    """A part of a list, and whether more follows."""

    items: list[StoredValue[V]]
    has_more: bool


class State:
    """The documents of a server. Its methods raise

    Unsupported       if the server has no store
    StoreError        if the store does not work
    DocumentNotFound  for a document that is missing, expired or another owner's
    """

    def __init__(
        self,
        open: Callable[[], DocumentStore] | None = None,
        retention: float | None = RETENTION,
        limit: int | None = None,
    ) -> None:
        """open: opens the store; None for a server without state. It is called in a thread, again
        after a failure. retention: seconds after which documents end, None for no limit. limit: on
        the bytes of all documents.
        """
        self._open, self.retention = open, retention
        self.limits, self.held = StoreLimits(limit), HeldDocuments()
        self._store: DocumentStore | None = None
        self._thread, self._calls = FairThreads(1, "store"), set[asyncio.Future[Any]]()
        self._sweeping: asyncio.Task[None] | None = None

    @property
    def enabled(self) -> bool:
        """Whether the server has a store."""
        return self._open is not None

    async def start(self) -> None:
        """Open the store and begin to delete expired documents.

        A store that does not work is logged; the server goes on without it. Raises UsageError for
        an unsafe location.
        """
        if not self.enabled:
            return
        try:
            await self.call(lambda store: None)
        except StoreError as error:
            log.error("%s; requests that need the store get status 503", error)
        self._sweeping = asyncio.create_task(self._sweep())

    async def close(self) -> None:
        """Close the store after the calls in progress."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        while self._calls:
            await asyncio.wait(self._calls)
        await asyncio.wrap_future(self._thread.submit("", self._close))
        self._thread.close()

    def require(self) -> None:
        """Raise Unsupported if the server has no store."""
        if self._open is None:
            raise Unsupported(
                "the request needs stored documents, and this server has no store; "
                "start it with --store memory or --store FOLDER"
            )

    async def call(self, function: Callable[[DocumentStore], T]) -> T:
        """Run a function of the store in the store's thread."""
        self.require()
        work = self._thread.submit(OWNER.get(), partial(self._run, function))
        call = asyncio.wrap_future(work)
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return await call

    def lifetime(self, seconds: float | None) -> float | None:
        """Return the lifetime of a document in seconds: at most the retention time."""
        limits = [limit for limit in (seconds, self.retention) if limit is not None]
        return min(limits, default=None)

    async def put(
        self,
        owner: str,
        kind: str,
        id: str,
        value: msgspec.Struct,
        *,
        expected: int | None = None,
        lifetime: float | None = None,
        blob: AsyncBlob | None = None,
        limited: bool = False,
    ) -> int:
        """Store a value and return its version.

        limited: raise StoreLimitReached or StoreFull instead of exceeding a limit of the owner or
        the server. What a server writes for an accepted request only counts.

        expected: as of `DocumentStore.put`. lifetime: seconds; at most the retention time, which is
        also its default. Raises StoreConflict.
        """
        now, seconds = time.time(), self.lifetime(lifetime)

        def put(store: DocumentStore) -> int:
            document = Document(
                owner=owner,
                kind=kind,
                id=id,
                body=msgspec.json.encode(value),
                created=now,
                expires=None if seconds is None else now + seconds,
                blob="" if blob is None else blob.name,
            )
            nbytes = len(document.body) + (0 if blob is None else blob.size)
            if limited:
                self.limits.check(store, owner, 1, nbytes)
            version = store.put(document, expected=expected)
            if version == 1:
                self.limits.add(owner, 1, nbytes)
            else:  # it replaces a document
                self.limits.forget()
            return version

        return await self.call(put)

    async def require_room(self, owner: str, documents: int, nbytes: int) -> None:
        """Raise StoreLimitReached or StoreFull if there is no room for documents of this size."""
        await self.call(lambda store: self.limits.check(store, owner, documents, nbytes))

    async def require_room_for(self, owner: str, documents: int, content: object) -> None:
        """Raise as `require_room` if there is no room for documents with this content as JSON."""

        def check(store: DocumentStore) -> None:
            nbytes = len(msgspec.json.encode(content)) if self.limits.limits(owner) else 0
            self.limits.check(store, owner, documents, nbytes)

        await self.call(check)

    async def room(self, owner: str) -> float:
        """Return the bytes that an owner may still store, infinity without a limit.

        Raises StoreLimitReached or StoreFull if there is no room for a document.
        """
        return await self.call(lambda store: self.limits.room(store, owner))

    async def get(
        self, owner: str, kind: str, id: str, type: type[V], *, count: Count | None = None
    ) -> StoredValue[V]:
        """Return a document and its value. count: see `Count`; it is called if there is one."""
        document = await self.call(lambda store: store.get(owner, kind, id))
        if document is None:
            raise not_found(id)
        if count is not None:
            count(len(document.body))
        return await json_aside(len(document.body), partial(decode, document, type))

    async def list(
        self,
        owner: str | None,
        kind: str,
        type: type[V],
        *,
        after: str | None = None,
        limit: int = 20,
        descending: bool = True,
        max_bytes: int | None = None,
        count: Count | None = None,
    ) -> Page[V]:
        """Return at most `limit` documents after the id `after`, newest first if `descending`.

        No owner selects those of all owners. max_bytes: limit on the bytes of the documents, of
        which there is at least one. count: as in `get`. Raises RequestError for an invalid cursor.
        """
        if after is not None and not CURSOR.fullmatch(after):
            raise RequestError(f"{after!r:.80} is not an id of this list", param="after")

        def read(store: DocumentStore) -> tuple[Sequence[Document], bool]:
            listed = partial(store.list, owner, kind, descending=descending)
            if max_bytes is None:
                documents = listed(after=after, limit=limit + 1)
                return documents[:limit], len(documents) > limit
            return bounded_page(listed, after, limit, max_bytes)

        documents, has_more = await self.call(read)
        nbytes = sum(len(document.body) for document in documents)
        if count is not None:
            count(nbytes)
        items = await json_aside(nbytes, lambda: [decode(document, type) for document in documents])
        return Page(items, has_more)

    async def change(
        self,
        owner: str,
        kind: str,
        id: str,
        type: type[V],
        function: Callable[[V], V],
        *,
        blob: str | None = None,
    ) -> V:
        """Replace a value by `function(value)`, and return the new value.

        The function runs in the store's thread, again if another server changed the document
        meanwhile. It may return its argument to leave the document as it is. The document keeps
        its creation and end, and its blob unless `blob` names another one. Raises StoreConflict
        after many attempts.
        """

        def work(store: DocumentStore) -> V:
            for _ in range(ATTEMPTS):
                document = store.get(owner, kind, id)
                if document is None:
                    raise not_found(id)
                old = decode(document, type).value
                new = function(old)
                if new is old:
                    return new
                body, kept = msgspec.json.encode(new), document.blob if blob is None else blob
                changed = replace(document, body=body, blob=kept)
                with suppress(StoreConflict):
                    store.put(changed, expected=document.version)
                    return new
            raise StoreConflict(f"{id!r:.80} changes too often; retry")

        return await self.call(work)

    async def delete(self, owner: str, kind: str, id: str | None = None) -> int:
        """Delete a document, or all of this owner and kind. Return their count."""

        def delete(store: DocumentStore) -> int:
            self.limits.forget()
            return store.delete(owner, kind, id)

        return await self.call(delete)

    async def usage(self) -> Sequence[StoreUsage]:
        """Return the count and bytes of the documents by owner and kind."""
        return await self.call(lambda store: store.usage())

    @asynccontextmanager
    async def writing_blob(self) -> AsyncIterator[AsyncBlob]:
        """Yield a blob to write to. It is committed at the end, and deleted after an error."""
        blob = AsyncBlob(await self.call(lambda store: store.create_blob()))
        try:
            yield blob
            await asyncio.to_thread(blob.writer.commit)
        except BaseException:
            await asyncio.shield(asyncio.to_thread(blob.writer.discard))
            raise

    async def discard_blob(self, blob: AsyncBlob) -> None:
        """Delete a blob whose document could not be written."""
        await asyncio.shield(asyncio.to_thread(blob.writer.discard))

    async def open_blob(self, document: Document) -> BinaryIO:
        """Open the blob of a document. Raises DocumentNotFound if it has none any more."""
        try:
            return await self.call(lambda store: store.open_blob(document.blob))
        except StoreError:
            # Another request may have deleted the document since it was read.
            key = (document.owner, document.kind, document.id)
            if await self.call(lambda store: store.get(*key)) is None:
                raise not_found(document.id) from None
            raise

    def _run(self, function: Callable[[DocumentStore], T]) -> T:
        """Call a function, in the store's thread. Raises StoreError for an unexpected exception."""
        try:
            with task_errors():
                if self._store is None:
                    assert self._open is not None
                    self._store = self._open()
                return function(self._store)
        except StoreError as error:
            if not isinstance(error, StoreConflict):
                log.error("%s", error)
            raise
        except OstroError:
            raise
        except Exception as error:
            log.exception("the store has failed")
            raise StoreError(f"the store has failed: {type(error).__name__}") from error

    def _close(self) -> None:
        if self._store is not None:
            self._store.close()

    async def _sweep(self) -> None:
        """Delete expired documents until cancelled."""
        while True:
            try:
                await self.call(lambda store: store.expire())
            except OstroError as error:
                log.warning("expired documents were not deleted: %s", error)
            await asyncio.sleep(SWEEP_SECONDS)


class AsyncBlob:
    """A blob that is being written; `name` belongs into its document."""

    def __init__(self, writer: BlobWriter) -> None:
        self.writer, self.name, self.size = writer, writer.name, 0

    async def write(self, data: bytes) -> None:
        """Append bytes."""
        await asyncio.to_thread(self.writer.write, data)
        self.size += len(data)


async def read_chunks(file: BinaryIO) -> AsyncIterator[bytes]:
    """Yield the bytes of a file and close it."""
    with file:
        while data := await asyncio.to_thread(file.read, CHUNK):
            yield data


def not_found(id: str) -> DocumentNotFound:
    return DocumentNotFound(f"there is no {id!r:.80}; it may be deleted or expired")


def bounded_page(
    listed: Callable[..., Sequence[Document]], after: str | None, limit: int, max_bytes: int
) -> tuple[Sequence[Document], bool]:
    """Return a page of documents, and whether more follow; see `State.list`.

    listed: lists documents, as `DocumentStore.list`. It is called for one document at a time: how
    large the next one is shows when it is read.
    """
    documents, nbytes = list[Document](), 0
    while following := listed(after=after, limit=1):
        nbytes += len(following[0].body)
        if documents and (len(documents) == limit or nbytes > max_bytes):
            return documents, True
        documents += following
        after = following[0].id
    return documents, False


def decode(document: Document, type: type[V]) -> StoredValue[V]:
    """Return a document with its value. Raises StoreError for an invalid body."""
    try:
        return StoredValue(msgspec.json.decode(document.body, type=type), document)
    except msgspec.MsgspecError as error:
        raise StoreError(f"the stored document {document.id!r:.80} is invalid: {error}") from error


def open_state(
    location: str, retention: float | None, plugins: PluginManager, limit: int | None = None
) -> State:
    """Return the state of a server for a value of `--store`. The store is not opened yet.

    limit: on the bytes of all documents.

    Raises UsageError for a location that no plugin claims.
    """
    if location == NONE:
        return State()
    record = find_store(location, plugins)
    return State(partial(resolve(record.open), location), retention, limit)


def find_store(location: str, plugins: PluginManager) -> Store:
    """Return the store that claims a location. Raises UsageError if there is none."""
    record = plugins.claimant("stores", lambda each: each.claims(location), location)
    if record is None:
        known = ", ".join(each.usage for each in plugins.collect("stores").values())
        raise UsageError(f"--store {location}: no plugin has such a store; expected {known}")
    assert isinstance(record, Store)
    return record
