"""The id of the request that a task handles, for responses, logs and errors."""

from __future__ import annotations

from contextvars import ContextVar

REQUEST_ID: ContextVar[str] = ContextVar("REQUEST_ID", default="")
"""The id of the request that the running task handles."""


def request_id() -> str:
    """Return the id of the request that the running task handles; "" outside of a request."""
    return REQUEST_ID.get()
