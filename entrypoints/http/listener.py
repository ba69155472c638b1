"""The listening socket, and how connections to it are spoken with."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
from collections.abc import Sequence
from ipaddress import ip_address

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from ostro.core.errors import UsageError
from ostro.entrypoints.http.errors import CODES, body

BACKLOG = 1024
HEADER_BYTES = 32 << 10
"""Bytes of a request's line and headers."""
HEADER_SECONDS = 30.0
"""How long a new connection may take to send its first request."""
DEAD_SECONDS = 60
"""How long a peer may leave what was sent to it unread before its connection is given up."""


def listen(host: str, port: int, keys: Sequence[str]) -> socket.socket:
    """A socket that listens.

    Raises UsageError when the address is no address of ours or taken, and when it can be reached
    from other machines although there is no key.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError, OverflowError):
        raise UsageError(f"--host {host}: there is no such address", param="host") from None
    family, kind, protocol, _, address = found[0]
    if not keys and not ip_address(str(address[0]).partition("%")[0]).is_loopback:
        raise UsageError(
            f"--host {host} can be reached from other machines: give --api-key or --api-key-file, "
            "or listen on 127.0.0.1",
            param="host",
        )
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        reason = "is in use" if error.errno == errno.EADDRINUSE else f"fails: {error.strerror}"
        raise UsageError(f"port {port} of {host} {reason}; choose another with --port") from None
    # Connections inherit these, so that clients that vanish without a word are noticed.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, DEAD_SECONDS)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_SECONDS * 1000)
    return listener


def url_of(listener: socket.socket) -> str:
    """The address of a listening socket, as clients write it."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Protocol(H11Protocol):
    """HTTP/1.1 that answers nonsense in OpenAI's words, and does not wait forever for a request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(HEADER_SECONDS, self._check_begun)

    def _check_begun(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP request, or has too long a head; called while it is handled."""
        error = sys.exception()
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        code = CODES.get(status, "invalid_request_error")
        message = "the request's head is too long" if status == 431 else "this is no HTTP request"
        content = msgspec.json.encode(body(status, message, code))
        headers = [("content-type", "application/json"), ("connection", "close")]
        for event in (
            h11.Response(status_code=status, headers=headers),
            h11.Data(data=content),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
