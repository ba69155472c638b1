"""Fetch media of requests: data: URLs, and http(s): URLs of public hosts.

Against server-side request forgery a host name is resolved once, all its addresses must be public,
and the connection goes to the address that was checked. Each redirect is checked the same way.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes, urljoin, urlsplit

from ostro.errors import RequestError

if TYPE_CHECKING:
    import httpx

MAX_BYTES = 64 << 20
"""Bytes of all media of one request, equal URLs once."""
SECONDS = 20.0
"""Time limit for all media of one request, in seconds."""
REDIRECTS = 3

NOT_PUBLIC_V4 = [
    ipaddress.IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",  # loopback
        "169.254.0.0/16",  # link-local; metadata services of clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved; broadcast
    )
]
"""IANA's IPv4 special-purpose registry (RFC 6890 and its updates), and multicast.

`ipaddress.is_global` differs between releases of Python, so it is not used.
"""
UNICAST_V6 = ipaddress.IPv6Network("2000::/3")
"""IPv6's global unicast addresses. Loopback, link-local, site-local, unique-local and multicast
addresses are outside, as are NAT64 (64:ff9b::/96, 64:ff9b:1::/48) and IPv4-compatible ones (::/96).
"""
NOT_PUBLIC_V6 = [
    ipaddress.IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments; Teredo (2001::/32) embeds IPv4 addresses
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4 embeds IPv4 addresses
        "3fff::/20",  # documentation
    )
]
"""IANA's IPv6 special-purpose registry within 2000::/3."""


def fetch_all(sources: Sequence[str]) -> list[bytes]:
    """The bytes behind the data: and http(s): URLs of one request. Equal URLs are read once.

    Raises RequestError for a URL that is malformed, not public, too large or too slow.
    """
    deadline, left, found = time.monotonic() + SECONDS, MAX_BYTES, dict[str, bytes]()
    for source in dict.fromkeys(sources):
        scheme = source[:8].partition(":")[0].lower()
        if scheme == "data":
            found[source] = read_data(source, left)
        elif scheme in ("http", "https"):
            found[source] = download(source, deadline, left)
        else:
            raise RequestError(
                f"expected a data: or http(s): URL, got {source[:40]!r}", param="messages"
            )
        left -= len(found[source])
    return [found[source] for source in sources]


