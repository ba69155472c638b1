"""The SQLite store: several processes, private files, damage, full disks, deletion."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ostro import Document
from ostro.errors import OstroError, StoreError, UsageError
from ostro.plugins.stores.sqlite.folder import ABANDONED_SECONDS, RESERVE_BYTES
from ostro.plugins.stores.sqlite.store import SqliteStore, open_store

Make = Callable[..., Document]
SECRET = b"the quick brown secret"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_document_beyond_the_limit_of_sqlite_is_too_large(folder: Path, make: Make) -> None:
    store = SqliteStore(folder)
    store.db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1 << 20)
    store.put(make("small", b"x" * (1 << 19)))
    with pytest.raises(StoreError, match="has 1048576 bytes, and the limit is") as refused:
        store.put(make("large", b"x" * (1 << 20)))
    assert refused.value.status == 413 and "move its folder" not in str(refused.value)
    assert [each.id for each in store.list("ann", "note")] == ["small"]
    store.close()


def child(folder: Path, code: str, *, wait: bool = True) -> subprocess.Popen[str]:
    """Run code in a process, with `store` open in the folder and `make(id, body)`."""
    head = """
    import sys
    from pathlib import Path
    from ostro import Document, errors
    from ostro.plugins.stores.sqlite.store import SqliteStore
    store = SqliteStore(Path(sys.argv[1]))
    def make(id, body=b"{}", blob=""):
        return Document(owner="ann", kind="note", id=id, body=body, blob=blob)
    """
    program = textwrap.dedent(head) + textwrap.dedent(code)
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if wait:
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
    return process


def test_documents_outlive_the_process(folder: Path, make: Make) -> None:
    child(folder, "store.put(make('a', b'1'))")
    store = SqliteStore(folder)
    store.put(make("b", b"2"))
    store.close()
    found = SqliteStore(folder).list("ann", "note")
    assert [(each.id, each.body) for each in found] == [("a", b"1"), ("b", b"2")]


@pytest.mark.process
def test_a_killed_process_loses_no_finished_write(folder: Path) -> None:
    code = """
    import os
    for n in range(10_000):
        store.put(make(f"{n:05d}", b"x" * 1000))
        print(n, flush=True)
    """
    process = child(folder, code, wait=False)
    assert process.stdout is not None
    for _ in range(50):
        last = process.stdout.readline()
    process.kill()
    rest = process.stdout.read().split("\n")  # `communicate` would lose lines that were buffered
    process.communicate(timeout=60)
    last = next((line for line in reversed(rest[:-1]) if line), last)
    store = SqliteStore(folder)
    count = len(store.list("ann", "note", limit=20_000))
    assert count in (int(last) + 1, int(last) + 2)
    assert store.db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.process
def test_processes_share_a_store_without_losing_a_write(folder: Path, make: Make) -> None:
    """Two processes count in one document by compare-and-swap, from before the file exists."""
    code = """
    for _ in range(100):
        while True:
            old = store.get("ann", "note", "n")
            count = int(old.body) + 1 if old else 1
            try:
                store.put(make("n", str(count).encode()), expected=old.version if old else 0)
                break
            except errors.StoreConflict:
                pass
    """
    processes = [child(folder, code, wait=False) for _ in range(2)]
    for process in processes:
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
    found = SqliteStore(folder).get("ann", "note", "n")
    assert found is not None and (found.body, found.version) == (b"200", 200)


def test_a_lock_that_is_held_too_long_is_an_error(
    folder: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ostro.plugins.stores.sqlite.store.BUSY_SECONDS", 0.0)
    first, second = SqliteStore(folder), SqliteStore(folder)
    with first.writing():
        with pytest.raises(StoreError, match="another process holds it"):
            second.put(make())
        assert second.get("ann", "note", "a") is None
    assert second.put(make()) == 1


def holds(folder: Path, text: bytes) -> list[str]:
    """The files below a folder that contain a text."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path.name for path in files if text in path.read_bytes()]


@pytest.mark.parametrize("how", ["delete", "expire", "replace"])
def test_deletion_leaves_nothing_in_the_files(
    folder: Path, make: Make, clock: Callable[[], float], how: str
) -> None:
    store = SqliteStore(folder, clock=clock)
    writer = store.create_blob()
    writer.write(SECRET * 10)
    writer.commit()
    for n in range(30):
        store.put(make(f"other{n}", bytes(500)))
    store.put(make("a", SECRET * 1000, lifetime=60, blob=writer.name))
    assert len(holds(folder, SECRET)) >= 2
    if how == "delete":
        store.delete("ann", "note", "a")
    elif how == "replace":
        store.put(make("a", b"new"))
        store.expire()
    else:
        clock.now += 60  # type: ignore[attr-defined]
        store.expire()
    assert not holds(folder, SECRET)
    assert len(store.list("ann", "note", limit=50)) >= 30


