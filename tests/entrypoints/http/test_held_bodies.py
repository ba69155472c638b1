"""Bodies that clients hold back from a server with workers: no memory without a key."""

from __future__ import annotations

import select
import socket
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from .test_workers import Served, launch

BODIES, SIZE, GROWTH = 40, 15_000_000, 20 << 20
LAST = 10
"""Bytes of each body that its client does not send."""
PART = bytes(1 << 16)
SECONDS = 30.0
"""Time limit for all responses to one route."""


def head(route: str, key: str) -> bytes:
    lines = [f"{route} HTTP/1.1", "Host: localhost", f"Content-Length: {SIZE}"]
    lines += ["Content-Type: application/json"] + ([f"X-API-Key: {key}"] if key else [])
    return "\r\n".join([*lines, "", ""]).encode()


def hold(served: Served, route: str, key: str) -> tuple[list[bytes], int]:
    """Send all bodies at the same time, but their ends. Return the starts of the responses, and the
    memory of the workers before the connections are closed.
    """
    address = urlsplit(served.process.url)
    where = address.hostname, address.port or 0
    clients = [socket.create_connection(where) for _ in range(BODIES)]
    left = dict.fromkeys(clients, SIZE - LAST)
    answers = dict.fromkeys(clients, b"")
    for client in clients:
        client.sendall(head(route, key))
        client.setblocking(False)
    end = time.monotonic() + SECONDS
    try:
        while time.monotonic() < end:
            silent = [client for client in clients if not answers[client]]
            sending = [client for client in clients if left[client]]
            if not (silent or sending):
                break
            readable, writable, _ = select.select(silent, sending, [], 1)
            for client in readable:
                answers[client] = client.recv(1 << 16)
            for client in writable:
                try:
                    left[client] -= client.send(PART[: left[client]])
                except ConnectionError:  # the server has closed a connection that it has answered
                    left[client] = 0
        return [*answers.values()], memory(served)
    finally:
        for client in clients:
            client.close()


def memory(served: Served) -> int:
    """The bytes of memory that the workers hold."""
    statuses = [Path(f"/proc/{pid}/status").read_text() for pid in served.workers]
    return sum(int(status.partition("VmRSS:")[2].split()[0]) << 10 for status in statuses)


@pytest.mark.process
def test_bodies_that_are_refused_are_not_read(tmp_path: Path) -> None:
    with launch(tmp_path, count=2) as served:
        for path in ("/v1/load_lora_adapter", "/v1/models/load", "/health"):
            served.send(path, "root", model="echo")  # the first requests load what all need
        for route, key, status in (
            ("POST /v1/load_lora_adapter", "", 401),
            ("POST /v1/models/load", "ann", 403),
            ("POST /v1/models/load", "root", 413),
            ("GET /health", "", 200),
            ("POST /health", "", 405),
            ("POST /unknown", "root", 404),
        ):
            before = memory(served)
            answers, after = hold(served, route, key)
            assert after - before < GROWTH, (route, key)
            statuses = Counter(answer[9:12].decode() for answer in answers)
            assert statuses == {str(status): BODIES}, (route, key)
