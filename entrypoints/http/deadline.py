"""The time limit of requests: `--request-timeout`."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send

from ostro.core.errors import OstroError


class RequestTimeout(OstroError):
    """A request took longer than the server allows; its work has been aborted."""

    status, code = 504, "timeout"


class Deadline:
    """Sets the time at which a request ends, in `scope["state"]["deadline"]`.

    The functions of `ostro.entrypoints.http.stream`, which await the work of requests, enforce it.
    Batches and responses in the background, which no client waits for, have no deadline.
    """

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self.app, self.seconds = app, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            deadline = asyncio.get_running_loop().time() + self.seconds
            scope.setdefault("state", {})["deadline"] = deadline
        await self.app(scope, receive, send)


def deadline_of(scope: Scope) -> float | None:
    """Return the deadline of a request in the event loop's time, None without one."""
    deadline: float | None = scope.get("state", {}).get("deadline")
    return deadline


def timed_out() -> RequestTimeout:
    """Return the error of a request that has reached its deadline."""
    return RequestTimeout("the request took longer than the server's --request-timeout")
