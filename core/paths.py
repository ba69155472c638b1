"""File paths: resolve those of configs and requests, and write files without overwriting."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ostro.core.errors import CheckpointError, UsageError


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
