"""Progress of commands with several stages, on standard error.

The line of `LoadingLine` on a terminal; else a line every few seconds.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ostro.entrypoints.progress import LoadingLine

if TYPE_CHECKING:
    from ostro.core.settings import ProgressCallback

INTERVAL = 3.0
"""Seconds between two lines."""


@contextmanager
def stages() -> Iterator[ProgressCallback]:
    """A callback that shows (stage, units done, units in total); a total of 0 is unknown."""
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        shown = LoadingLine(sys.stderr)
        try:
            yield shown.report
        finally:
            shown.close()
    else:
        with lines() as report:
            yield report


@contextmanager
def lines() -> Iterator[ProgressCallback]:
    """A line about the current stage every `INTERVAL` seconds; none for a shorter command."""
    start, ended, current = time.monotonic(), threading.Event(), ("starting", 0, 0)

    def report(stage: str, done: int, total: int) -> None:
        nonlocal current
        current = stage, done, total

    def repeat() -> None:
        while not ended.wait(INTERVAL):
            stage, done, total = current
            share = f", {100 * done // total} %" if total else ""
            print(f"{time.monotonic() - start:.0f} s: {stage}{share}", file=sys.stderr, flush=True)

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield report
    finally:
        ended.set()
        thread.join()
