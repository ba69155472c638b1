"""Media by address: what is read, and where nobody is sent."""

from __future__ import annotations

import base64
import contextlib
import gzip
import ipaddress
import math
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from ostro.core.errors import RequestError
from ostro.plugins.pipelines import fetch as module
from ostro.plugins.pipelines.fetch import fetch_all, is_public


@pytest.fixture(autouse=True)
def far_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine does not reach the time limit."""
    monkeypatch.setattr(module, "SECONDS", 600.0)


def fetch(source: str) -> bytes:
    return fetch_all([source])[0]


def test_data_addresses_are_read() -> None:
    packed = base64.b64encode(b"pixels").decode()
    assert fetch(f"data:image/png;base64,{packed}") == b"pixels"
    assert fetch("data:,a%20b") == b"a b"
    for bad in ("data:image/png;base64", "data:;base64,###", "file:///etc/passwd", "ftp://a/b", ""):
        with pytest.raises(RequestError):
            fetch(bad)


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1:248:1893:25c8:1946", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("169.254.169.254", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:93.184.216.34", True),
        ("64:ff9b::7f00:1", False),
        ("2002:7f00:1::", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("9.255.255.255", True),
        ("11.0.0.0", True),
        ("100.63.255.255", True),
        ("100.128.0.0", True),
        ("172.15.255.255", True),
        ("172.32.0.0", True),
        ("192.0.1.1", True),
        ("198.17.255.255", True),
        ("198.20.0.0", True),
        ("223.255.255.255", True),
        ("2001:200::1", True),
        ("2a00:1450:4001:80b::200e", True),
        ("::ffff:192.0.0.8", False),
    ],
)
def test_only_public_addresses(address: str, public: bool) -> None:
    assert is_public(address) is public


def test_every_address_of_a_host_is_public(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of its addresses a connection takes is up to the network."""
    entries = [(2, 1, 6, "", (number, 80)) for number in ("93.184.216.34", "10.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: entries)
    with pytest.raises(RequestError, match=r"pictures\.test is not a public address"):
        module.pin("http://pictures.test/a.png", math.inf)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: entries[:1])
    assert module.pin("http://pictures.test/a.png", math.inf)[0] == "http://93.184.216.34:80/a.png"


SPECIAL = """
0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24
192.0.2.0/24 192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4
240.0.0.0/4 255.255.255.255/32
::/128 ::1/128 ::/96 64:ff9b::/96 64:ff9b:1::/48 100::/64 100:0:0:1::/64 2001::/23 2001::/32
2001:2::/48 2001:10::/28 2001:20::/28 2001:db8::/32 2002::/16 3fff::/20 5f00::/16 fc00::/7 fe80::/10
fec0::/10 ff00::/8
"""
"""The registries of special-purpose addresses, multicast, and IPv6's site-local addresses."""


@pytest.mark.parametrize("network", SPECIAL.split())
def test_special_purpose_networks_are_not_public(network: str) -> None:
    found = ipaddress.ip_network(network)
    for address in (found[0], found[-1], found[found.num_addresses // 2]):
        assert not is_public(str(address)), address


@pytest.mark.parametrize(
    "address",
    [
        "::7f00:1",  # IPv4-compatible 127.0.0.1
        "::a9fe:a9fe",
        "64:ff9b:1::7f00:1",  # local-use NAT64
        "2002:a9fe:a9fe::1",  # 6to4 of 169.254.169.254
        "2002:5db8:d822::1",  # 6to4 of a public address: relays are not to be trusted
        "2001:0:7f00:1::",  # Teredo
        "2001:0:4136:e378:8000:63bf:80ff:fffe",
        "::ffff:0:7f00:1",  # IPv4-translated (SIIT)
    ],
)
def test_addresses_that_embed_others_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1/a.png",
        "http://localhost:1234/a.png",
        "https://[::1]/a.png",
        "http://169.254.169.254/latest/meta-data",
        "http://2130706433/",
        "http://user:secret@127.0.0.1/",
        "http:///nohost",
        "http://a:99999/",
        "http://[",
        "http://93.184.216.34/\x01",
        "http://93.184.216.34/" + "x" * 100_000,
        "http://" + "a" * 300 + "/",
    ],
)
def test_redirects_to_private_addresses_are_rejected(address: str) -> None:
    with pytest.raises(RequestError):
        fetch(address)


def test_hosts_are_pinned_to_the_address_that_was_checked() -> None:
    def pin(source: str) -> tuple[str, str]:
        return module.pin(source, time.monotonic() + 600)

    assert pin("http://93.184.216.34/a?b") == ("http://93.184.216.34:80/a?b", "93.184.216.34")
    address = "[2606:2800:220:1:248:1893:25c8:1946]"
    assert pin(f"https://{address}/a") == (f"https://{address}:443/a", address)
    assert pin(f"http://{address}:81/a") == (f"http://{address}:81/a", f"{address}:81")


BOMB = gzip.compress(bytes(32 << 20))


class Handler(BaseHTTPRequestHandler):
    """Answers by path: /ok, /in (to a private address), /round (to itself), /wrong (to no address),
    /big, /slow, /silent, /gone, /drip (its head, a byte at a time), /trickle (its body), /gzip.

    /slow answers after `pause`; /silent waits for it and then for the end of the connection, /drip
    and /trickle call it after every byte.
    """

    seen: ClassVar[list[str]] = []

    @staticmethod
    def pause() -> None:
        """A test replaces it."""

    def do_GET(self) -> None:
        where = {
            "/in": "http://10.0.0.1/secret",
            "/round": "/round",
            "/once": "/ok",
            "/wrong": "http://[",
        }
        if self.path in where:
            self.send_response(302)
            self.send_header("location", where[self.path])
            self.end_headers()
            return
        if self.path == "/silent":
            type(self).pause()
            self.connection.recv(1)
            return
        if self.path == "/slow":
            type(self).pause()
        if self.path == "/drip":
            return self.drip(b"HTTP/1.1 200 OK\r\nx: " + b"x" * 1000)
        self.send_response(404 if self.path == "/gone" else 200)
        if self.path == "/gzip":
            self.seen.append(self.headers["accept-encoding"])
            self.send_header("content-encoding", "gzip")
        self.end_headers()
        if self.path == "/gzip":
            self.wfile.write(BOMB)
            return
        if self.path == "/trickle":
            return self.drip(b"x" * 1000)
        self.wfile.write(b"pixels" if self.path in ("/ok", "/slow") else b"x" * 5000)

    def drip(self, data: bytes) -> None:
        """Send bytes one by one until the client has closed."""
        with contextlib.suppress(OSError):
            for i in range(len(data)):
                self.wfile.write(data[i : i + 1])
                type(self).pause()

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server on loopback that counts as public, under a name that only we know."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port, known = server.server_port, socket.getaddrinfo

    def lookup(host: Any, *args: Any, **more: Any) -> Any:
        return known("127.0.0.1" if host == "pictures.test" else host, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    real = is_public
    monkeypatch.setattr(module, "is_public", lambda n: n == "127.0.0.1" or real(n))
    monkeypatch.setattr(module, "MAX_BYTES", 4000)
    yield f"http://pictures.test:{port}"
    server.shutdown()
    server.server_close()


class FakeTimer:
    """A `threading.Timer` that ends when a test calls its function. `last` was started last."""

    last: ClassVar[FakeTimer]

    def __init__(self, seconds: float, function: Callable[[], object]) -> None:
        self.seconds, self.function = seconds, function

    def start(self) -> None:
        FakeTimer.last = self

    def cancel(self) -> None: ...

    def join(self) -> None: ...


@pytest.fixture
def now(site: str, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the module's clock, which a test sets; no timer ends by itself."""
    now = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(threading, "Timer", FakeTimer)
    return now


def test_what_is_fetched_is_bounded_and_checked_at_every_turn(site: str) -> None:
    assert fetch(f"{site}/ok") == b"pixels"
    assert fetch(f"{site}/once") == b"pixels"
    for path, said in (
        ("/in", "not a public address"),
        ("/round", "more than 3 redirects"),
        ("/wrong", "pictures.test"),
        ("/big", "more than"),
        ("/gone", "status 404"),
    ):
        with pytest.raises(RequestError, match=said):
            fetch(site + path)
    assert fetch(f"{site}/ok") == b"pixels"


def test_all_media_of_a_request_share_bounds(
    site: str, monkeypatch: pytest.MonkeyPatch, now: list[float]
) -> None:
    assert fetch_all([f"{site}/ok", "data:,ab", f"{site}/once"]) == [b"pixels", b"ab", b"pixels"]
    monkeypatch.setattr(module, "MAX_BYTES", 15)
    with pytest.raises(RequestError, match="more than 0 MiB of media in one request"):
        fetch_all([f"{site}/ok#{i}" for i in range(3)])
    for data in ("data:,0123456789", "data:;base64,MDEyMzQ1Njc4OQ=="):
        assert fetch_all([data]) == [b"0123456789"]
        with pytest.raises(RequestError, match="data: URLs: more than 0 MiB of media"):
            fetch_all([f"{site}/ok", data])
    monkeypatch.setattr(module, "MAX_BYTES", 4000)

    def pause() -> None:
        now[0] += 250

    monkeypatch.setattr(Handler, "pause", pause)
    assert fetch_all([f"{site}/slow#{i}" for i in range(2)]) == [b"pixels"] * 2
    with pytest.raises(RequestError, match=r"within 600 s"):
        fetch_all([f"{site}/slow#{i}" for i in range(3)])
    assert fetch_all([f"{site}/ok"]) == [b"pixels"]


def test_equal_urls_are_read_once(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[str]()

    def note(source: str, *bounds: Any) -> bytes:
        read.append(source)
        return b"pixels"

    monkeypatch.setattr(module, "download", note)
    monkeypatch.setattr(module, "read_data", note)
    data = "data:;base64,cGl4ZWxz"
    assert fetch_all([f"{site}/ok", data, f"{site}/ok", data]) == [b"pixels"] * 4
    assert read == [f"{site}/ok", data]


@pytest.mark.parametrize(("path", "pauses"), [("/silent", 1), ("/drip", 20), ("/trickle", 20)])
def test_slow_hosts_end_at_the_deadline(
    site: str, monkeypatch: pytest.MonkeyPatch, now: list[float], path: str, pauses: int
) -> None:
    numbers = count(1)

    def pause() -> None:
        now[0] += 600 / pauses
        if next(numbers) == pauses:
            FakeTimer.last.function()

    monkeypatch.setattr(Handler, "pause", pause)
    with pytest.raises(RequestError, match=r"within 600 s"):
        fetch(site + path)
    assert FakeTimer.last.seconds == 600
    assert fetch(f"{site}/ok") == b"pixels"


@pytest.mark.process
@pytest.mark.parametrize("path", ["/silent", "/drip", "/trickle"])
def test_slow_hosts_end_in_real_time(site: str, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(Handler, "pause", lambda: time.sleep(0.05))
    monkeypatch.setattr(module, "SECONDS", 0.5)
    with pytest.raises(RequestError, match=r"within 0\.5 s"):
        fetch(site + path)
    monkeypatch.setattr(module, "SECONDS", 600.0)
    assert fetch(f"{site}/ok") == b"pixels"


def test_a_slow_lookup_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()

    def lookup(*_: Any, **__: Any) -> list[Any]:
        answered.wait()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    times = count()  # each reading of the clock moves it by the limit
    clock = SimpleNamespace(monotonic=lambda: next(times) * module.SECONDS)
    monkeypatch.setattr(module, "time", clock)
    with pytest.raises(RequestError, match=r"pictures\.test: the media .* within 600 s"):
        fetch("http://pictures.test/a.png")
    answered.set()


def test_compressed_answers_are_not_unpacked(site: str) -> None:
    Handler.seen.clear()
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match="gzip"):
            fetch(f"{site}/gzip")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert Handler.seen == ["identity"] and peak < 8 << 20
