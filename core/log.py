"""Warnings that a process logs once."""

from __future__ import annotations

import logging
from functools import cache


@cache
def warn_once(logger: logging.Logger, message: str) -> None:
    """Log a warning, unless the process has logged it before."""
    logger.warning("%s", message)
