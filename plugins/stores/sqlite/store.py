"""The SQLite store. Several processes may use one folder: WAL, a busy timeout and transactions.

`PRAGMA secure_delete` overwrites deleted documents with zeros, and a checkpoint empties the
write-ahead log after each deletion, so that no file of the store holds a deleted document. A
version that was replaced stays in the log until `expire`.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from ostro import BlobWriter, Document, DocumentStore, StoreUsage
from ostro.errors import StoreConflict, StoreError, UsageError
from ostro.plugins.stores.sqlite.folder import (
    Blobs,
    Reserve,
    check_file,
    make_file,
    make_private,
)

BUSY_SECONDS = 5.0
"""Time limit for a lock that another process holds."""
APPLICATION, SCHEMA = 0x6F737472, 1
"""`PRAGMA application_id` and `PRAGMA user_version` of the database."""
CLOCK_SECONDS = 300.0
"""Difference between clocks of replicas that counts as normal."""
TABLES = """
CREATE TABLE documents (
    owner TEXT NOT NULL, kind TEXT NOT NULL, id TEXT NOT NULL, body BLOB NOT NULL,
    version INTEGER NOT NULL, created REAL NOT NULL, expires REAL, blob TEXT NOT NULL,
    PRIMARY KEY (owner, kind, id)
);
CREATE INDEX by_kind ON documents (kind, id);
CREATE INDEX by_expiry ON documents (expires) WHERE expires IS NOT NULL;
"""
COLUMNS = "owner, kind, id, body, version, created, expires, blob"
KEY = "owner = ? AND kind = ? AND id = ?"
KEY_BYTES = 1 << 12
"""The most bytes of a document's row besides its body."""
T = TypeVar("T")
LIVE = "(expires IS NULL OR expires > ?)"


def open_store(location: str) -> DocumentStore:
    """Open the store in a folder, which is created if it is missing.

    Raises UsageError for a folder that is not private, StoreError for one that is not usable.
    """
    return SqliteStore(Path(location).expanduser())


class DocumentTooLarge(StoreError):
    """A document exceeds the limit of SQLite on a row."""

    status, code = 413, "request_too_large"


