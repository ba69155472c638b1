"""Requests that a worker forwards to the server: those that change or describe the whole server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

from fastapi import FastAPI
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ostro.core.plugins.task_errors import task_errors
from ostro.core.routes import Endpoint, RequestBody, Route
from ostro.entrypoints.http.body import read_data, read_in_time
from ostro.entrypoints.http.budget import BodyBudget
from ostro.entrypoints.http.context import operations_of
from ostro.entrypoints.http.deadline import deadline_of
from ostro.entrypoints.http.errors import HANDLERS, on_bug
from ostro.entrypoints.http.handlers import has_body
from ostro.entrypoints.http.request_record import RECORD, RequestRecord
from ostro.entrypoints.http.workers.engine import WorkerQuota
from ostro.entrypoints.http.workers.messages import Forward, Forwarded
from ostro.entrypoints.operations.access.admission import CLAIM, Claim
from ostro.entrypoints.operations.requests.decoding import max_bytes
from ostro.entrypoints.operations.requests.request_context import BASE_URL, REQUEST_ID

log = logging.getLogger(__name__)
SCOPES = ("admin", "metrics")
"""Scopes whose routes the server handles."""
PROBES = ("GET /health", "GET /ready", "GET /load")
"""Further routes that the server handles."""
READS = ("GET", "HEAD")
"""Methods of requests that do not change the server and have no body."""
MAX_BYTES = 16 << 20
"""Limit on the body of a forwarded request: it is one message."""

Exchange = Callable[[Forward], Awaitable[Forwarded]]


class Forwarding:
    """Forwards requests of a worker to the server.

    A forwarded request is handled by a route of the worker. So the middleware of the worker checks,
    limits and records it as any other request, before the body is read.
    """

    def __init__(self, exchange: Exchange) -> None:
        """exchange: sends a request to the server and returns the response."""
        self.exchange = exchange
        self.numbers = count()

    def endpoint_of(self, route: Route) -> Endpoint | None:
        """Return the endpoint that forwards the requests of a route, None for other routes.

        Static files and WebSockets are not forwarded.
        """
        is_forwarded = route.scope in SCOPES or route.name in PROBES
        if not is_forwarded or route.name.startswith(("FILES ", "WEBSOCKET ")):
            return None

        async def endpoint(request: Request) -> Response:
            return await self.forward(request, await read_body(request, route))

        return endpoint

    async def forward(self, request: Request, body: bytes | bytearray) -> Response:
        """Let the server handle a request whose body is read."""
        scope, record = request.scope, RECORD.get()
        assert record is not None
        quota, deadline = scope["state"].get("quota"), deadline_of(scope)
        now = asyncio.get_running_loop().time()
        forwarded = await self.exchange(
            Forward(
                number=next(self.numbers),
                id=record.id,
                key=quota.key if isinstance(quota, WorkerQuota) else None,
                seconds=None if deadline is None else max(0.0, deadline - now),
                method=scope["method"],
                path=scope["path"],
                query_string=scope["query_string"],
                headers=[*scope["headers"]],
                client=None if scope.get("client") is None else tuple(scope["client"]),
                body=bytes(body),
            )
        )
        record.error = forwarded.error
        response = Response(forwarded.body, forwarded.status)
        response.raw_headers = forwarded.headers
        return response


async def read_body(request: Request, route: Route) -> bytes | bytearray:
    """Return the body of a request with the limits that it has in a server without workers.

    Raises HTTPException 408, 413, 415 or 503.
    """
    if route.handler is None:
        return b"" if request.method in READS else await read_in_time(request, MAX_BYTES)
    if not has_body(route):
        return b""
    body = route.body or RequestBody()
    if route.is_form:
        return await read_in_time(request, min(MAX_BYTES, body.max_bytes or MAX_BYTES))
    limit = min(MAX_BYTES, max_bytes(operations_of(request).service, body))
    return await read_data(request, limit, body.any_type)


class ForwardHandler:
    """Handles forwarded requests in the server.

    The worker has checked, limited and recorded them: the routes of the application handle them
    without its middleware.
    """

    def __init__(self, app: FastAPI, claim_of: Callable[[bytes | None], Claim]) -> None:
        """app: the application of the server. claim_of: returns a claim of the caller of a key, and
        raises Forbidden for one that is gone.
        """
        self.app, self.claim_of = app, claim_of
        handlers = {kind: handler for kind, handler in HANDLERS.items() if kind is not Exception}
        self.routes: ASGIApp = BodyBudget(ExceptionMiddleware(self.call, handlers))

    async def call(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request as one of its caller."""
        own = self.claim_of(scope["state"].pop("key"))
        scope["state"]["caller"] = own.caller
        token = CLAIM.set(own)
        try:
            await self.app.router(scope, receive, send)
        finally:
            CLAIM.reset(token)
            for release in own.releases:
                release()

    async def handle(self, forward: Forward) -> Forwarded:
        """Return the response to a request."""
        scope = self.scope_of(forward)
        record = RequestRecord(scope, forward.id, "")
        tokens = RECORD.set(record), REQUEST_ID.set(forward.id), BASE_URL.set(record.base_url)
        try:
            with task_errors():
                response = await run(self.routes, scope, forward.body)
        except Exception as error:  # the worker waits for a response
            log.exception("request %s has failed", forward.id)
            response = await run(await on_bug(Request(scope), error), scope, b"")
        finally:
            RECORD.reset(tokens[0])
            REQUEST_ID.reset(tokens[1])
            BASE_URL.reset(tokens[2])
        return Forwarded(number=forward.number, error=record.error, **response)

    def scope_of(self, forward: Forward) -> Scope:
        """Return the ASGI scope of a request."""
        state: dict[str, Any] = {"request_id": forward.id, "key": forward.key}
        if forward.seconds is not None:
            state["deadline"] = asyncio.get_running_loop().time() + forward.seconds
        return {
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
            "app": self.app,
            "app_root_path": self.app.state.root_path,
            "state": state,
        }


async def run(app: ASGIApp, scope: Scope, body: bytes) -> dict[str, Any]:
    """Return the status, headers and body of an application's response to a request."""
    response: dict[str, Any] = {"status": 500, "headers": [], "body": b""}
    messages: list[Message] = [{"type": "http.request", "body": body}]

    async def receive() -> Message:
        if not messages:  # the client of a forwarded request does not disconnect
            await asyncio.Event().wait()
        return messages.pop()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            response["status"] = message["status"]
            response["headers"] = [(bytes(a), bytes(b)) for a, b in message["headers"]]
        else:
            response["body"] += message.get("body", b"")

    await app(scope, receive, send)
    return response
