"""Requests that a worker forwards to the server: those that change or describe the whole server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count

from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ostro.core.records import Route
from ostro.entrypoints.http.app import starlette_route
from ostro.entrypoints.http.errors import respond_error
from ostro.entrypoints.http.workers.messages import Forward, Forwarded
from ostro.entrypoints.operations.errors import error_content

SCOPES = ("admin", "metrics")
"""Scopes whose routes the server handles."""
PROBES = ("GET /health", "GET /ready", "GET /load")
"""Further routes that the server handles."""
MAX_BYTES = 16 << 20
"""Limit on the body of a forwarded request: it is one message."""

Exchange = Callable[[Forward], Awaitable[Forwarded]]


class Forwarding:
    """ASGI middleware of a worker that forwards requests to the server."""

    def __init__(self, app: ASGIApp, routes: Sequence[Route], exchange: Exchange) -> None:
        """routes: all routes, of which some are forwarded. exchange: sends a request to the server
        and returns the response.
        """
        self.app, self.exchange = app, exchange
        self.routes = [
            starlette_route(route)
            for route in routes
            if route.scope in SCOPES or route.name in PROBES
        ]
        self.numbers = count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = (route.matches(scope)[0] is Match.FULL for route in self.routes)
        if scope["type"] != "http" or not any(found):
            return await self.app(scope, receive, send)
        body = await read_body(receive)
        if body is None:
            message = f"the body exceeds {MAX_BYTES >> 20} MiB"
            response = respond_error(413, error_content(413, message, "request_too_large"), scope)
            return await response(scope, receive, send)
        client = scope.get("client")
        forwarded = await self.exchange(
            Forward(
                number=next(self.numbers),
                method=scope["method"],
                path=scope["path"],
                query_string=scope["query_string"],
                headers=[*scope["headers"]],
                client=None if client is None else tuple(client),
                body=body,
            )
        )
        response = Response(forwarded.body, forwarded.status)
        response.raw_headers = forwarded.headers
        await response(scope, receive, send)


async def read_body(receive: Receive) -> bytes | None:
    """Read the body of a request; None if it is longer than `MAX_BYTES` or the client leaves."""
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > MAX_BYTES:
            return None
    return bytes(body)


async def handle(app: ASGIApp, forward: Forward) -> Forwarded:
    """Let the application of the server handle a forwarded request."""
    found = Forwarded(number=forward.number, status=500, headers=[], body=b"")
    messages: list[Message] = [{"type": "http.request", "body": forward.body}]

    async def receive() -> Message:
        if not messages:  # the client of a forwarded request does not disconnect
            await asyncio.Event().wait()
        return messages.pop()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            found.status = message["status"]
            found.headers = [(bytes(name), bytes(value)) for name, value in message["headers"]]
        else:
            found.body += message.get("body", b"")

    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": forward.method,
        "path": forward.path,
        "raw_path": forward.path.encode(),
        "query_string": forward.query_string,
        "headers": forward.headers,
        "client": forward.client,
        "server": None,
    }
    await app(scope, receive, send)
    return found
