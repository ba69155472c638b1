"""The request that a task handles: its id, and how it addresses the server."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

REQUEST_ID: ContextVar[str] = ContextVar("REQUEST_ID", default="")
"""The id of the request that the running task handles."""
BASE_URL: ContextVar[Callable[[], str] | None] = ContextVar("BASE_URL", default=None)
"""Returns the URL of the server as the client of the running request addressed it."""


def request_id() -> str:
    """Return the id of the request that the running task handles; "" outside of a request."""
    return REQUEST_ID.get()


def base_url() -> str:
    """Return the URL of the server as the client of the running request addressed it.

    It ends with a slash; it is "/" outside of an HTTP request, as in a batch.
    """
    address = BASE_URL.get()
    return "/" if address is None else address()
