"""Garbage collection, while threads parse Python code."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_off() -> Iterator[None]:
    """Turn garbage collection off where several threads may call `ast.parse`, as Triton does.

    In Python 3.11 a collection within the call may switch threads, and `ast.parse` then raises
    SystemError. Later versions do not collect within it.
    """
    if sys.version_info >= (3, 12) or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
