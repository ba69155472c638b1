"""Checks that run before routing: the request id, the Host header, and the API key."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from ipaddress import ip_address
from secrets import token_hex

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ostro.entrypoints.http.errors import error_content, respond

OPEN = ("/health", "/ready")
"""Paths that need no API key, because probes rarely send one."""
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


class AccessMiddleware:
    """Rejects requests with an unknown Host header or without a valid API key.

    Every scope but the server's lifespan is checked, WebSockets included.

    The Host check protects servers without a key from DNS rebinding: a web page could otherwise
    reach a loopback server through a domain name that its owner points at 127.0.0.1.
    """

    def __init__(self, app: ASGIApp, *, keys: Sequence[str], hosts: Sequence[str] | None) -> None:
        """`keys` empty disables the key check. `hosts` are the names to accept besides localhost
        and IP addresses; None accepts every name.
        """
        self.app = app
        self.keys = [digest(key.encode()) for key in keys]
        self.hosts = None if hosts is None else {"localhost", *(host.lower() for host in hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or (refusal := self.refusal(scope)) is None:
            return await self.app(scope, receive, send)
        if scope["type"] == "websocket" and DENIAL not in scope.get("extensions", {}):
            return await send({"type": "websocket.close", "code": POLICY_VIOLATION})
        await refusal(scope, receive, send)

    def refusal(self, scope: Scope) -> Response | None:
        """The response to a request that is rejected, None for a request that is accepted."""
        headers = Headers(scope=scope)
        if not self.accepts_host(headers.get("host", "")):
            message = "the Host header is not a name of this server; add it with --allow-host"
            return respond(403, error_content(403, message, "forbidden"))
        if self.keys and scope["path"] not in OPEN and not has_key(headers, self.keys):
            message = "the API key is missing or invalid; send one key as Authorization: Bearer KEY"
            content = error_content(401, message, "invalid_api_key")
            return respond(401, content, {"www-authenticate": "Bearer"})
        return None

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


def has_key(headers: Headers, keys: Sequence[bytes]) -> bool:
    """Whether a request contains one of the keys, and no second, different key.

    `keys` are digests. The comparison takes constant time.
    """
    given = given_keys(headers)
    found = digest(given[0] if given else b"")
    matches = [hmac.compare_digest(found, key) for key in keys]
    return bool(given) and given.count(given[0]) == len(given) and any(matches)


def given_keys(headers: Headers) -> list[bytes]:
    """The API keys in a request's headers. Authorization schemes other than Bearer carry none."""
    found = [key for name in KEY_HEADERS for key in headers.getlist(name)]
    for value in headers.getlist("authorization"):
        scheme, _, key = value.partition(" ")
        if scheme.lower() == "bearer":
            found.append(key)
    return [key.strip().encode("latin-1") for key in found]


def digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