def test_files_are_private(folder: Path, make: Make) -> None:
    before = os.umask(0)
    try:
        store = SqliteStore(folder)
        writer = store.create_blob()
        writer.commit()
        store.put(make())
        modes = {path.name: mode(path) for path in folder.rglob("*") if path.is_file()}
    finally:
        os.umask(before)
    assert mode(folder) == mode(folder / "blobs") == 0o700
    assert modes.keys() == {
        "state.db",
        "state.db-wal",
        "state.db-shm",
        "reserve",
        writer.name,
    }
    assert set(modes.values()) == {0o600}


def test_permissions_of_other_users_are_removed(
    folder: Path, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    SqliteStore(folder).close()
    folder.chmod(0o755)
    (folder / "state.db").chmod(0o644)
    SqliteStore(folder).put(make())
    assert mode(folder) == 0o700 and mode(folder / "state.db") == 0o600
    assert "its mode is now 0700" in caplog.text


def test_a_folder_that_other_users_filled_is_refused(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    SqliteStore(folder).close()  # still empty
    folder.chmod(0o777)
    with pytest.raises(UsageError, match="other users can write"):
        SqliteStore(folder)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="requires POSIX users")
def test_a_folder_of_another_user_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    monkeypatch.setattr("os.geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(UsageError, match="belongs to another user"):
        SqliteStore(folder)


@pytest.mark.parametrize("name", ["", "blobs", "state.db", "state.db-wal", "state.db-shm"])
def test_planted_links_are_refused(folder: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / "target"
    is_folder = name in ("", "blobs")
    target.mkdir(mode=0o700) if is_folder else target.write_bytes(b"")
    if name:
        folder.mkdir(mode=0o700)
    (folder / name if name else folder).symlink_to(target)
    with pytest.raises(UsageError, match="link"):
        SqliteStore(folder)
    assert target.is_dir() or target.read_bytes() == b""


def test_a_hard_link_is_refused(folder: Path, tmp_path: Path) -> None:
    folder.mkdir(mode=0o700)
    (tmp_path / "theirs").write_bytes(b"")
    (folder / "state.db").hardlink_to(tmp_path / "theirs")
    with pytest.raises(UsageError, match="link"):
        SqliteStore(folder)


def test_a_link_in_the_place_of_a_blob_is_not_followed(folder: Path, tmp_path: Path) -> None:
    store, outside = SqliteStore(folder), tmp_path / "outside"
    outside.write_bytes(SECRET)
    for name, target in (("0" * 32, outside), ("1" * 32, tmp_path)):
        (folder / "blobs" / name).symlink_to(target)
        with pytest.raises(StoreError):
            store.open_blob(name)


@pytest.mark.parametrize("content", [b"not a database" * 1000, b"SQLite format 3\0" + bytes(5000)])
def test_an_overwritten_database_is_an_error(folder: Path, content: bytes) -> None:
    folder.mkdir(mode=0o700)
    (folder / "state.db").write_bytes(content)
    with pytest.raises(OstroError, match=r"state\.db"):
        SqliteStore(folder)
    assert (folder / "state.db").read_bytes() == content


def test_damage_while_open_is_an_error_and_no_crash(folder: Path, make: Make) -> None:
    store = SqliteStore(folder)
    for n in range(200):
        store.put(make(f"{n:03d}", bytes(2000)))
    store.close()
    with (folder / "state.db").open("r+b") as file:
        file.seek(5000)
        file.write(b"\xff" * 100_000)
    store = SqliteStore(folder)
    with pytest.raises(StoreError, match="begin a new store"):
        for n in range(200):
            store.get("ann", "note", f"{n:03d}")
    with pytest.raises(StoreError):
        store.put(make("000"))


def test_a_database_cut_short_is_an_error(folder: Path, make: Make) -> None:
    store = SqliteStore(folder)
    for n in range(200):
        store.put(make(f"{n:03d}", bytes(2000)))
    store.close()
    os.truncate(folder / "state.db", 20_000)
    with pytest.raises(StoreError):
        store = SqliteStore(folder)
        for n in range(200):
            store.get("ann", "note", f"{n:03d}")
        store.put(make("new"))


def test_the_database_of_another_program_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    with sqlite3.connect(folder / "state.db") as other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()
    with pytest.raises(UsageError, match="not a store of ostro"):
        SqliteStore(folder)


def test_the_store_of_a_newer_version_is_refused(folder: Path) -> None:
    store = SqliteStore(folder)
    store.db.execute("PRAGMA user_version = 2")
    store.close()
    with pytest.raises(UsageError, match="format 2"):
        SqliteStore(folder)


def test_a_file_in_the_place_of_the_folder_is_refused(folder: Path) -> None:
    folder.write_text("mine")
    with pytest.raises(UsageError, match="not a folder"):
        open_store(str(folder))
    with pytest.raises(StoreError):
        open_store(str(folder / "below"))
    assert folder.read_text() == "mine"


@pytest.mark.process
def test_a_full_disk_is_an_error_and_loses_nothing(folder: Path) -> None:
    """The child's files are limited to 300 kB; it goes on reading and deleting."""
    code = """
    import resource, signal
    store.put(make("first", b"kept"))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
    written = 0
    try:
        for n in range(100):
            store.put(make(f"{n:03d}", bytes(20_000)))
            written = n + 1
        raise SystemExit("the limit was not reached")
    except errors.StoreError as error:
        assert error.status == 503, error
        print(error)
    writer = store.create_blob()
    try:
        for _ in range(10):
            writer.write(bytes(100_000))
        raise SystemExit("the limit was not reached")
    except errors.StoreError as error:
        assert "free disk space" in str(error), error
    writer.discard()
    assert store.get("ann", "note", "first").body == b"kept"
    assert len(store.list("ann", "note", limit=200)) == written + 1
    assert not list((Path(sys.argv[1]) / "blobs").iterdir())
    """
    child(folder, code)
    store = SqliteStore(folder)
    assert store.db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert store.get("ann", "note", "first") is not None


class FullDisk:
    """A database whose writes fail while a file is there."""

    def __init__(self, db: sqlite3.Connection, file: Path) -> None:
        self.db, self.file = db, file

    def execute(self, text: str, *values: Any) -> Any:
        if text.startswith("DELETE") and self.file.exists():
            raise sqlite3.OperationalError("database or disk is full")
        return self.db.execute(text, *values)

    def close(self) -> None:
        self.db.close()


@pytest.mark.parametrize("name", ["blob", "reserve", None])
@pytest.mark.parametrize("expires", [False, True])
def test_a_full_disk_does_not_prevent_deletions(
    folder: Path, make: Make, clock: Any, name: str | None, expires: bool
) -> None:
    """The log of a deletion gets the space of its blob, or that of the reserve."""
    store = SqliteStore(folder, clock=clock)
    writer = store.create_blob()
    writer.write(b"content")
    writer.commit()
    store.put(make(blob=writer.name, lifetime=60))
    assert (folder / "reserve").stat().st_size == RESERVE_BYTES
    assert (folder / "reserve").stat().st_mode & 0o777 == 0o600
    files = {"blob": folder / "blobs" / writer.name, "reserve": folder / "reserve"}
    store.db = FullDisk(store.db, files.get(name or "", folder))  # type: ignore[assignment]
    clock.now += 100 if expires else 0

    def delete() -> int:
        return store.expire() if expires else store.delete("ann", "note", "a")

    if name is None:
        with pytest.raises(StoreError, match="free disk space"):
            delete()
    else:
        assert delete() == 1
        assert not files["blob"].exists() and files["reserve"].exists()
    store.close()


def test_a_clock_that_is_set_back_does_not_prolong_a_lifetime(
    folder: Path, make: Make, clock: Callable[[], float]
) -> None:
    store = SqliteStore(folder, clock=clock)
    store.put(make("a", lifetime=3600))
    store.put(make("kept"))
    clock.now -= 365 * 86400  # type: ignore[attr-defined]
    assert store.expire() == 0
    clock.now += 3601  # type: ignore[attr-defined]
    assert store.get("ann", "note", "a") is None
    assert store.expire() == 1
    assert store.get("ann", "note", "kept") is not None


def test_a_clock_that_is_a_little_ahead_shortens_no_lifetime(
    folder: Path, make: Make, clock: Callable[[], float]
) -> None:
    """Of two processes, one has written the document and the other deletes what has expired."""
    store = SqliteStore(folder, clock=clock)
    clock.now += 60  # type: ignore[attr-defined]
    store.put(make("a", lifetime=100))
    clock.now -= 60  # type: ignore[attr-defined]
    assert store.expire() == 0
    clock.now += 159  # type: ignore[attr-defined]
    assert store.get("ann", "note", "a") is not None
    clock.now += 1  # type: ignore[attr-defined]
    assert store.expire() == 1


def test_abandoned_blobs_are_deleted_after_a_day(folder: Path, make: Make) -> None:
    store = SqliteStore(folder)
    used, left, recent = (store.create_blob() for _ in range(3))
    for writer in (used, left):
        writer.commit()
    store.put(make(blob=used.name))
    for age, writers in ((-ABANDONED_SECONDS - 60, (used, left)), (-60, (recent,))):
        for writer in writers:
            path = folder / "blobs" / writer.name
            os.utime(path, (path.stat().st_mtime + age,) * 2)
    store.expire()
    recent.commit()
    names = {path.name for path in (folder / "blobs").iterdir()}
    assert names == {used.name, recent.name}
