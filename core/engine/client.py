"""The engine as asynchronous code sees it: requests go in, outputs come out, wherever it runs."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Callable
from queue import SimpleQueue

from ostro.core.engine import loop
from ostro.core.engine.messages import (
    Abort,
    Ask,
    Close,
    Failed,
    FromEngine,
    Outputs,
    Progress,
    Ready,
    ToEngine,
)
from ostro.core.engine.request import Stats, TokenOutput, TokenRequest
from ostro.core.engine.stream import Stream
from ostro.core.errors import EngineDied, OstroError, Overloaded


class AsyncEngine(ABC):
    """An engine behind messages. All methods belong to one event loop.

    `info` is None until the engine is ready, `progress` tells how far loading has come, and `fault`
    why the engine is gone. No more than `limit` requests may be under way, waiting ones included.
    """

    def __init__(self) -> None:
        self.info: Ready | None = None
        self.progress = Progress(what="starting")
        self.fault: OstroError | None = None
        self.draining = False
        self.limit = 1024
        self._streams: dict[str, Stream] = {}
        self._asked: deque[asyncio.Future[Stats]] = deque()
        self._idle = asyncio.Event()
        self._idle.set()
        self._settled = asyncio.Event()
        self._gone = asyncio.Event()

    @property
    def ready(self) -> bool:
        """Whether a request would be taken now."""
        return self.info is not None and self.fault is None and not self.draining

    @property
    def requests(self) -> int:
        """How many requests are under way."""
        return len(self._streams)

    @abstractmethod
    async def start(self) -> Ready:
        """Start the engine and wait until it is ready. Raises what kept it from that."""

    @abstractmethod
    def _send(self, message: ToEngine) -> None: ...

    @abstractmethod
    async def close(self) -> None:
        """End the engine; requests under way fail."""

    async def generate(self, request: TokenRequest) -> AsyncGenerator[TokenOutput, None]:
        """The outputs of a request until each of its choices has finished.

        Closing the generator early aborts the request. Raises RequestError where the engine refuses
        it, Overloaded before it is ready and while it drains, EngineDied when it is gone.
        """
        self.admit()
        stream = self._streams[request.id] = Stream()
        self._idle.clear()
        left = request.sampling.n
        try:
            self._send(request)
            while left:
                output = await stream.get()
                if output.finish == "error":
                    raise OstroError(output.error or "the engine failed on this request")
                left -= output.finish is not None
                yield output
        finally:
            del self._streams[request.id]
            if left and self.fault is None:
                self._send(Abort(request.id))
            if not self._streams:
                self._idle.set()

    def check(self) -> None:
        """Raise Overloaded before the engine is ready and while it drains, EngineDied later."""
        if self.fault is not None:
            raise EngineDied(str(self.fault))
        if self.draining:
            raise Overloaded("the server is shutting down")
        if self.info is None:
            raise Overloaded("the model is still loading; see /ready")

    def admit(self) -> None:
        """Raise what one more request would be refused with now."""
        self.check()
        if len(self._streams) >= self.limit:
            raise Overloaded(f"{self.limit} requests are under way; try again later")

    def abort(self, id: str) -> None:
        """Drop a request; whoever iterates it sees Overloaded. Unknown ids are ignored."""
        if stream := self._streams.get(id):
            stream.fail(Overloaded("the request was aborted"))

    def abort_all(self, error: OstroError) -> None:
        """Drop every request; whoever iterates one sees the error."""
        for stream in self._streams.values():
            stream.fail(error)

    async def stats(self) -> Stats:
        """The engine's counters, taken between two passes of its loop."""
        self.check()
        asked: asyncio.Future[Stats] = asyncio.get_running_loop().create_future()
        self._asked.append(asked)
        self._send(Ask())
        return await asked

    async def drain(self, seconds: float) -> bool:
        """Take no more requests and wait for those under way; say whether all have finished."""
        self.draining = True
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def wait_gone(self) -> None:
        """Return when the engine has ended, for whatever reason."""
        await self._gone.wait()

    def _deliver(self, message: FromEngine) -> None:
        if isinstance(message, Outputs):
            for output in message.outputs:
                if stream := self._streams.get(output.id):
                    stream.put(output)
        elif isinstance(message, Failed) and message.id is not None:
            if stream := self._streams.get(message.id):
                stream.fail(message.error())
        elif isinstance(message, Failed):
            self._lose(message.error())
        elif isinstance(message, Stats):
            if not (asked := self._asked.popleft()).done():
                asked.set_result(message)
        elif isinstance(message, Progress):
            self.progress = message
        else:
            self.info = message
            self._settled.set()

    def _lose(self, error: OstroError) -> None:
        """The engine is gone: everything that waits for it fails."""
        self.fault = self.fault or error
        fault = EngineDied(str(self.fault))
        for stream in self._streams.values():
            stream.fail(fault)
        for asked in self._asked:
            if not asked.done():
                asked.set_exception(fault)
        self._asked.clear()
        self._settled.set()
        self._gone.set()

    async def _wait_ready(self) -> Ready:
        await self._settled.wait()
        if self.fault is not None:
            raise self.fault
        assert self.info is not None
        return self.info


class ThreadEngine(AsyncEngine):
    """An engine in a thread of this process. `build` makes it there, warmed up."""

    def __init__(self, build: Callable[[loop.Report], loop.Steps]) -> None:
        super().__init__()
        self._build = build
        self._inbox: SimpleQueue[ToEngine] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ostro-engine", daemon=True)

    async def start(self) -> Ready:
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        return await self._wait_ready()

    async def close(self) -> None:
        self._inbox.put(Close())
        self._lose(EngineDied("the engine is closed"))
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)

    def _send(self, message: ToEngine) -> None:
        self._inbox.put(message)

    def _run(self) -> None:
        try:
            engine = self._build(lambda *steps: self._post(Progress(*steps)))
            ids = sorted(engine.eos_ids)
            self._post(Ready(context=engine.context, vocab=engine.vocab, eos_ids=ids))
            loop.drive(engine, self._receive, self._post)
        except Exception as error:
            self._post(Failed.of(error))

    def _receive(self, wait: bool) -> list[ToEngine]:
        messages = [self._inbox.get()] if wait else []
        while not self._inbox.empty():
            messages.append(self._inbox.get())
        return messages

    def _post(self, message: FromEngine) -> None:
        try:
            self._loop.call_soon_threadsafe(self._deliver, message)
        except RuntimeError:  # the event loop has ended before the engine
            self._inbox.put(Close())
