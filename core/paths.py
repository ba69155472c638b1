"""Resolve file paths from configs and requests."""

from __future__ import annotations

import errno
import os
from pathlib import Path


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
