"""An asynchronous client of an engine in a thread of this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue

from ostro.core.errors import EngineDied
from ostro.core.ipc import loop
from ostro.core.ipc.client import AsyncEngine
from ostro.core.messages.commands import Close, Failed, FromEngine, Progress, Ready, ToEngine
from ostro.core.settings import ProgressCallback


class QueueInbox:
    """Messages to an engine in another thread; see `loop.Inbox`."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[ToEngine | None] = SimpleQueue()

    def put(self, message: ToEngine) -> None:
        self._queue.put(message)

    def wake(self) -> None:
        self._queue.put(None)

    def receive(self, wait: bool) -> list[ToEngine]:
        found = [self._queue.get()] if wait else []
        while not self._queue.empty():
            found.append(self._queue.get())
        return [message for message in found if message is not None]


class ThreadEngine(AsyncEngine):
    """An engine in a thread of this process; `build` returns it, warmed up, in that thread."""

    def __init__(self, build: Callable[[ProgressCallback], loop.DrivenEngine]) -> None:
        super().__init__()
        self._build = build
        self._inbox = QueueInbox()
        self._thread = threading.Thread(target=self._run, name="ostro-engine", daemon=True)

    async def start(self) -> Ready:
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        return await self._wait_ready()

    async def close(self) -> None:
        self._inbox.put(Close())
        self._lose(EngineDied("the engine is closed"))
        # The thread ends after its step; to join it here would block the event loop.
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)

    def _send(self, message: ToEngine) -> None:
        self._inbox.put(message)

    def _run(self) -> None:
        try:
            engine = self._build(lambda *steps: self._post(Progress(*steps)))
            self._post(Ready(models=engine.infos))
            loop.drive(engine, self._inbox, self._post)
        # An error that ends the loop has no request: the client loses the engine.
        except Exception as error:
            self._post(Failed.of(error))

    def _post(self, message: FromEngine) -> None:
        try:
            self._loop.call_soon_threadsafe(self._deliver, message)
        except RuntimeError:  # the event loop was closed before the engine
            self._inbox.put(Close())
