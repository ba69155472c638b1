"""The listening socket and the HTTP/1.1 protocol of its connections."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from secrets import token_hex
from typing import Any, cast

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from ostro.core.errors import UsageError
from ostro.entrypoints.http.errors import CODES
from ostro.entrypoints.operations.requests.errors import error_content

BACKLOG = 1024
MAX_PORT = 65_535
HEADER_BYTES = 32 << 10
"""Size limit of a request's target and headers."""
HEADER_SECONDS = 30.0
"""Time limit for the first request of a new connection."""
DEAD_SECONDS = 60
"""Seconds after which a connection whose peer acknowledges nothing is dropped."""
LINGER_SECONDS = 5.0
LINGER_BYTES = 256 << 20
"""Limits on what is read and discarded after an error response to an unfinished request."""


def listen(host: str, port: int, has_keys: bool) -> socket.socket:
    """Open a listening socket. Port 0 selects a free port.

    Raises UsageError if the port is out of range, if the address is unknown or in use, and if other
    machines can reach it although the server has no keys.
    """
    if not 0 <= port <= MAX_PORT:  # getaddrinfo takes the remainder of 65536
        raise UsageError(f"--port {port}: expected 0..{MAX_PORT}", param="port")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError, OverflowError):
        raise UsageError(f"--host {host}: unknown address", param="host") from None
    family, kind, protocol, _, address = found[0]
    if not has_keys and not ip_address(str(address[0]).partition("%")[0]).is_loopback:
        raise UsageError(
            f"--host {host} is reachable from other machines: set --keys, --api-key or "
            "--api-key-file, or listen on 127.0.0.1",
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
    # Connections inherit these options, which detect clients that vanish without closing.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, DEAD_SECONDS)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_SECONDS * 1000)
    return listener


@contextmanager
def listen_unix(path: Path) -> Iterator[socket.socket]:
    """Listen on a Unix socket that only this user can connect to; remove it at the end.

    The socket of a server that has ended is replaced. Raises UsageError if the path is in use, is
    not a socket, or cannot be created.
    """
    listener = socket.socket(socket.AF_UNIX)
    with closing(listener):
        try:
            remove_stale(path)
            # Not chmod after bind: others could connect in between.
            mask = os.umask(0o177)
            try:
                listener.bind(str(path))
            finally:
                os.umask(mask)
            created = path.stat()
            listener.listen(BACKLOG)
        except OSError as error:
            raise UsageError(f"--uds {path}: {error.strerror or error}") from None
        try:
            yield listener
        finally:
            with suppress(OSError):
                if os.path.samestat(path.stat(), created):
                    path.unlink()


def remove_stale(path: Path) -> None:
    """Remove the socket of a server that has ended. Raises UsageError for any other file."""
    if not path.is_socket():
        if path.exists():
            raise UsageError(f"--uds {path}: the file exists and is not a socket")
        return
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        else:
            raise UsageError(f"--uds {path}: another server uses the socket")


def open_certificate(
    certfile: str | Path | None, keyfile: str | Path | None
) -> ssl.SSLContext | None:
    """Read the files of a certificate and its key. None without a certificate.

    Raises UsageError unless they belong together and can be used without a password.
    """
    if certfile is None:
        if keyfile is not None:
            raise UsageError("--ssl-keyfile requires --ssl-certfile")
        return None
    shown = f"--ssl-certfile {certfile}" + (f" --ssl-keyfile {keyfile}" if keyfile else "")
    for file in (certfile, keyfile or certfile):
        if not Path(file).is_file():
            raise UsageError(f"{shown}: {file} is not a file")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certfile, keyfile, password=lambda: "")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise UsageError(f"{shown}: not a PEM certificate with its key: {reason}") from None
    return context


