"""Compiles the native kernels of a source tree side by side: python -m ostro.core.native"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path

from ostro.core.native.library import compile_package

if __name__ == "__main__":
    # Without a compiler or a cache, the first start names what is missing.
    with suppress(ImportError, OSError):
        compile_package(Path(__file__).parents[2], partial(print, flush=True))