def read_data(source: str, limit: int) -> bytes:
    """The contents of a data: URL (RFC 2397).

    Raises RequestError if it is malformed, or has more than `limit` bytes.
    """
    comma = source.find(",")
    if comma < 0:
        raise RequestError("a data: URL has no comma before its data", param="messages")
    body = source[comma + 1 :]
    if not source[:comma].lower().endswith(";base64"):
        check_size(len(data := unquote_to_bytes(body)), limit, "data: URLs")
        return data
    check_size(len(body) // 4 * 3 - 2, limit, "data: URLs")  # without the padding
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        raise RequestError("the contents of a data: URL are not base64", param="messages") from None


def check_size(size: int, limit: int, what: str) -> None:
    """Raise RequestError for media of more than `limit` bytes."""
    if size > limit:
        raise RequestError(
            f"{what}: more than {MAX_BYTES >> 20} MiB of media in one request", param="messages"
        )


def download(source: str, deadline: float, limit: int) -> bytes:
    """Fetch an http(s): URL, following up to `REDIRECTS` redirects.

    `deadline` is in time.monotonic()'s seconds, `limit` in bytes. Raises RequestError.
    """
    import httpx

    with httpx.Client(follow_redirects=False, trust_env=False) as client:
        for _ in range(REDIRECTS + 1):
            pinned, host = pin(source, deadline)
            client.timeout = max(0.01, deadline - time.monotonic())
            headers = {"host": host, "accept-encoding": "identity"}
            try:
                request = client.build_request("GET", pinned, headers=headers)
                request.extensions["sni_hostname"] = urlsplit(source).hostname
                with (
                    cut_at(deadline, request),
                    closing(client.send(request, stream=True)) as response,
                ):
                    if not response.is_redirect:
                        check_response(response, host)
                        return receive(response.iter_raw(), host, deadline, limit)
                    source = urljoin(source, response.headers["location"])
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
                check_time(host, deadline)
                raise RequestError(f"{host}: {str(error)[:200]}", param="messages") from None
    raise RequestError(f"{host}: more than {REDIRECTS} redirects", param="messages")


@contextmanager
def cut_at(deadline: float, request: httpx.Request) -> Iterator[None]:
    """Shut down the request's connection at the deadline.

    httpx's timeouts limit each read alone: a host that sends its head byte by byte is never late.
    """
    sockets: list[socket.socket] = []

    def shut() -> None:
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def on_event(name: str, info: dict[str, Any]) -> None:
        if name == "connection.connect_tcp.complete":
            # A duplicate stays valid when TLS takes over the socket itself.
            sockets.append(info["return_value"].get_extra_info("socket").dup())
            if time.monotonic() >= deadline:
                shut()

    request.extensions["trace"] = on_event
    timer = threading.Timer(deadline - time.monotonic(), shut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        for each in sockets:
            each.close()


def check_response(response: httpx.Response, host: str) -> None:
    """Raise RequestError for an error status, and for a body that would have to be unpacked."""
    if not response.is_success:
        raise RequestError(
            f"{host} answered with HTTP status {response.status_code}", param="messages"
        )
    coding = response.headers.get("content-encoding", "identity")
    if coding.lower() != "identity":
        raise RequestError(
            f"{host} answered with Content-Encoding {coding[:40]!r}; only identity is supported",
            param="messages",
        )


def receive(chunks: Iterable[bytes], host: str, deadline: float, limit: int) -> bytes:
    """Collect a response's body. Raises RequestError if it is too long or too slow."""
    data = bytearray()
    for chunk in chunks:
        data += chunk
        check_size(len(data), limit, host)
        check_time(host, deadline)
    check_time(host, deadline)  # a body without a length ends where the connection was cut
    return bytes(data)


def check_time(host: str, deadline: float) -> None:
    """Raise RequestError after the deadline."""
    if time.monotonic() >= deadline:
        raise too_late(host)


def too_late(host: str | None) -> RequestError:
    """The error for media that are not there at the deadline."""
    return RequestError(
        f"{host}: the media of the request did not arrive within {SECONDS:g} s", param="messages"
    )


def pin(source: str, deadline: float) -> tuple[str, str]:
    """The URL with its host replaced by an IP address, and the host with its port.

    Raises RequestError for a malformed URL, for a host that is unknown or not public, and for one
    that is not found before `deadline`.
    """
    try:
        parts = urlsplit(source)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        numbers = look_up(parts.hostname, port, deadline)
    except TimeoutError:
        raise too_late(parts.hostname) from None
    except (OSError, ValueError, UnicodeError):
        raise RequestError(f"found no address for {source[:80]!r}", param="messages") from None
    if parts.username is not None or parts.hostname is None:
        raise RequestError(f"expected http(s)://HOST/PATH, got {source[:80]!r}", param="messages")
    if not numbers or not all(is_public(number) for number in numbers):
        raise RequestError(f"{parts.hostname} is not a public address", param="messages")
    host = bracketed(parts.hostname)
    pinned = parts._replace(netloc=f"{bracketed(numbers[0])}:{port}").geturl()
    return pinned, host if parts.port is None else f"{host}:{parts.port}"


def look_up(host: str | None, port: int, deadline: float) -> list[str]:
    """The IP addresses of a host. Raises TimeoutError, OSError and UnicodeError.

    The system's resolver has no deadline, so it runs in a thread, which ends when the resolver
    gives up.
    """
    found: Future[list[str]] = Future()

    def resolve() -> None:
        try:
            entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except Exception as error:
            found.set_exception(error)
        else:
            found.set_result([str(entry[4][0]) for entry in entries])

    threading.Thread(target=resolve, name="ostro-lookup", daemon=True).start()
    return found.result(max(0.0, deadline - time.monotonic()))


def bracketed(host: str) -> str:
    """A host as URLs write it: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host else host


def is_public(number: str) -> bool:
    """Whether an IP address belongs to the public internet.

    An IPv4-mapped IPv6 address counts as its IPv4 address. Other addresses that embed IPv4
    addresses are not public: a gateway may lead them into a private network.
    """
    address = ipaddress.ip_address(number.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return address in UNICAST_V6 and not any(address in each for each in NOT_PUBLIC_V6)
        address = address.ipv4_mapped
    return not any(address in network for network in NOT_PUBLIC_V4)
