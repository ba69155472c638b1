"""File paths: resolve them, read files that may be hostile, and write without overwriting."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ostro.core.errors import CheckpointError, UsageError

MAX_BYTES = 256_000_000
"""Limit on a file that is read as a whole, in bytes; the largest tokenizers have a tenth of it."""

# A pipe is opened without waiting for a writer. Windows translates line ends without O_BINARY.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def resolve_path(path: Path) -> Path:
    """Make a path absolute and resolve its symbolic links; missing parts are kept unchanged.

    Raises OSError for a loop of links and ValueError for a NUL character. `Path.resolve` raises
    RuntimeError for a loop before Python 3.13, and returns a path inside the loop from 3.13 on.
    """
    found = os.path.realpath(path)
    try:
        os.stat(found)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise
    return Path(found)


def open_regular(path: str | Path) -> BinaryIO:
    """Open a regular file to read its bytes.

    Raises OSError, also for a pipe, a socket, a folder and a device: opening a pipe waits until a
    writer appears, and the content of a device has no end.
    """
    if stat.S_ISREG(os.stat(path).st_mode):  # opening a device may have effects
        descriptor = os.open(path, _FLAGS)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):  # it may have been replaced
            return os.fdopen(descriptor, "rb")
        os.close(descriptor)
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_regular(path: str | Path, limit: int = MAX_BYTES) -> bytes:
    """Read a regular file. Raises OSError as `open_regular`, and for more than `limit` bytes."""
    with open_regular(path) as file:
        # One byte more than the limit, since the file may grow.
        is_large = os.fstat(file.fileno()).st_size > limit
        if is_large or len(data := file.read(limit + 1)) > limit:
            raise OSError(errno.EFBIG, f"larger than {limit // 10**6} MB", str(path))
    return data


def reason_of(error: Exception) -> str:
    """The text of an error, without the number and the path of an OSError."""
    return str(getattr(error, "strerror", None) or error)


@contextmanager
def atomic_path(file: Path) -> Iterator[Path]:
    """A temporary path to write to; renamed to `file` on success, removed on failure.

    Raises CheckpointError if it cannot be written, for example on a full disk.
    """
    path = file.with_name(f"{file.name}.part")
    try:
        yield path
        os.replace(path, file)
    except OSError as error:
        raise CheckpointError(
            f"{file.name} cannot be written: {error.strerror}; free disk space and run it again"
        ) from error
    finally:
        path.unlink(missing_ok=True)


def refuse_existing(path: Path) -> None:
    """Raise UsageError if the path exists: outputs are never overwritten."""
    if path.exists():
        raise UsageError(f"{path} exists; remove it, or name another folder with -o")
