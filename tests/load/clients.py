"""Clients of a server under load: those that behave well, and those that do not.

They speak HTTP over plain sockets: on two cores, a client library would need as much of the
processor as the server.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import inf
from typing import Any
from urllib.parse import urlsplit

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TIMEOUT = 600.0
SLOW_BYTES = 1024
"""Bytes per second that a slow reader reads."""
BUSY = (429, 503)
"""Statuses of a server that has no capacity."""


@dataclass
class Outcomes:
    """What the clients have seen.

    statuses  responses by kind of client and status; 0 is a request that its client gave up
    gaps      seconds between two tokens of streams that behave well
    faults    what no client may see
    """

    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    gaps: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def count(self, kind: str, status: int, allowed: Sequence[int], body: bytes = b"") -> None:
        """Count a response. A status that is not allowed is a fault."""
        self.statuses[kind, status] += 1
        if status not in allowed:
            self.faults.append(f"{kind}: status {status}: {body[:300].decode(errors='replace')}")

    def quantile(self, share: float) -> float:
        """A quantile of the gaps in seconds."""
        return quantile(self.gaps, share)

    def report(self, seconds: float) -> str:
        """The rate, and the median and 95 % quantile of the gaps."""
        middle, high = (self.quantile(share) * 1000 for share in (0.5, 0.95))
        return f"{len(self.gaps) / seconds:.0f} tokens/s, gaps {middle:.1f} / {high:.1f} ms"

    def total(self, status: int) -> int:
        """The number of responses with a status."""
        return sum(count for (_, found), count in self.statuses.items() if found == status)


def quantile(values: Sequence[float], share: float) -> float:
    """The value that this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass
class Response:
    """A response whose head has been read. Its body follows in `reader`."""

    status: int
    headers: dict[str, str]
    reader: asyncio.StreamReader

    async def body(self) -> bytes:
        """Read the rest. Parts of a chunked body keep their lengths."""
        return await self.reader.read()

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the data of the events of a stream."""
        async for line in self.reader:
            if line.startswith(b"data: "):
                yield line[6:].strip()


@asynccontextmanager
async def connect(
    url: str, *, buffer: int | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open a connection, and abort it at the end of the block. buffer: bytes of its receiver."""
    address = urlsplit(url)
    assert address.hostname is not None and address.port is not None
    end = socket.socket()
    end.setblocking(False)
    if buffer is not None:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    limit = 1 << 16 if buffer is None else buffer
    try:
        await asyncio.get_running_loop().sock_connect(end, (address.hostname, address.port))
        reader, writer = await asyncio.open_connection(sock=end, limit=limit)
    except BaseException:
        end.close()
        raise
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


@asynccontextmanager
async def request(url: str, data: bytes, *, buffer: int | None = None) -> AsyncIterator[Response]:
    """Send the bytes of a request and yield the response. The end closes the connection."""
    async with connect(url, buffer=buffer) as (reader, writer), asyncio.timeout(TIMEOUT):
        writer.write(data)
        yield await read_head(reader)


def encode(
    path: str, body: Any = None, *, method: str = "", type: str = "application/json"
) -> bytes:
    """The bytes of a request with a JSON body, with bytes as they are, or without a body.

    method: POST with a body and GET without one by default.
    """
    method = method or ("GET" if body is None else "POST")
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    if body is None:
        return f"{head}\r\n".encode()
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head += f"Content-Type: {type}\r\nContent-Length: {len(data)}\r\n"
    return f"{head}\r\n".encode() + data


async def read_head(reader: asyncio.StreamReader) -> Response:
    """Read the head of a response."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = (line.split(": ", 1) for line in lines[1:] if line)
    headers = {name.lower(): value for name, value in pairs}
    return Response(int(lines[0].split()[1]), headers, reader)


def chat(tokens: int, **fields: Any) -> dict[str, Any]:
    """The body of a streamed chat with exactly this number of tokens."""
    question = f"What is {random.randrange(1000)} + {random.randrange(1000)}?"
    return {
        "messages": [{"role": "user", "content": question}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        **fields,
    }


# Clients. Each sends requests until it is cancelled.


async def stream_chats(url: str, outcomes: Outcomes, tokens: int = 100, **fields: Any) -> None:
    """Read streams to their end, as a client that behaves well."""
    while True:
        await stream_chat(url, outcomes, tokens, **fields)


async def stream_chat(
    url: str, outcomes: Outcomes, tokens: int, *, allowed: Sequence[int] = (200,), **fields: Any
) -> None:
    """Read one stream and check it."""
    async with request(url, encode(CHAT, chat(tokens, **fields))) as response:
        if response.status != 200:
            outcomes.count("stream", response.status, allowed, await response.body())
            return
        last, tail, count = 0.0, b"", 0
        async for event in response.events():
            now = time.monotonic()
            if b'"content"' in event:
                if last:
                    outcomes.gaps.append(now - last)
                last, count = now, count + 1
            if b'"error"' in event:
                outcomes.faults.append(f"stream: {event.decode()[:300]}")
            tail = event
        if tail != b"[DONE]":
            outcomes.faults.append(f"stream: ends after {count} events with {tail[:100]!r}")
        outcomes.count("stream", 200, allowed)


async def leave(url: str, outcomes: Outcomes) -> None:
    """Disconnect amid requests: before the body is complete, before the answer, amid a stream."""
    while True:
        events = random.choice((None, 0, 0, 1, 5, 20))
        if events is None:
            async with connect(url) as (_, writer):
                writer.write(encode(CHAT, chat(100))[:-20])
                await asyncio.sleep(random.uniform(0, 0.1))
        else:
            async with connect(url) as (reader, writer):
                writer.write(encode(CHAT, chat(900)))
                if events == 0:
                    await asyncio.sleep(random.uniform(0, 0.1))
                for _ in range(events):
                    await reader.readline()
        outcomes.statuses["leave", 0] += 1
        await asyncio.sleep(0.1)


async def give_up(url: str, data: bytes, seconds: float) -> None:
    """Send a request, and disconnect after this time."""
    async with connect(url) as (_, writer):
        writer.write(data)
        await asyncio.sleep(seconds)


async def read_slowly(url: str, outcomes: Outcomes) -> None:
    """Read streams at `SLOW_BYTES` per second."""
    while True:
        async with request(url, encode(CHAT, chat(300)), buffer=4096) as response:
            outcomes.count("slow", response.status, (200,))
            while await response.reader.read(SLOW_BYTES // 4):
                await asyncio.sleep(0.25)


async def send_too_much(url: str, outcomes: Outcomes) -> None:
    """Send requests that exceed a limit."""
    text = "word " * (1 << 18)
    bodies: list[tuple[str, Any, Sequence[int]]] = [
        (COMPLETIONS, {"prompt": text}, (400, 413)),
        (COMPLETIONS, {"prompt": [1] * 300_000}, (400,)),
        (COMPLETIONS, {"prompt": "a", "n": 100_000}, (400,)),
        (COMPLETIONS, b"[" * 100_000 + b"]" * 100_000, (400,)),
        (CHAT, {"messages": [{"role": "user", "content": text}]}, (400, 413)),
        (f"/{'x' * 40_000}", None, (431, 414)),
        ("/v1/models/none", None, (404,)),
    ]
    encoded = [(encode(path, body), allowed) for path, body, allowed in bodies]
    while True:
        for data, allowed in encoded:
            async with request(url, data) as response:
                outcomes.count("too much", response.status, allowed, await response.body())
            await asyncio.sleep(0.5)


async def swap_adapters(url: str, outcomes: Outcomes, names: Sequence[str]) -> None:
    """Load adapters from the folders of these names, use and unload them."""
    while True:
        for name in names:
            swapped = f"swapped-{name}"
            await expect(
                url,
                outcomes,
                "/v1/load_lora_adapter",
                {"lora_name": swapped, "lora_path": name, "load_inplace": True},
            )
            await expect(url, outcomes, CHAT, {**chat(20, stream=False), "model": swapped})
            await expect(url, outcomes, "/v1/unload_lora_adapter", {"lora_name": swapped})
            await asyncio.sleep(0.5)


async def swap_models(
    url: str, outcomes: Outcomes, name: str, reference: str, *, change: bool, end: float = inf
) -> None:
    """Load a model, use and unload it.

    reference: below --model-root. change: its format is changed and its files are read again while
    it is used. end: monotonic time after which no model is loaded.
    """
    made = {"model": name, "reference": reference, "max_seqs": 4, "context": 512}
    while time.monotonic() < end:
        await expect(url, outcomes, "/v1/models/load", {**made, "memory": "64MB"})
        body = {**chat(20, stream=False), "model": name}
        await expect(url, outcomes, CHAT, body)
        changes: list[tuple[str, Any]] = [
            (f"/v1/models/{name}/requantize", {"quant": random.choice(("q8_0", "q4k"))}),
            ("/v1/models/reload", {"model": name}),
        ]
        for path, fields in changes if change else ():
            # running requests end with the old weights
            await asyncio.gather(
                expect(url, outcomes, CHAT, body), expect(url, outcomes, path, fields)
            )
            await expect(url, outcomes, CHAT, body)
        await expect(url, outcomes, "/v1/models/unload", {"model": name})
        await asyncio.sleep(0.5)


async def unload_model(url: str, outcomes: Outcomes, name: str) -> None:
    """Unload a model that a client may have left loaded."""
    async with request(url, encode("/v1/models/unload", {"model": name})) as response:
        outcomes.count("unload", response.status, (200, 404), await response.body())


async def expect(url: str, outcomes: Outcomes, path: str, body: Any) -> bytes:
    """Send a request that succeeds, and return the body of the response."""
    async with request(url, encode(path, body)) as response:
        data = await response.body()
        outcomes.count(path, response.status, (200,), data)
        return data


async def insist(url: str, outcomes: Outcomes, tokens: int = 50) -> None:
    """Repeat a stream for which the server has no capacity after a short while."""
    while True:
        before = outcomes.total(200)
        await stream_chat(url, outcomes, tokens, allowed=(200, *BUSY))
        if outcomes.total(200) == before:
            await asyncio.sleep(0.2)


async def run_for(seconds: float, outcomes: Outcomes, *clients: Any) -> None:
    """Run clients until they end, at most for a time. An error of a client is a fault."""
    tasks = [asyncio.ensure_future(client) for client in clients]
    await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in tasks:
        task.cancel()
    for error in await asyncio.gather(*tasks, return_exceptions=True):
        if error is not None and not isinstance(error, asyncio.CancelledError):
            outcomes.faults.append(f"a client ends: {error!r}")
    await asyncio.sleep(0.1)  # aborted connections close
