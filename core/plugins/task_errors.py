"""Isolation of plugins' code in tasks of asyncio: it cannot end the event loop of a server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from ostro.core.errors import OstroError
from ostro.core.plugins.isolation import reason


@contextmanager
def task_errors(place: str = "") -> Iterator[None]:
    """Convert an error in a task of asyncio that is no Exception to a RuntimeError.

    asyncio ends the event loop, and with it the server, if a task raises SystemExit or
    KeyboardInterrupt. Ctrl-C raises neither in a server, whose signals the loop handles. A
    cancellation of the task passes. `place` becomes a note of all errors but those for users.
    """
    try:
        yield
    except OstroError:
        raise
    except BaseException as error:
        if is_ended(error):
            raise
        ordinary = error if isinstance(error, Exception) else RuntimeError(reason(error))
        if place and place not in getattr(ordinary, "__notes__", ()):
            ordinary.add_note(place)
        if ordinary is error:
            raise
        raise ordinary from error


def is_ended(error: BaseException) -> bool:
    """Whether an error ends the current task from outside, and was not raised by its code."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # the loop has ended, and Python closes its coroutines
        return isinstance(error, GeneratorExit)
    cancelled = task is not None and task.cancelling() > 0
    return cancelled and isinstance(error, asyncio.CancelledError)
