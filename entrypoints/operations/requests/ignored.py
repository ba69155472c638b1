"""What the server ignores in a request: fields that it does not know, and tools that it lacks."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

log = logging.getLogger(__name__)
HEADER = "x-ostro-ignored"
"""The header of a response that names what was ignored in its request."""
MAX_NAME = 100
"""Limit on the characters of a name in the header and in the log."""
MAX_NAMES = 32
"""Limit on the names in the header."""
MAX_LOGGED = 1000
"""Limit on the names in the log: clients choose them."""
INDEX = re.compile(r"\[\d+\]")
"""The place of an object in a list, which says nothing about the field."""
UNSAFE = re.compile(r"[^\w.:\[\] -]", re.ASCII)
"""Characters that a name in the header and in the log does not have."""
IGNORED: ContextVar[dict[str, None] | None] = ContextVar("IGNORED", default=None)
"""The names of what is ignored in the running request; None if unknown fields are errors."""
LOGGED: set[str] = set()
"""The names that the log of this process has."""


@contextmanager
def ignoring(strict: bool) -> Iterator[dict[str, None]]:
    """Yield the names of what is ignored in the request that the block handles.

    strict: unknown fields are errors, as outside of such a block.
    """
    names = dict[str, None]()
    token = IGNORED.set(None if strict else names)
    try:
        yield names
    finally:
        IGNORED.reset(token)


def ignore(name: str) -> bool:
    """Ignore a part of the running request, by its path: return False if it is an error instead.

    The response names it in a header, without the places in lists, and the log has one line per
    name.
    """
    names = IGNORED.get()
    if names is None:
        return False
    name = UNSAFE.sub("?", INDEX.sub("[]", name)[:MAX_NAME])
    if len(names) < MAX_NAMES:
        names[name] = None
    if name not in LOGGED and len(LOGGED) < MAX_LOGGED:
        LOGGED.add(name)
        log.warning("requests contain %s, which the server ignores", name)
    return True
