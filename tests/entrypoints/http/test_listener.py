"""Connections: malformed heads, limits, and errors that are sent before a request has ended."""

from __future__ import annotations

import errno
import gc
import json
import socket
from asyncio import Transport
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import h11
import pytest
from echo.server import Running, wait_until

from ostro.entrypoints.http import listener

HEAD = b"GET /health HTTP/1.1\r\nHost: a\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
FORM = (
    b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: a\r\n"
    b"Content-Type: multipart/form-data; boundary=b\r\n"
)
BIG = HEAD + b"X-Big: " + b"x" * (1 << 20) + b"\r\n\r\n"
MANY = HEAD + b"".join(b"H%d: v\r\n" % i for i in range(10_000))


def check_error(answer: bytes, status: int) -> None:
    """The answer is one error response in OpenAI's form."""
    assert answer.startswith(b"HTTP/1.1 %d" % status), answer[:200]
    assert set(json.loads(answer.partition(b"\r\n\r\n")[2])) == {"error"}


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (BIG, 431),
        (MANY, 431),
        (MANY + b"\r\n", 431),
        (b"nonsense\r\n\r\n", 400),
        (HEAD + b"Content-Length: -5\r\n\r\n", 400),
        (POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n", 400),
    ],
)
def test_bad_heads(server: Any, data: bytes, status: int) -> None:
    check_error(server.talk(data), status)
    assert server.http.get("/health").status_code == 200


def test_long_heads_are_always_answered(server: Any) -> None:
    """Closing with unread data resets the connection, and the answer is lost."""
    for _ in range(200):
        check_error(server.talk(BIG, pieces=4), 431)


def test_a_long_head_behind_another_request(server: Any) -> None:
    answer = server.talk(HEAD + b"\r\n" + MANY + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 200") and b"HTTP/1.1 431" in answer


def test_a_head_within_the_limit(server: Any) -> None:
    data = HEAD + b"Connection: close\r\nX: " + b"x" * (listener.HEADER_BYTES - 200) + b"\r\n\r\n"
    assert server.talk(data).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("head", [POST, FORM])
@pytest.mark.parametrize("size", [99999999999999999, 1 << 30])
def test_absurd_lengths_are_refused_at_once(server: Any, head: bytes, size: int) -> None:
    check_error(server.talk(head + b"Content-Length: %d\r\n\r\n" % size), 413)


def test_large_bodies_are_always_answered(server: Any) -> None:
    head = POST.replace(b"completions", b"chat/completions")
    data = b"x" * (4 << 20)
    chunked = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(data)
    for _ in range(10):
        check_error(server.talk(head + b"Content-Length: %d\r\n\r\n" % len(data) + data), 413)
        check_error(server.talk(head + chunked + data), 413)


def read_to_end(client: socket.socket) -> bytes:
    """All that the server sends until it sends no more."""
    return b"".join(iter(lambda: client.recv(1 << 16), b""))


def test_a_peer_that_sends_on_after_an_error_is_cut_off(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "LINGER_SECONDS", 1000.0)
    with server.connect() as client:
        client.sendall(b"nonsense\r\n\r\n")
        check_error(read_to_end(client), 400)
        for _ in range(100):
            client.sendall(b"x")
            server.loop.advance(0)  # the server reads in between
        server.loop.advance(1001)
        with pytest.raises(OSError):  # reset, or broken pipe
            while True:
                client.sendall(b"x")
                server.loop.advance(0)


def test_an_error_for_a_peer_that_has_reset_the_connection() -> None:
    class ResetTransport:
        write: Any = None

        def is_closing(self) -> bool:
            return False

        def can_write_eof(self) -> bool:
            return True

        def write_eof(self) -> None:
            raise OSError(errno.ENOTCONN, "not connected")

        def resume_reading(self) -> None:
            pass

        def close(self) -> None:
            pass

    timers: list[Any] = []
    protocol: Any = SimpleNamespace(
        conn=SimpleNamespace(their_state=h11.SEND_BODY),
        loop=SimpleNamespace(call_later=lambda *timer: timers.append(timer)),
    )
    transport: Any = ResetTransport()
    listener.LingeringTransport(transport, protocol).close()
    assert timers == [(listener.LINGER_SECONDS, transport.close)]


def test_what_follows_an_error_is_bounded(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "LINGER_SECONDS", 1000.0)
    monkeypatch.setattr(listener, "LINGER_BYTES", 1 << 20)
    with server.connect() as client:
        client.sendall(b"nonsense\r\n\r\n")
        with pytest.raises(OSError):
            for _ in range(64):
                client.sendall(b"x" * (1 << 20))


def test_a_closed_connection_is_freed_at_once(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The timer of its first request held it for `HEADER_SECONDS`, 9 KB for each connection."""
    alive: WeakSet[listener.Protocol] = WeakSet()
    made = listener.Protocol.connection_made

    def noting(protocol: listener.Protocol, transport: Transport) -> None:
        alive.add(protocol)
        made(protocol, transport)

    monkeypatch.setattr(listener.Protocol, "connection_made", noting)
    for _ in range(20):
        assert server.talk(HEAD + b"Connection: close\r\n\r\n").startswith(b"HTTP/1.1 200")
    wait_until(lambda: gc.collect() < 0 or not alive, "connections are held")
