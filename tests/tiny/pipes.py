"""Pipes in place of files: a reader that waits for a writer fails the test, and is released."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SECONDS = 1.0
"""Time after which a reader has hung."""


@contextmanager
def pipe(path: Path) -> Iterator[None]:
    """A pipe at a path, in place of the file there. Raises AssertionError if a reader hung."""
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    ended, hung = threading.Event(), threading.Event()

    def release() -> None:
        while not ended.wait(SECONDS):
            with suppress(OSError):  # without a reader, the pipe cannot be opened
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
                hung.set()

    thread = threading.Thread(target=release)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        assert not hung.is_set(), f"a reader of {path.name} waited for a writer"
