"""The work of a call, counted: it is the same on every machine, unlike its time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def count_lines(work: Callable[[], object]) -> int:
    """Run a call and return the number of lines of Python that it executed in this thread."""
    lines = 0

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines
