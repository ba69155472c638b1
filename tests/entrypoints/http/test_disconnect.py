"""Clients that go away, or do not read, cost nothing for long."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import Any
from urllib.parse import urlsplit

import pytest

from ostro.core.engine.request import TokenLogprobs, TokenOutput
from ostro.core.errors import Overloaded
from ostro.core.ipc import streams as streams
from ostro.core.ipc.streams import TokenStream
from ostro.entrypoints.http import stream

LONG = {"prompt": "abc", "max_tokens": 4000, "ignore_eos": True}
"""It takes 40 s, more than any test waits for its end."""


@pytest.fixture(scope="module")
def slow(start: Any) -> Any:
    server = start(send_buffer=16 << 10)
    server.echo.step_seconds = 0.01
    return server


def send(server: Any, body: dict[str, Any]) -> socket.socket:
    """A connection on which a completion was asked for."""
    address = urlsplit(server.url)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(10)
    client.connect((address.hostname, address.port))
    data = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    client.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return client


def wait(condition: Any, seconds: float) -> float:
    """Wait until something holds; the seconds it took."""
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < seconds, "it did not come to hold in time"
        time.sleep(0.005)
    return time.monotonic() - begin


@pytest.mark.parametrize("streamed", [False, True])
def test_disconnect_aborts(slow: Any, streamed: bool) -> None:
    client = send(slow, {**LONG, "stream": streamed})
    wait(lambda: slow.echo.live, 30)
    if streamed:
        assert client.recv(100)
    client.close()
    wait(lambda: not slow.echo.live, 15)
    assert slow.complete("ok").status_code == 200


def test_stop_string_ends_the_work(slow: Any) -> None:
    answer = slow.post("/v1/completions", **{**LONG, "stop": "cabca"}).json()
    assert answer["choices"][0]["text"] == "ab"
    wait(lambda: not slow.echo.live, 15)


def test_many_disconnects_leave_nothing(slow: Any) -> None:
    clients = [send(slow, {**LONG, "n": 2, "stream": i % 2 == 0}) for i in range(20)]
    wait(lambda: len(slow.echo.live) == 20, 30)
    for client in clients:
        client.close()
    wait(lambda: not slow.echo.live and not slow.service.engine.requests, 15)
    assert slow.complete("ok").status_code == 200


def test_a_slow_reader_does_not_delay_other_requests(
    slow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that reads nothing of many pieces: the engine goes on, and few pieces wait."""
    monkeypatch.setattr(slow.echo, "step_seconds", 0.001)
    with send(slow, {**LONG, "max_tokens": 1500, "stream": True, "n": 2}):
        assert slow.complete("quick").json()["choices"][0]["text"] == "quick"
        wait(lambda: not slow.echo.live, 60)
        (held,) = slow.service.engine._streams.values()
        assert 0 < len(held._waiting) <= 2
        assert slow.complete("quick").json()["choices"][0]["text"] == "quick"
    wait(lambda: not slow.service.engine.requests, 30)


def test_keep_alive_comments(slow: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "KEEP_ALIVE", 0.05)
    monkeypatch.setattr(slow.echo, "step_seconds", 0.4)
    with slow.http.stream(
        "POST", "/v1/completions", json={"prompt": "ab", "stream": True}
    ) as response:
        lines = list(response.iter_lines())
    assert ": keep-alive" in lines and lines.index(": keep-alive") < lines.index("data: [DONE]")
    assert sum(line.startswith("data: {") for line in lines) == 3


def output(tokens: list[int], **fields: Any) -> TokenOutput:
    return TokenOutput(id="a", tokens=tokens, **fields)


def test_stream_merges_what_is_not_read() -> None:
    async def main() -> None:
        held = TokenStream()
        held.put(output([1], prompt_tokens=5, logprobs=[TokenLogprobs(1, -1.0)]))
        held.put(output([7], index=1))
        held.put(output([2], logprobs=[TokenLogprobs(2, -2.0)]))
        held.put(output([3], finish="stop", stopped_by=9))
        first, second = await held.get(), await held.get()
        assert first.tokens == [1, 2, 3] and first.prompt_tokens == 5
        assert [entry.token for entry in first.logprobs or []] == [1, 2]
        assert (first.finish, first.stopped_by) == ("stop", 9)
        assert second.tokens == [7] and second.index == 1

    asyncio.run(main())


def test_stream_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "BUFFER", 100)

    async def main() -> None:
        held = TokenStream()
        for _ in range(60):
            held.put(output([1]))
        with pytest.raises(Overloaded, match="does not read the response"):
            await held.get()
        read = TokenStream()
        for _ in range(300):
            read.put(output([1]))
            assert (await read.get()).tokens == [1]

    asyncio.run(main())
