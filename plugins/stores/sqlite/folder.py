"""A private folder, and the blobs in it: one file each, readable by its owner only."""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import stat
import time
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

from ostro.errors import StoreError, UsageError

log = logging.getLogger(__name__)
ABANDONED_SECONDS = 24 * 3600.0
"""Age at which a blob without a document is deleted; a request writes its blob in less time."""
RESERVE_BYTES, RESERVE_SHARE = 1 << 20, 64
"""Size of the reserve, and the least free space as a multiple of it at which it is written."""
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
NAME = re.compile(r"[0-9a-f]{32}")


def make_private(folder: Path) -> None:
    """Create a folder, or check an existing one and remove the permissions of other users.

    Raises UsageError for a symbolic link, a file, a folder of another user, and a folder with
    contents that other users could have written. Raises StoreError if it cannot be created.
    """
    with reporting(folder):
        with suppress(FileExistsError):  # another process may create it at the same time
            folder.mkdir(mode=0o700, parents=True)
        found = folder.lstat()
        if stat.S_ISLNK(found.st_mode):
            raise UsageError(f"the store {folder} is a symbolic link; give the path of the folder")
        if not stat.S_ISDIR(found.st_mode):
            raise UsageError(f"the store {folder} is not a folder; give the path of a folder")
        check_owner(folder, found)
        if os.name == "posix" and found.st_mode & 0o077:
            if found.st_mode & 0o022 and any(folder.iterdir()):
                raise UsageError(
                    f"other users can write to the store {folder} and may have placed files there; "
                    "check its contents, then run: chmod 700"
                )
            log.warning("the store %s was accessible to other users; its mode is now 0700", folder)
            folder.chmod(0o700)


def make_file(file: Path) -> None:
    """Create an empty private file, or check an existing one. Raises UsageError for a link."""
    with reporting(file):
        with suppress(FileExistsError):
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY | NO_FOLLOW, 0o600))
        check_file(file)


def check_file(file: Path) -> None:
    """Raise UsageError for a link or another user's file; remove permissions of other users."""
    found = file.lstat()
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        raise UsageError(f"{file} is a link or not a file; remove it")
    check_owner(file, found)
    if os.name == "posix" and found.st_mode & 0o077:
        file.chmod(0o600)


def check_owner(path: Path, found: os.stat_result) -> None:
    """Raise UsageError if a path belongs to another user."""
    if hasattr(os, "geteuid") and found.st_uid != os.geteuid():
        raise UsageError(f"{path} belongs to another user; choose another folder for --store")


@contextmanager
def reporting(path: Path) -> Iterator[None]:
    """Raise StoreError for an OSError."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        hint = "; free disk space" if full else ""
        raise StoreError(f"{error.strerror or type(error).__name__}{hint}", path=path) from error


class FileBlob:
    """A blob that is being written to a file; see `ostro.BlobWriter`."""

    def __init__(self, folder: Path) -> None:
        self.name = token_hex(16)
        self.path = folder / self.name
        with reporting(self.path):
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | NO_FOLLOW
            self.file = os.fdopen(os.open(self.path, flags, 0o600), "wb", buffering=0)

    def write(self, data: bytes, /) -> None:
        """Append bytes. Raises StoreError on a full disk."""
        rest = memoryview(data)
        with reporting(self.path):
            while rest:
                rest = rest[self.file.write(rest) or 0 :]

    def commit(self) -> None:
        """Write the file to the disk and close it."""
        with reporting(self.path), self.file:
            os.fsync(self.file.fileno())

    def discard(self) -> None:
        """Delete the file."""
        with suppress(OSError):
            self.file.close()
        with suppress(OSError):
            self.path.unlink(missing_ok=True)


class Reserve:
    """A file that is deleted on a full disk, to make room for the log of a deletion."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self) -> None:
        """Write the file, unless it exists or the disk is nearly full."""
        with suppress(OSError):
            if shutil.disk_usage(self.path.parent).free < RESERVE_SHARE * RESERVE_BYTES:
                return
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | NO_FOLLOW
            with os.fdopen(os.open(self.path, flags, 0o600), "wb") as file:
                file.write(bytes(RESERVE_BYTES))

    def release(self) -> None:
        """Delete the file."""
        with suppress(OSError):
            self.path.unlink()


class Blobs:
    """The folder of the blobs."""

    def __init__(self, folder: Path) -> None:
        """Raises UsageError and StoreError as `make_private`."""
        self.folder = folder
        make_private(folder)

    def create(self) -> FileBlob:
        """Begin a blob."""
        return FileBlob(self.folder)

    def open(self, name: str) -> BinaryIO:
        """Open a blob for reading. Raises StoreError for a missing file and for a link."""
        path = self.path(name)
        with reporting(path):
            descriptor = os.open(path, os.O_RDONLY | NO_FOLLOW)
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                raise StoreError("a blob is not a file", path=path)
            return os.fdopen(descriptor, "rb")

    def path(self, name: str) -> Path:
        """Return the path of a blob. Raises StoreError for a name that no blob can have."""
        if not NAME.fullmatch(name):
            raise StoreError(f"invalid blob name {name!r:.80}", path=self.folder)
        return self.folder / name

    def size(self, name: str) -> int:
        """Return the bytes of a blob, 0 for a missing one."""
        try:
            return self.path(name).lstat().st_size if name else 0
        except OSError:
            return 0

    def delete(self, names: Iterable[str]) -> None:
        """Delete blobs. A missing blob, or one that cannot be deleted, is left to `sweep`."""
        for name in filter(None, names):
            with suppress(OSError):
                self.path(name).unlink()

    def sweep(self, known: Container[str]) -> None:
        """Delete the blobs that no document refers to and that are not being written."""
        now = time.time()
        with reporting(self.folder), os.scandir(self.folder) as entries:
            for entry in entries:
                age = abs(now - entry.stat(follow_symlinks=False).st_mtime)
                if entry.name not in known and age > ABANDONED_SECONDS:
                    with suppress(OSError):
                        os.unlink(entry.path)
