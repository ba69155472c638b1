"""Clients that go away, or do not read, cost nothing for long."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import urlsplit

import pytest
from echo.server import PATIENCE, Running, wait_until

from ostro.core.errors import Overloaded
from ostro.core.ipc import streams as streams
from ostro.core.ipc.streams import TokenStream
from ostro.core.messages.outputs import TokenLogprobs, TokenOutput
from ostro.entrypoints.http import stream

LONG = {"prompt": "abc", "max_tokens": 4000, "ignore_eos": True}
"""It takes 200 s on `slow`, more than any test waits for its end."""


@pytest.fixture(scope="module")
def slow(start: Any) -> Any:
    server = start(send_buffer=16 << 10)
    server.echo.step_seconds = 0.05
    return server


def text_of(lines: list[str]) -> str:
    """The text of a stream of completions."""
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    return "".join(event["choices"][0]["text"] for event in events if event["choices"])


def send(server: Any, body: dict[str, Any]) -> socket.socket:
    """A connection on which a completion was asked for."""
    address = urlsplit(server.url)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(120)
    client.connect((address.hostname, address.port))
    data = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    client.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return client


@pytest.mark.parametrize("streamed", [False, True])
def test_disconnect_aborts(slow: Any, streamed: bool) -> None:
    client = send(slow, {**LONG, "stream": streamed})
    wait_until(lambda: slow.echo.live)
    if streamed:
        assert client.recv(100)
    client.close()
    wait_until(lambda: not slow.echo.live)
    assert slow.complete("ok").status_code == 200


def test_stop_string_ends_the_work(slow: Any) -> None:
    answer = slow.post("/v1/completions", **{**LONG, "stop": "cabca"}).json()
    assert answer["choices"][0]["text"] == "ab"
    wait_until(lambda: not slow.echo.live)


def test_many_disconnects_leave_nothing(slow: Any) -> None:
    clients = [send(slow, {**LONG, "n": 2, "stream": i % 2 == 0}) for i in range(20)]
    wait_until(lambda: len(slow.echo.live) == 20)
    for client in clients:
        client.close()
    wait_until(lambda: not slow.echo.live and not slow.service.engine.requests)
    assert slow.complete("ok").status_code == 200


def test_a_slow_reader_does_not_delay_other_requests(
    slow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that reads nothing of many pieces: the engine goes on, and few pieces wait."""
    monkeypatch.setattr(slow.echo, "step_seconds", 0.001)
    with send(slow, {**LONG, "max_tokens": 1500, "stream": True, "n": 2}):
        assert slow.complete("quick").json()["choices"][0]["text"] == "quick"
        wait_until(lambda: not slow.echo.live)
        (held,) = slow.service.engine._streams.values()
        assert 0 < len(held._waiting) <= 2
        assert slow.complete("quick").json()["choices"][0]["text"] == "quick"
    wait_until(lambda: not slow.service.engine.requests)


def test_comments_are_sent_during_pauses_only(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "KEEP_ALIVE", 1000.0)
    body, lines = {"prompt": "ab", "stream": True}, list[str]()

    def read() -> None:
        with server.http.stream("POST", "/v1/completions", json=body) as response:
            lines.extend(response.iter_lines())

    read()
    assert lines[-2] == "data: [DONE]" and ": keep-alive" not in lines
    text = text_of(lines)
    lines.clear()
    reader = threading.Thread(target=read)
    with server.paused():
        reader.start()
        wait_until(lambda: server.echo.live)
        assert not lines
        wait_until(lambda: server.loop.advance(1001) or ": keep-alive" in lines)
    reader.join()
    assert text_of(lines) == text and lines[-2] == "data: [DONE]"


def test_events_end_with_a_client_that_goes_while_one_is_sent() -> None:
    ended = []

    async def events() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b"data: 1\n\n"
        finally:
            ended.append("events")

    async def main() -> None:
        sending = asyncio.Event()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                sending.set()
                await asyncio.Event().wait()  # a client that does not read

        async def receive() -> dict[str, str]:
            await sending.wait()
            return {"type": "http.disconnect"}

        generator = events()
        async with asyncio.timeout(PATIENCE):
            await stream.EventStream(generator)({"type": "http"}, receive, send)
        assert ended == ["events"]

    asyncio.run(main())


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
