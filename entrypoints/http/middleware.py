"""What every request passes before its route: an id, the host it names, its key."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from ipaddress import ip_address
from secrets import token_hex

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ostro.entrypoints.http.errors import body, respond

OPEN = "/health"
"""The one path that needs no key."""

_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)


class RequestId:
    """Gives each request an id, its client's own where that is harmless, and returns it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        given = Headers(scope=scope).get("x-request-id", "")
        id = given if _ID.fullmatch(given) else token_hex(12)
        scope.setdefault("state", {})["request_id"] = id

        async def tagged(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = id
            await send(message)

        await self.app(scope, receive, tagged)


class Door:
    """Lets in who names a host of ours and has a key, where these are asked for.

    The host matters where there is no key: a web page whose name its owner points at this machine
    (DNS rebinding) could otherwise talk to a server that listens on loopback only.
    """

    def __init__(self, app: ASGIApp, *, keys: Sequence[str], hosts: Sequence[str] | None) -> None:
        """`hosts` are the names that are let in beside addresses and localhost; None lets all."""
        self.app = app
        self.keys = [digest(key.encode()) for key in keys]
        self.hosts = None if hosts is None else {"localhost", *(host.lower() for host in hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            if not self.knows_host(headers.get("host", "")):
                message = "the Host header names no host of this server; see --allow-host"
                return await respond(403, body(403, message, "forbidden"))(scope, receive, send)
            if self.keys and scope["path"] != OPEN and not bears(headers, self.keys):
                message = "the API key is missing or wrong; send Authorization: Bearer KEY"
                content = body(401, message, "invalid_api_key")
                refusal = respond(401, content, {"www-authenticate": "Bearer"})
                return await refusal(scope, receive, send)
        await self.app(scope, receive, send)

    def knows_host(self, host: str) -> bool:
        """Whether the host that a request names is an address, or a name of ours."""
        if self.hosts is None or not host:
            return True
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        try:
            ip_address(name.strip("[]"))
        except ValueError:
            return name.lower().rstrip(".") in self.hosts
        return True


def bears(headers: Headers, keys: Sequence[bytes]) -> bool:
    """Whether a request bears one of the keys, given as digests; a wrong one takes as long as a
    right one.
    """
    scheme, _, given = headers.get("authorization", "").partition(" ")
    found = digest(given.strip().encode("latin-1"))
    matches = [hmac.compare_digest(found, key) for key in keys]
    return scheme.lower() == "bearer" and any(matches)


def digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