def url_of(listener: socket.socket, scheme: str = "http") -> str:
    """The URL of a listening socket; "unix:PATH" for a Unix socket."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class Protocol(H11Protocol):
    """HTTP/1.1 with limits on a request's head, and error responses in OpenAI's form."""

    transport: LingeringTransport  # type: ignore[assignment]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn = Connection(h11.SERVER, HEADER_BYTES)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        lingering = LingeringTransport(transport, self)
        super().connection_made(cast(asyncio.Transport, lingering))
        self._first_request = self.loop.call_later(HEADER_SECONDS, self._check_begun)

    def connection_lost(self, exc: Exception | None) -> None:
        # The timer would keep the connection's objects in memory.
        self._first_request.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self.transport.discard(data):
            super().data_received(data)

    def _check_begun(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Respond to data that is not HTTP, and to a head that is too long.

        h11_impl calls this while it handles the h11.RemoteProtocolError.
        """
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            error = sys.exception()
            status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
            self._send_error(status)
        self.transport.linger()

    def _send_error(self, status: int) -> None:
        code = CODES.get(status, "invalid_request_error")
        message = "the request's head is too long" if status == 431 else "invalid HTTP request"
        content = msgspec.json.encode(error_content(status, message, code))
        headers = {
            "content-type": "application/json",
            "content-length": str(len(content)),
            "connection": "close",
            **dict.fromkeys(("x-request-id", "request-id"), token_hex(12)),
        }
        for event in (
            h11.Response(status_code=status, headers=list(headers.items())),
            h11.Data(data=content),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")


class Connection(h11.Connection):
    """h11's connection, with two more checks of a request's head and faster chunks of bodies."""

    _chunked = False

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        event = super().next_event()
        if isinstance(event, h11.Request):
            check_head(event)
        return event

    def send(self, event: Any) -> Any:
        """Convert an event to bytes. A chunk of a body changes no state of h11."""
        if self._chunked and isinstance(event, h11.Data) and self.our_state is h11.SEND_BODY:
            return b"%x\r\n%b\r\n" % (len(event.data), event.data) if event.data else b""
        data = super().send(event)
        if isinstance(event, h11.Response):
            self._chunked = b"\r\ntransfer-encoding: chunked\r\n" in (data or b"").lower()
        return data


def check_head(request: h11.Request) -> None:
    """Raise h11.RemoteProtocolError for a head that is too long or ambiguous.

    h11 limits a head only until all of it has arrived. A request with both Content-Length and
    Transfer-Encoding may be an attempt to smuggle a second one past a proxy (RFC 9112, 6.1).
    """
    names = [name for name, _ in request.headers]
    fields = sum(len(name) + len(value) + 4 for name, value in request.headers)
    if len(request.target) + fields > HEADER_BYTES:
        raise h11.RemoteProtocolError("the head is too long", error_status_hint=431)
    if b"content-length" in names and b"transfer-encoding" in names:
        raise h11.RemoteProtocolError("Content-Length and Transfer-Encoding in one request")


class LingeringTransport:
    """A transport whose `close` waits for the peer if its request has not ended.

    A socket that is closed with unread data resets the connection, and the peer may lose the
    response before it has read it (RFC 9112, section 9.6).
    """

    def __init__(self, transport: asyncio.Transport, protocol: Protocol) -> None:
        self._transport, self._protocol = transport, protocol
        self.write = transport.write  # `__getattr__` costs time for every chunk
        self._left: int | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._left is not None or self._transport.is_closing()

    def close(self) -> None:
        if self._protocol.conn.their_state is h11.SEND_BODY:
            self.linger()
        elif self._left is None:
            self._transport.close()

    def linger(self) -> None:
        """Send no more, discard what still arrives for a while, then close."""
        if self.is_closing():
            return
        self._left = LINGER_BYTES
        if self._transport.can_write_eof():  # TLS cannot
            with suppress(OSError):  # the peer has reset the connection
                self._transport.write_eof()
        self._transport.resume_reading()
        self._protocol.loop.call_later(LINGER_SECONDS, self._transport.close)

    def discard(self, data: bytes) -> bool:
        """Discard data if the transport lingers. Return whether it does."""
        if self._left is None:
            return False
        self._left -= len(data)
        if self._left < 0:
            self._transport.close()
        return True
