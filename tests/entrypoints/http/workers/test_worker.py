"""A worker, with a test as its server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from echo.engine import EchoEngine
from echo.model import END_ID, make_model
from echo.thread import ThreadEngine

from ostro.core.ipc.frames import LENGTH, frame
from ostro.core.messages.commands import ModelInfo
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.entrypoints.http.budget import COUNT_BYTES
from ostro.entrypoints.http.listener import listen
from ostro.entrypoints.http.options import Options
from ostro.entrypoints.http.workers.messages import (
    GetSeries,
    Series,
    Start,
    Stop,
    Synced,
    View,
    ViewModel,
    from_worker,
)
from ostro.entrypoints.http.workers.pool import options_of
from ostro.entrypoints.http.workers.worker import Worker, WorkerModel
from ostro.entrypoints.operations.access.keys import KeyRing

ROUNDS = 20
"""Messages that a worker answers while it may not accept connections."""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with listen("127.0.0.1", 0, False) as opened:
        yield opened


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(reference=str(make_model(tmp_path_factory.mktemp("models") / "echo")))


@pytest.fixture(scope="module")
def info() -> ModelInfo:
    async def start() -> ModelInfo:
        engine = ThreadEngine(lambda report: EchoEngine([END_ID]))
        ready = await engine.start()
        await engine.close()
        return ready.first

    return asyncio.run(start())


@pytest.fixture
def worker(settings: Settings) -> Worker:
    plugins = PluginManager()
    plugins.load()
    start = Start(
        number=1,
        settings=settings,
        options=options_of(Options(store="none")),
        registry=plugins.registry(),
        keys=KeyRing().state,
    )
    counts = memoryview(bytearray(2 * COUNT_BYTES)).cast("q")
    counts[1] = 5  # of the worker that this one replaces
    worker = Worker(start, counts)
    assert counts.tolist() == [0, 0]
    return worker


class Peer:
    """The server's end of the connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, message: msgspec.Struct, kind: type) -> Any:
        """Send a message, and return the next one of a kind."""
        self.writer.write(frame(message))
        while True:
            size = int.from_bytes(await self.reader.readexactly(LENGTH), "little")
            answer = from_worker.decode(await self.reader.readexactly(size))
            if isinstance(answer, kind):
                return answer


@asynccontextmanager
async def running(worker: Worker, listener: socket.socket) -> AsyncIterator[Peer]:
    """Run a worker; it ends with the connection."""
    ours, theirs = socket.socketpair()
    serving = asyncio.ensure_future(worker.run(theirs, listener))
    peer = Peer(*await asyncio.open_unix_connection(sock=ours))
    try:
        async with asyncio.timeout(60):
            yield peer
            peer.writer.close()
            await serving
    finally:
        peer.writer.close()
        worker.transport.abort()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


def view(settings: Settings, *models: ModelInfo) -> View:
    return View(
        version=1,
        states={"echo": "loaded" if models else "loading"},
        aliases={},
        models=[ViewModel(name="echo", settings=settings, info=each, load=1) for each in models],
        adapters={},
        templates={},
        loaded=bool(models),
        started=0,
    )


async def get(listener: socket.socket, path: str) -> bytes:
    """The response to a request, whenever its connection is accepted."""
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    response = await reader.read()
    writer.close()
    return response


def test_connections_are_accepted_once_the_models_are_open(
    worker: Worker, listener: socket.socket, settings: Settings, info: ModelInfo
) -> None:
    opening, opened, find = asyncio.Event(), asyncio.Event(), worker.find

    async def find_late(model: ViewModel) -> WorkerModel | None:
        opening.set()
        await opened.wait()
        return await find(model)

    async def case() -> None:
        worker.find = find_late  # type: ignore[method-assign]
        async with running(worker, listener) as peer:
            response = asyncio.ensure_future(get(listener, "/version"))
            peer.writer.write(frame(view(settings, info)))
            await opening.wait()
            for _ in range(ROUNDS):
                await peer.ask(GetSeries(), Series)
            assert not response.done() and not worker.web.started
            opened.set()
            assert (await response).startswith(b"HTTP/1.1 200")
            assert [*worker.service.models] == ["echo"]

    asyncio.run(case())


def test_a_server_that_loads_its_models_is_reached(
    worker: Worker, listener: socket.socket, settings: Settings
) -> None:
    async def case() -> None:
        async with running(worker, listener) as peer:
            await peer.ask(view(settings), Synced)
            assert (await get(listener, "/version")).startswith(b"HTTP/1.1 200")

    asyncio.run(case())


@pytest.mark.parametrize("end", [lambda peer: peer.writer.write(frame(Stop())), lambda peer: None])
def test_a_worker_ends_before_its_first_view(
    worker: Worker, listener: socket.socket, end: Callable[[Peer], None]
) -> None:
    async def case() -> None:
        async with running(worker, listener) as peer:
            end(peer)

    asyncio.run(case())
