"""Large bodies beside /health: its latency, and the memory of the API process afterwards."""

from __future__ import annotations

import base64
import json
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tiny.vision import make_vision

from .clients import quantile
from .server import LoadedServer, serve

pytestmark = [
    pytest.mark.slow,
    pytest.mark.process,  # a limit on latency needs a machine without other work
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]
CHAT, COMPLETIONS, FILES = "/v1/chat/completions", "/v1/completions", "/v1/files"
SECONDS = float(os.environ.get("OSTRO_LOAD_SECONDS", "40"))
LATENCY = 0.1
"""Limit on the 99 % quantile of the latency of /health in seconds, on an otherwise idle machine."""
RESIDENT = 200.0
"""Limit on the memory of the API process at rest in MiB."""


def chat(content: object) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": content}]}).encode()


def images(count: int) -> bytes:
    url = "data:image/png;base64," + base64.b64encode(os.urandom(400_000)).decode()
    return chat([{"type": "image_url", "image_url": {"url": url}}] * count)


def numbers(count: int) -> bytes:
    return b'{"prompt": [%s]}' % b",".join(b"%d" % (10_000 + i) for i in range(count))


def members(count: int) -> bytes:
    return json.dumps(dict.fromkeys(map(str, range(count)))).encode()


def schema(count: int) -> bytes:
    definitions = [{"type": "object", "properties": {"a": [i]}} for i in range(count)]
    function = {"name": "f", "parameters": {"definitions": definitions}}
    tools = [{"type": "function", "function": function}]
    return json.dumps({"messages": "word " * 9000, "tools": tools}).encode()


def form(size: int) -> bytes:
    head = b'--x\r\ncontent-disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
    purpose, file = (b"purpose", b"", b"vision"), (b"file", b'; filename="a"', bytes(size))
    return head % purpose + head % file + b"--x--\r\n"


JSON, FORM = "application/json", "multipart/form-data; boundary=x"
BODIES: dict[str, tuple[str, str, Callable[[], bytes], int]] = {
    "text, 1 MB": (CHAT, JSON, lambda: chat("word " * 200_000), 400),
    "text, 10 MB": (CHAT, JSON, lambda: chat("word " * 2_000_000), 400),
    "text, 49 MB": (CHAT, JSON, lambda: chat("word " * 9_800_000), 400),
    "token ids, 7 MB": (COMPLETIONS, JSON, lambda: numbers(1 << 20), 400),
    "token ids, 24 MB": (COMPLETIONS, JSON, lambda: numbers(3_500_000), 400),
    "64 images, 34 MB": (CHAT, JSON, lambda: images(64), 400),
    "200,000 members": (
        CHAT,
        JSON,
        lambda: members(199_000),
        400,
    ),
    "a schema of 200,000 values": (CHAT, JSON, lambda: schema(33_000), 400),
    "form, 100 MB": (FILES, FORM, lambda: form(100_000_000), 200),
}
"""Route, content type, body, and status of the response."""


def send(url: str, path: str, kind: str, body: bytes) -> int:
    """Post a body over a new connection and return the status of the response."""
    address = urlsplit(url)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: {kind}\r\n"
    )
    with closing(socket.create_connection((address.hostname, address.port), 120)) as client:
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
        client.sendall(body)
        return int(client.makefile("rb").readline().split()[1])


def health(url: str, seconds: float) -> list[float]:
    """Return the seconds that /health took, asked 50 times a second over new connections."""
    address, times = urlsplit(url), list[float]()
    end = time.monotonic() + seconds
    while (start := time.monotonic()) < end:
        with closing(socket.create_connection((address.hostname, address.port), 60)) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert client.makefile("rb").readline().split()[1] == b"200"
        times.append(time.monotonic() - start)
        time.sleep(0.02)
    return times


@contextmanager
def posting(url: str, name: str, clients: int = 2) -> Iterator[Counter[int]]:
    """Post one of the bodies again and again until the block ends; yields the statuses."""
    path, kind, make, _ = BODIES[name]
    body, statuses, stop = make(), Counter[int](), threading.Event()

    def post() -> None:
        while not stop.is_set():
            statuses[send(url, path, kind, body)] += 1

    threads = [threading.Thread(target=post) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield statuses
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def show(what: str, times: list[float]) -> None:
    middle, high, most = (quantile(times, share) * 1000 for share in (0.5, 0.99, 1))
    print(
        f"\n{what:26} /health {len(times):4} times: {middle:.0f} / {high:.0f} / {most:.0f} ms",
        end="",
    )


def rest(server: LoadedServer) -> float:
    """Return the MiB of the API process as soon as they are below the limit, or after 20 s."""
    deadline = time.monotonic() + 20
    while (found := server.held().resident[0]) > RESIDENT and time.monotonic() < deadline:
        time.sleep(0.5)
    return found


def slowdown() -> float:
    """Return the seconds per second of processor time: 1 on an otherwise idle machine."""
    start, used = time.perf_counter(), time.thread_time()
    while time.thread_time() - used < 1:
        sum(range(10_000))
    return time.perf_counter() - start


@pytest.mark.timeout(900)
def test_large_bodies_delay_no_other_request(tmp_path: Path) -> None:
    """Figures: median, 99 % quantile and maximum; memory during the requests and afterwards."""
    model, store = make_vision(tmp_path / "model"), tmp_path / "store"
    with serve(tmp_path, str(model), "--store", str(store)) as server:
        show("quiet", health(server.url, 5))
        late, left, limit = list[float](), [server.held().resident[0]], LATENCY * slowdown()
        for name, (*_, expected) in BODIES.items():
            with posting(server.url, name) as statuses:
                times = health(server.url, SECONDS / len(BODIES))
                peak = server.held().resident[0]
            late += times
            left.append(rest(server))
            show(name, times)
            print(f"; {peak:.0f}, then {left[-1]:.0f} MiB; {dict(statuses)}", end="", flush=True)
            assert statuses.keys() <= {expected, 503}
        show("all", late)
        print(f"; the machine was {limit / LATENCY:.1f} times slower than idle")
        assert quantile(late, 0.99) <= limit, limit
        assert max(left) <= RESIDENT
