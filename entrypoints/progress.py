"""Loading a model: a line on the terminal names the stage; garbage collection is paused."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from ostro.core.settings import ProgressCallback

READING = "reading weights"
"""The end of the stages whose units are bytes."""

BAR_SECONDS = 1.0
"""A stage that lasts longer than this has a bar."""

REDRAW_SECONDS = 0.1
WIDTH = 24


@contextmanager
def loading(stream: TextIO | None = None) -> Iterator[ProgressCallback]:
    """Yield a callback for the stages of loading, which shows them on `stream` (default: stderr).

    Without a terminal nothing is shown. The garbage collector is paused: it would visit the objects
    of all imported modules several times, which is a tenth of the time to start. The objects that
    exist at the end are excluded from later collections.
    """
    stream = stream or sys.stderr
    shown = LoadingLine(stream) if stream.isatty() and os.environ.get("TERM") != "dumb" else None
    gc.disable()
    try:
        yield (lambda stage, done, total: None) if shown is None else shown.report
    finally:
        # Only once: what a program discards between two loads must remain collectable.
        if not gc.get_freeze_count():
            gc.freeze()
        gc.enable()
        with suppress(AttributeError):  # glibc alone has it: returns freed memory to the system
            ctypes.CDLL(None).malloc_trim(0)
        if shown is not None:
            shown.close()


def columns_of(stream: TextIO) -> int:
    """The width of a terminal, 80 if it is unknown."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


class LoadingLine:
    """The current stage in one line of a terminal; a thread redraws it until `close` erases it."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.stage, self.done, self.total = stream, "importing torch", 0, 0
        self.since, self.closed = monotonic(), Event()
        self.thread = Thread(target=self.redraw, name="ostro-loading", daemon=True)
        self.thread.start()

    def report(self, stage: str, done: int, total: int) -> None:
        """Set the stage, the units done and the units in total; 0 units are unknown."""
        if stage != self.stage:
            self.stage, self.since = stage, monotonic()
        self.done, self.total = done, total

    def redraw(self) -> None:
        """Draw the line until it is closed."""
        while True:
            line = self.text(monotonic() - self.since)[: columns_of(self.stream) - 1]
            # The cursor stays at the start of the line, which a log message may overwrite.
            self.stream.write(f"\x1b[K{line}\r")
            self.stream.flush()
            if self.closed.wait(REDRAW_SECONDS):
                return

    def text(self, seconds: float) -> str:
        """The line, for a stage that has lasted some seconds."""
        done, total = self.done, self.total
        if self.stage.endswith(READING):
            units = f" {done / 1e6:.0f} of {total / 1e6:.0f} MB"
        else:
            units = f" {done} of {total}" if total else ""
        if seconds < BAR_SECONDS:
            return f"{self.stage}{units}"
        if total:
            bar = ("#" * (WIDTH * done // total)).ljust(WIDTH)
        else:
            start = int(seconds / REDRAW_SECONDS) % (WIDTH - 3)
            bar = (" " * start + "####").ljust(WIDTH)
        return f"{self.stage} [{bar}]{units}"

    def close(self) -> None:
        """Stop the thread and erase the line."""
        self.closed.set()
        self.thread.join()
        self.stream.write("\x1b[K")
        self.stream.flush()
