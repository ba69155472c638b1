"""Middleware: request ids and records, the Host header, the API key and its limits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from ipaddress import ip_address
from time import monotonic

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ostro.core.plugins.task_errors import task_errors
from ostro.entrypoints.http.errors import on_bug, respond_error, respond_to
from ostro.entrypoints.http.measurement import RequestMetrics
from ostro.entrypoints.http.request_record import RECORD, RequestRecord
from ostro.entrypoints.operations.access.admission import claim
from ostro.entrypoints.operations.access.caller import Forbidden
from ostro.entrypoints.operations.access.keys import Key, KeyRing
from ostro.entrypoints.operations.access.quotas import Quota, Quotas, RateLimited
from ostro.entrypoints.operations.requests.errors import error_content
from ostro.entrypoints.operations.requests.ignored import HEADER
from ostro.entrypoints.operations.requests.request_context import BASE_URL, REQUEST_ID

log = logging.getLogger(__name__)
KEY_HEADERS = ("x-api-key", "api-key")
"""Headers that carry an API key besides Authorization; Anthropic and Azure clients send them."""
DENIAL = "websocket.http.response"
"""ASGI extension of servers that can answer a WebSocket handshake with an HTTP response."""
STARTS = ("http.response.start", "websocket.accept", f"{DENIAL}.start")
"""ASGI messages that carry the headers of a response."""
POLICY_VIOLATION = 1008
"""WebSocket close code (RFC 6455, section 7.4.1)."""

Observer = Callable[[RequestRecord], None]
"""Receives the record of each HTTP request at its end. It must not raise."""


class RequestMiddleware:
    """Records each request, and responds to unexpected exceptions.

    Each response has the request's id in X-Request-ID and, as Anthropic's, in Request-ID. A
    client's own id is kept if it consists of alphanumeric characters and `_.:-`. The headers
    x-ratelimit-* are those of the caller's quota; X-Ostro-Ignored names what was ignored.
    """

    def __init__(
        self, app: ASGIApp, metrics: RequestMetrics, observers: Sequence[Observer] = ()
    ) -> None:
        self.app, self.metrics, self.observers = app, metrics, observers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        record = RequestRecord.of(scope)
        scope.setdefault("state", {})["request_id"] = record.id
        REQUEST_ID.set(record.id)
        BASE_URL.set(record.base_url)
        token = RECORD.set(record)
        self.metrics.begin_http()
        sending = recorded_send(record, send)
        try:
            with task_errors():
                await self.app(scope, self.recorded_receive(record, receive), sending)
        except Exception as error:
            if record.status or scope["type"] != "http":
                raise
            log.exception("request %s has failed", record.id)
            await (await on_bug(Request(scope), error))(scope, receive, sending)
        finally:
            RECORD.reset(token)
            record.total = monotonic() - record.begun
            self.metrics.http.end(record)
            for observe in self.observers:
                observe(record)

    def recorded_receive(self, record: RequestRecord, receive: Receive) -> Receive:
        """Return a `receive` that counts the bytes of the body and notes a disconnect."""

        async def recorded() -> Message:
            message = await receive()
            if message["type"] == "http.request":
                size = len(message.get("body", b""))
                record.bytes_in += size
                self.metrics.http.body_bytes += size
            elif message["type"] == "http.disconnect":
                record.disconnected = not record.complete
            return message

        return recorded


def recorded_send(record: RequestRecord, send: Send) -> Send:
    """Return a `send` that adds headers to the response and records its status and size."""
    ids = {"x-request-id": record.id, "request-id": record.id}

    async def recorded(message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.body":
            record.bytes_out += len(message.get("body", b""))
            record.complete = not message.get("more_body")
        elif kind in STARTS:
            record.status = message.get("status", 101)
            quota: Quota | None = record.scope["state"].get("quota")
            ignored = ", ".join(record.scope["state"].get("ignored", ()))
            message.setdefault("headers", [])
            headers = MutableHeaders(scope=message)
            headers.update(ids | (quota.headers() if quota else {}))
            if ignored:
                headers[HEADER] = ignored
        await send(message)

    return recorded


class AccessMiddleware:
    """Rejects requests with an unknown Host header, without a valid API key, or beyond its limits.

    Every scope but the server's lifespan is checked, WebSockets included. The caller is in
    `scope["state"]["caller"]`, and its claim in the context of the request.

    The Host check protects servers without a key from DNS rebinding: a web page could otherwise
    reach a loopback server through a domain name that its owner points at 127.0.0.1.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        ring: KeyRing,
        quotas: Quotas,
        hosts: Sequence[str] | None,
        open_paths: Collection[str] = (),
    ) -> None:
        """`hosts` are the names to accept besides localhost and IP addresses; None accepts every
        name. `open_paths` need no key and count towards no limit; one that ends with a slash stands
        for all paths below it.
        """
        self.app, self.ring, self.quotas, self.open_paths = app, ring, quotas, frozenset(open_paths)
        folders = [path for path in open_paths if path.endswith("/") and path != "/"]
        self.open_folders = tuple(folders)
        self.hosts = None if hosts is None else {"localhost", *(host.lower() for host in hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        headers = Headers(scope=scope)
        if not self.accepts_host(headers.get("host", "")):
            message = "the Host header is not a name of this server; add it with --allow-host"
            return await refuse(403, message, "forbidden", scope, receive, send)
        state = scope.setdefault("state", {})
        if scope["path"] in self.open_paths or scope["path"].startswith(self.open_folders):
            state["caller"] = self.ring.anonymous()
            return await self.app(scope, receive, send)
        key = find_key(headers, self.ring)
        if key is None and self.ring.locked:
            message = "the API key is missing or invalid; send one key as Authorization: Bearer KEY"
            return await refuse(401, message, "invalid_api_key", scope, receive, send)
        if key is not None and self.ring.expired(key):
            message = f"the API key {key.name!r} has expired"
            return await refuse(401, message, "invalid_api_key", scope, receive, send)
        caller = self.ring.anonymous() if key is None else self.ring.caller(key)
        state["caller"] = caller
        quota = self.quotas.of(caller.name, key)
        state["quota"] = quota
        try:
            await quota.acquire()
            with claim(caller, quota):
                await self.app(scope, receive, send)
        except (Forbidden, RateLimited) as error:
            await close(respond_to(error, scope), scope, receive, send)

    def accepts_host(self, host: str) -> bool:
        """Whether a Host header is absent, an IP address, or an accepted name."""
        if self.hosts is None or not host:
            return True
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        try:
            ip_address(name.strip("[]"))
        except ValueError:
            return name.lower().rstrip(".") in self.hosts
        return True


async def refuse(
    status: int, message: str, code: str, scope: Scope, receive: Receive, send: Send
) -> None:
    """Answer a request or a WebSocket handshake with an error."""
    response = respond_error(status, error_content(status, message, code), scope)
    await close(response, scope, receive, send)


async def close(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Send a response, or close the WebSocket of a server that cannot answer its handshake."""
    if scope["type"] == "websocket" and DENIAL not in scope.get("extensions", {}):
        return await send({"type": "websocket.close", "code": POLICY_VIOLATION})
    await response(scope, receive, send)


def find_key(headers: Headers, ring: KeyRing) -> Key | None:
    """The key of a request; None without one, for an unknown one, and for two different ones."""
    given = given_keys(headers)
    if not given or given.count(given[0]) < len(given):
        return None
    return ring.find(given[0])


def given_keys(headers: Headers) -> list[bytes]:
    """The API keys in a request's headers. Authorization schemes other than Bearer carry none."""
    found = [key for name in KEY_HEADERS for key in headers.getlist(name)]
    for value in headers.getlist("authorization"):
        scheme, _, key = value.partition(" ")
        if scheme.lower() == "bearer":
            found.append(key)
    return [key.strip().encode("latin-1") for key in found]
