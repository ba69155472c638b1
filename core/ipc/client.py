"""The engine as asynchronous code sees it: requests go in, outputs come out, wherever it runs."""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from itertools import count
from queue import SimpleQueue
from typing import Any, Literal, TypeVar

from ostro.core.engine.request import (
    DEFAULT,
    JobOutput,
    JobRequest,
    PoolingRequest,
    Request,
    Stats,
    TokenOutput,
    TokenRequest,
)
from ostro.core.errors import EngineDied, OstroError, Overloaded, RequestError
from ostro.core.ipc import loop
from ostro.core.ipc.messages import (
    Abort,
    AdapterCommand,
    AdapterInfo,
    AdapterResult,
    Close,
    Failed,
    FromEngine,
    GetStats,
    Outputs,
    Progress,
    Ready,
    Requantize,
    Requantized,
    ToEngine,
    carry,
    drop,
)
from ostro.core.ipc.streams import JobStream, OutputStream, TokenStream
from ostro.core.media import Array

Out = TypeVar("Out", TokenOutput, JobOutput)
PULSE = 5.0
"""Seconds from one sign of life of an engine to the question for the next."""
PATIENCE = 120.0
"""Seconds that one pass of an engine's loop may take: a slow CPU needs long for many rows."""


class AsyncEngine(ABC):
    """An engine behind messages. All methods belong to one event loop.

    `info` is None until the engine is ready, `progress` tells how far loading has come, and `fault`
    why the engine is gone. No more than `limit` requests may be under way, waiting ones included.
    An engine that owes a sign of life for longer than `patience` seconds is `hung`.
    """

    def __init__(self) -> None:
        self.info: Ready | None = None
        self.progress = Progress(what="starting")
        self.fault: OstroError | None = None
        self.draining = False
        self.limit = 1024
        self.patience = PATIENCE
        self._streams: dict[str, OutputStream[Any]] = {}
        self._asked: deque[asyncio.Future[Stats]] = deque()
        self._changes: dict[str, asyncio.Future[Any]] = {}
        self._numbers = count()
        self._idle = asyncio.Event()
        self._idle.set()
        self._settled = asyncio.Event()
        self._gone = asyncio.Event()
        self._watching: asyncio.Future[None] | None = None
        self._owed: float | None = None

    @property
    def ready(self) -> bool:
        """Whether a request would be taken now."""
        up = self.info is not None and self.fault is None
        return up and not self.draining and not self.hung

    @property
    def silence(self) -> float:
        """Seconds for which the engine has owed a sign of life."""
        return 0.0 if self._owed is None else time.monotonic() - self._owed

    @property
    def hung(self) -> bool:
        """Whether a pass of the loop takes so long that it may never end."""
        return self.silence > self.patience

    @property
    def requests(self) -> int:
        """How many requests are under way."""
        return len(self._streams)

    @abstractmethod
    async def start(self) -> Ready:
        """Start the engine and wait until it is ready. Raises what kept it from that."""

    @abstractmethod
    def _send(self, message: ToEngine) -> None: ...

    def _lend(self, request: Request) -> Request:
        """The request with its arrays where the engine can read them."""
        return carry(request, Array.read)

    @abstractmethod
    async def close(self) -> None:
        """End the engine; requests under way fail."""

    async def generate(self, request: TokenRequest) -> AsyncGenerator[TokenOutput, None]:
        """The outputs of a request until each of its choices has finished.

        Closing the generator early aborts the request. Raises RequestError where the engine refuses
        it, Overloaded before it is ready and while it drains, EngineDied when it is gone.
        """
        outputs = self._outputs(request, TokenStream(), request.sampling.n)
        async with aclosing(outputs) as mine:
            async for output in mine:
                yield output

    async def work(self, request: PoolingRequest | JobRequest) -> AsyncGenerator[JobOutput, None]:
        """How far a reading or a job has come, until its last output, which has the result.

        As `generate`: closing early aborts, and the same errors are raised.
        """
        async with aclosing(self._outputs(request, JobStream(), 1)) as mine:
            async for output in mine:
                yield output

    async def result(self, request: PoolingRequest | JobRequest) -> JobOutput:
        """The last output of a reading or a job: its arrays, and of which adapters they are."""
        last = JobOutput(id=request.id)
        async with aclosing(self.work(request)) as outputs:
            async for output in outputs:
                last = output
        return last

    async def _outputs(
        self, request: Request, stream: OutputStream[Out], left: int
    ) -> AsyncGenerator[Out, None]:
        """The outputs of a request until `left` of them have ended it."""
        try:
            self.admit()
            if request.id in self._streams:
                raise RequestError(f"a request with id {request.id!r} is under way", param="id")
            request = self._lend(request)
        except BaseException:
            drop(request)
            raise
        self._streams[request.id] = stream
        self._idle.clear()
        try:
            self._send(request)
            while left:
                output = await stream.get()
                check_output(output)
                left -= output.finish is not None
                yield output
        finally:
            drop(request)
            del self._streams[request.id]
            if left and self.fault is None:
                self._send(Abort(request.id))
            if not self._streams:
                self._idle.set()

    def check(self) -> None:
        """Raise EngineDied when the engine is gone, Overloaded when it takes no request now."""
        if self.fault is not None:
            raise EngineDied(str(self.fault))
        if self.draining:
            raise Overloaded("the server is shutting down")
        if self.info is None:
            raise Overloaded("the model is still loading; see /ready")
        if self.hung:
            raise Overloaded(f"the engine has given no sign of life for {self.silence:.0f} s")

    def admit(self) -> None:
        """Raise what one more request would be refused with now."""
        self.check()
        if len(self._streams) >= self.limit:
            raise Overloaded(f"{self.limit} requests are under way; try again later")

    def abort(self, id: str, index: int | None = None) -> None:
        """Drop a request; whoever iterates it sees Overloaded. Unknown ids are ignored.

        With an index only that choice is dropped; its last output says so.
        """
        if stream := self._streams.get(id):
            if index is None:
                stream.fail(Overloaded("the request was aborted"))
            else:
                self._send(Abort(id, index))

    def abort_all(self, error: OstroError) -> None:
        """Drop every request; whoever iterates one sees the error."""
        for stream in self._streams.values():
            stream.fail(error)

    async def stats(self) -> Stats:
        """The engine's counters, taken between two passes of its loop."""
        self.check()
        return await self._ask()

    async def requantize(
        self, quant: str | None = None, *, topology: str | None = None, model: str = DEFAULT
    ) -> list[str]:
        """Bring a model's weights to other formats, once all requests before this one are done.

        `quant` and `topology` as in `Settings`; neither gives back the checkpoint's own. Returns
        what was chosen, a line each. Raises UsageError for formats that are not known, NotFound.
        """
        id = f"change {next(self._numbers)}"
        told: list[str] = await self._change(
            Requantize(id=id, model=model, quant=quant, topology=topology)
        )
        return told

    async def adapt(
        self, do: Literal["load", "unload", "read", "register", "list"], **what: Any
    ) -> list[AdapterInfo]:
        """Load, unload or register an adapter, have one read that is registered, or do nothing;
        returns all adapters afterwards. `what` are fields of `AdapterCommand`. Raises the
        AdapterError of a command that fails.
        """
        id = f"change {next(self._numbers)}"
        told: list[AdapterInfo] = await self._change(AdapterCommand(id=id, do=do, **what))
        return told

    async def _change(self, message: Requantize | AdapterCommand) -> Any:
        """Have something changed, and wait until it is."""
        self.check()
        changed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._changes[message.id] = changed
        self._send(message)
        try:
            return await changed
        finally:
            del self._changes[message.id]

    def _ask(self) -> asyncio.Future[Stats]:
        asked: asyncio.Future[Stats] = asyncio.get_running_loop().create_future()
        self._asked.append(asked)
        self._send(GetStats())
        return asked

    async def _watch(self) -> None:
        """Ask for a sign of life, again and again; the engine answers between two passes."""
        while True:
            self._owed = time.monotonic()
            await self._ask()
            self._owed = None
            await asyncio.sleep(PULSE)

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
        elif isinstance(message, Requantized | AdapterResult):
            if (changed := self._changes.get(message.id)) and not changed.done():
                changed.set_result(
                    message.explain if isinstance(message, Requantized) else message.adapters
                )
        elif isinstance(message, Failed) and message.id in self._changes:
            if not (changed := self._changes[message.id]).done():
                changed.set_exception(message.error())
        elif isinstance(message, Failed) and message.id is not None:
            if stream := self._streams.get(message.id):
                stream.fail(message.error())
        elif isinstance(message, Failed):
            self._lose(message.error())
        elif isinstance(message, Stats):
            if self._asked and not (asked := self._asked.popleft()).done():
                asked.set_result(message)
        elif isinstance(message, Progress):
            self.progress = message
            if self._owed is not None:  # a sign of life
                self._owed = time.monotonic()
        else:
            self.info = message
            self._settled.set()

    def _lose(self, error: OstroError) -> None:
        """The engine is gone: everything that waits for it fails."""
        self.fault = self.fault or error
        if self._watching is not None:
            self._watching.cancel()
        self._owed = None
        fault = EngineDied(str(self.fault))
        for stream in self._streams.values():
            stream.fail(fault)
        waiting: list[asyncio.Future[Any]] = [*self._asked, *self._changes.values()]
        for asked in waiting:
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
        self._watching = asyncio.ensure_future(self._watch())
        return self.info


def check_output(output: TokenOutput | JobOutput) -> None:
    """Raise the error with which the engine ended a request."""
    if output.finish == "error":
        message = output.error or "the engine failed on this request"
        param = output.param if isinstance(output, JobOutput) else None
        raise RequestError(message, param=param) if param else OstroError(message)


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
    """An engine in a thread of this process. `build` makes it there, warmed up."""

    def __init__(self, build: Callable[[loop.ProgressCallback], loop.DrivenEngine]) -> None:
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
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)

    def _send(self, message: ToEngine) -> None:
        self._inbox.put(message)

    def _run(self) -> None:
        try:
            engine = self._build(lambda *steps: self._post(Progress(*steps)))
            self._post(Ready(models=engine.facts))
            loop.drive(engine, self._inbox, self._post)
        except Exception as error:
            self._post(Failed.of(error))

    def _post(self, message: FromEngine) -> None:
        try:
            self._loop.call_soon_threadsafe(self._deliver, message)
        except RuntimeError:  # the event loop has ended before the engine
            self._inbox.put(Close())