class SqliteStore:
    """A `DocumentStore` in a folder; see `ostro.DocumentStore` for the methods."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.time) -> None:
        """clock: returns seconds since 1970. Raises UsageError and StoreError."""
        self.file, self.clock = folder / "state.db", clock
        make_private(folder)
        self.blobs, self.reserve = Blobs(folder / "blobs"), Reserve(folder / "reserve")
        make_file(self.file)
        for suffix in ("-wal", "-shm", "-journal"):
            with suppress(FileNotFoundError):
                check_file(Path(f"{self.file}{suffix}"))
        with self.reporting():
            self.db = sqlite3.connect(
                self.file, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
        try:
            self.prepare()
        except Exception:
            self.db.close()
            raise
        self.reserve.fill()

    def prepare(self) -> None:
        """Set the options of the connection, and create the tables of a new database."""
        with self.reporting():
            self.db.execute("PRAGMA secure_delete = ON")
            self.db.execute("PRAGMA temp_store = MEMORY")
            with self.writing():
                version = self.pragma("user_version")
                if version == 0 and self.is_empty():
                    for statement in filter(str.strip, TABLES.split(";")):
                        self.db.execute(statement)
                    self.db.execute(f"PRAGMA application_id = {APPLICATION}")
                    self.db.execute(f"PRAGMA user_version = {SCHEMA}")
                elif self.pragma("application_id") != APPLICATION:
                    raise UsageError(f"{self.file} is not a store of ostro; choose another folder")
                elif version != SCHEMA:
                    raise UsageError(
                        f"the store {self.file} has format {version}, this ostro has {SCHEMA}; "
                        "update ostro or choose another folder"
                    )
            self.use_wal()
            self.db.execute("PRAGMA synchronous = NORMAL")

    def use_wal(self) -> None:
        """Switch to write-ahead logging; SQLite itself does not wait for other processes here."""
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                self.db.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
            time.sleep(0.01)

    def pragma(self, name: str) -> int:
        """Return the value of a PRAGMA."""
        return int(self.db.execute(f"PRAGMA {name}").fetchone()[0])

    def is_empty(self) -> bool:
        """Whether the database has no tables."""
        return self.db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Raise StoreError for an error of SQLite."""
        try:
            yield
        except sqlite3.Error as error:
            text = str(error)
            hint = "; move its folder away to begin a new store"
            if "locked" in text or "busy" in text:
                hint = "; another process holds it, retry"
            elif is_full(error):
                hint = "; free disk space"
            raise StoreError(f"{text}{hint}", path=self.file) from error

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Run a block as one transaction, which no other process interleaves."""
        with self.reporting():
            self.db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self.db.execute("ROLLBACK")
                raise

    def put(self, document: Document, /, *, expected: int | None = None) -> int:
        key = (document.owner, document.kind, document.id)
        limit = self.db.getlimit(sqlite3.SQLITE_LIMIT_LENGTH) - KEY_BYTES
        if len(document.body) > limit:
            raise DocumentTooLarge(
                f"a document has {len(document.body)} bytes, and the limit is {limit}; send less"
            )
        with self.writing():
            query = f"SELECT version, blob, {LIVE} FROM documents WHERE {KEY}"
            row = self.db.execute(query, (self.clock(), *key)).fetchone()
            version, blob, live = row or (0, "", False)
            stored = version if live else 0
            if expected not in (None, stored):
                raise StoreConflict(
                    f"{document.id!r:.80} has version {stored}, expected {expected}; read it again"
                )
            values = (document.body, stored + 1, document.created, document.expires, document.blob)
            self.db.execute(
                f"INSERT OR REPLACE INTO documents ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (*key, *values),
            )
        if blob != document.blob:
            self.blobs.delete([blob])
        return int(stored + 1)

    def get(self, owner: str, kind: str, id: str, /) -> Document | None:
        query = f"SELECT {COLUMNS} FROM documents WHERE {KEY} AND {LIVE}"
        with self.reporting():
            row = self.db.execute(query, (owner, kind, id, self.clock())).fetchone()
        return None if row is None else document_of(row)

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
        where = f"kind = ? AND {LIVE}"
        values: list[Any] = [kind, self.clock()]
        if owner is not None:
            where += " AND owner = ?"
            values.append(owner)
        if after is not None:
            where += f" AND id {'<' if descending else '>'} ?"
            values.append(after)
        order = f"id {'DESC' if descending else 'ASC'}"
        query = f"SELECT {COLUMNS} FROM documents WHERE {where} ORDER BY {order} LIMIT ?"
        with self.reporting():
            return [document_of(row) for row in self.db.execute(query, (*values, limit))]

    def delete(self, owner: str, kind: str, id: str | None = None, /) -> int:
        where, values = "owner = ? AND kind = ?", [owner, kind]
        if id is not None:
            where, values = KEY, [owner, kind, id]
        count, blobs = self.despite_full_disk(
            lambda: self.delete_rows(where, values), where, values
        )
        if count:
            self.erase(blobs)
        return count

    def expire(self) -> int:
        now = self.clock()

        def expire() -> tuple[int, Sequence[str]]:
            with self.writing():
                # A document from the future: the clock was set back. Its lifetime begins now.
                self.db.execute(
                    "UPDATE documents SET expires = expires - created + ?, created = ? "
                    "WHERE created > ? AND expires IS NOT NULL",
                    (now, now, now + CLOCK_SECONDS),
                )
                return self.remove("expires <= ?", [now])

        count, blobs = self.despite_full_disk(expire, "expires <= ?", [now])
        self.erase(blobs)
        with self.reporting():
            known = {name for (name,) in self.db.execute("SELECT blob FROM documents")}
        self.blobs.sweep(known)
        return count

    def despite_full_disk(self, work: Callable[[], T], where: str, values: Sequence[Any]) -> T:
        """Return the result of a deletion of rows. On a full disk make room for its log first."""
        try:
            return work()
        except StoreError as error:
            if not (isinstance(error.__cause__, sqlite3.Error) and is_full(error.__cause__)):
                raise
        with self.reporting():
            rows = self.db.execute(f"SELECT blob FROM documents WHERE {where}", values).fetchall()
        self.blobs.delete(name for (name,) in rows)
        self.reserve.release()
        return work()

    def delete_rows(self, where: str, values: Sequence[Any]) -> tuple[int, Sequence[str]]:
        """Delete rows. Return their count and the names of their blobs."""
        with self.writing():
            return self.remove(where, values)

    def remove(self, where: str, values: Sequence[Any]) -> tuple[int, Sequence[str]]:
        """Delete rows within a transaction. Return their count and the names of their blobs."""
        rows = self.db.execute(f"SELECT blob FROM documents WHERE {where}", values).fetchall()
        count = self.db.execute(f"DELETE FROM documents WHERE {where}", values).rowcount
        return count, [name for (name,) in rows]

    def erase(self, blobs: Sequence[str]) -> None:
        """Delete the blobs of deleted documents, and empty the write-ahead log."""
        self.blobs.delete(blobs)
        with suppress(sqlite3.Error):  # another process reads; the next checkpoint does it
            self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.reserve.fill()

    def usage(self) -> Sequence[StoreUsage]:
        query = (
            "SELECT owner, kind, count(*), sum(length(body)), min(created), "
            f"group_concat(blob, ' ') FROM documents WHERE {LIVE} GROUP BY owner, kind"
        )
        with self.reporting():
            rows = self.db.execute(query, (self.clock(),)).fetchall()
        return [
            StoreUsage(
                owner=owner,
                kind=kind,
                documents=count,
                nbytes=nbytes + sum(map(self.blobs.size, blobs.split())),
                oldest=oldest,
            )
            for owner, kind, count, nbytes, oldest, blobs in rows
        ]

    def create_blob(self) -> BlobWriter:
        return self.blobs.create()

    def open_blob(self, name: str, /) -> BinaryIO:
        return self.blobs.open(name)

    def compact(self) -> None:
        with self.reporting():
            self.db.execute("VACUUM")
            self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self.db.close()


def is_full(error: sqlite3.Error) -> bool:
    """Whether an error comes from a full disk."""
    return "full" in str(error) or "I/O" in str(error)


def document_of(row: Sequence[Any]) -> Document:
    """Return the document of a row."""
    owner, kind, id, body, version, created, expires, blob = row
    return Document(
        owner=owner,
        kind=kind,
        id=id,
        body=bytes(body),
        version=version,
        created=created,
        expires=expires,
        blob=blob,
    )
