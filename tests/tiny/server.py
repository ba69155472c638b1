"""An HTTP server under test with a real engine process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import httpx

from ostro.core.messages.outputs import Stats
from ostro.core.settings import Settings
from ostro.entrypoints.http.listener import listen
from ostro.entrypoints.http.options import Options
from ostro.entrypoints.http.server import Server
from ostro.entrypoints.serve_config import ModelOptions, further_model


@dataclass
class RunningServer:
    """A server under test and the event loop it runs in."""

    url: str
    server: Server
    loop: asyncio.AbstractEventLoop

    def post(self, path: str, **body: Any) -> httpx.Response:
        """Post JSON to a path of the server."""
        return httpx.post(self.url + path, json=body, timeout=240)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=240)

    def stats(self) -> Stats:
        """Return the counters of the engine process."""
        future = asyncio.run_coroutine_threadsafe(self.server.engine.stats(), self.loop)
        return future.result(10)


@contextmanager
def serving(
    settings: Settings, also: Sequence[str] = (), **options: Any
) -> Iterator[RunningServer]:
    """Run a server in a thread of this process until the block ends.

    also: references of further models.
    """
    further = [further_model(settings, reference) for reference in also]
    with serving_models([ModelOptions(settings=settings), *further], **options) as server:
        yield server


@contextmanager
def serving_models(models: Sequence[ModelOptions], **options: Any) -> Iterator[RunningServer]:
    """Run a server of models in a thread of this process until the block ends.

    Unknown fields of requests are errors, unless `strict_fields` is false.
    """
    up: SimpleQueue[RunningServer | None] = SimpleQueue()
    with closing(listen("127.0.0.1", 0, False)) as listener:

        def ready(url: str) -> None:
            up.put(RunningServer(url, server, asyncio.get_running_loop()))

        def run() -> None:
            try:
                asyncio.run(server.run())
            finally:
                up.put(None)

        parsed = Options(**{"ready": ready, "strict_fields": True, **options})
        server = Server(models, parsed, listener, time.perf_counter())
        thread = threading.Thread(target=run)
        thread.start()
        found = up.get(timeout=120)
        assert found is not None, "the server exited before it was ready"
        try:
            yield found
        finally:
            found.loop.call_soon_threadsafe(server.stop.set)
            thread.join(30)
