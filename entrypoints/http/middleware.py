"""Checks that run before routing: the request id, the Host header, the API key and its limits."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Sequence
from ipaddress import ip_address
from secrets import token_hex
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ostro.entrypoints.http.errors import error_content, respond_error, respond_to
from ostro.entrypoints.operations.admission import claim
from ostro.entrypoints.operations.caller import Caller
from ostro.entrypoints.operations.keys import Key, KeyRing
from ostro.entrypoints.operations.quotas import Quota, Quotas, RateLimited

log = logging.getLogger("ostro.access")
KEY_HEADERS = ("x-api-key", "api-key")
"""Headers that carry an API key besides Authorization; Anthropic and Azure clients send them."""
DENIAL = "websocket.http.response"
"""ASGI extension of servers that can answer a WebSocket handshake with an HTTP response."""
STARTS = ("http.response.start", "websocket.accept", f"{DENIAL}.start")
"""ASGI messages that carry the headers of a response."""
POLICY_VIOLATION = 1008
"""WebSocket close code (RFC 6455, section 7.4.1)."""

_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)


class RequestId:
    """Assigns each request an id and returns it in X-Request-ID.

    A client's own id is kept if it consists of alphanumeric characters and `_.:-`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        given = Headers(scope=scope).get("x-request-id", "")
        id = given if _ID.fullmatch(given) else token_hex(12)
        scope.setdefault("state", {})["request_id"] = id

        async def send_with_id(message: Message) -> None:
            if message["type"] in STARTS:
                message.setdefault("headers", [])
                MutableHeaders(scope=message)["x-request-id"] = id
            await send(message)

        await self.app(scope, receive, send_with_id)


class AccessLog:
    """Logs each request: client, caller, method, path without query, status and request id."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        logging.basicConfig(format="%(asctime)s %(message)s")
        log.setLevel(logging.INFO)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        status = 0

        async def send_noting(message: Message) -> None:
            nonlocal status
            if message["type"] in STARTS:
                status = message.get("status", 101)
            await send(message)

        try:
            await self.app(scope, receive, send_noting)
        finally:
            state = scope.get("state", {})
            caller: Caller | None = state.get("caller")
            host, port = scope.get("client") or ("-", 0)
            name = caller.name.replace(" ", "-") if caller and caller.name else "-"
            method, version = scope.get("method", "WEBSOCKET"), scope.get("http_version", "1.1")
            what = f"{method} {quote(scope['path'])} HTTP/{version}"
            id = state.get("request_id", "-")
            log.info('%s:%d %s "%s" %d %s', host, port, name, what, status, id)


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
        send = with_limits(send, quota)
        try:
            with claim(caller, quota):
                await self.app(scope, receive, send)
        except RateLimited as error:
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


def with_limits(send: Send, quota: Quota) -> Send:
    """A `send` that adds the headers x-ratelimit-* to the response."""

    async def send_with_limits(message: Message) -> None:
        if message["type"] in STARTS and (limits := quota.headers()):
            message.setdefault("headers", [])
            MutableHeaders(scope=message).update(limits)
        await send(message)

    return send_with_limits


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
