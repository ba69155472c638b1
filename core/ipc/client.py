"""Asynchronous clients of an engine: their base class, and one for an engine in a thread."""

from __future__ import annotations

import asyncio
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from itertools import count
from typing import Any, TypeVar

from msgspec.structs import replace

from ostro.core.errors import EngineDied, OstroError, Overloaded, RequestError, rebuild_error
from ostro.core.ipc.admission import Admission, AdmitAll
from ostro.core.ipc.frames import free_arrays, map_arrays
from ostro.core.ipc.streams import JobStream, OutputStream, TokenStream
from ostro.core.messages.arrays import Array
from ostro.core.messages.commands import (
    Abort,
    AdapterCommand,
    AdapterInfo,
    AdapterResult,
    Failed,
    FromEngine,
    GetStats,
    Held,
    ModelCommand,
    ModelResult,
    Outputs,
    Progress,
    Ready,
    ToEngine,
)
from ostro.core.messages.outputs import JobOutput, Output, Stats, TokenOutput
from ostro.core.messages.requests import JobRequest, PoolingRequest, Request, TokenRequest

Out = TypeVar("Out", TokenOutput, JobOutput)
HEARTBEAT = 1.0
"""Seconds between a reply of the engine and the next heartbeat."""
PATIENCE = 120.0
"""Seconds that one pass of an engine's loop may take: a slow CPU needs long for many rows."""


class RequestObserver:
    """Receives the events of all requests of a client, in its event loop. This one ignores them."""

    def begin(self, request: Request) -> None:
        """A request is sent to the engine."""

    def receive(self, output: Output) -> None:
        """An output has arrived; its reader may get it later."""

    def end(self, id: str, error: BaseException | None) -> None:
        """A request has ended. `error` closed its generator; None if it was read to its end."""

    def update(self, stats: Stats) -> None:
        """The engine has answered a heartbeat."""


class AsyncEngine(ABC):
    """A client that exchanges messages with an engine. All methods belong to one event loop.

    `info` is None until the engine is ready, `progress` is that of loading, `loading` that of each
    model that a command loads, and `fault` is the error that ended the engine. `admission` decides
    which requests the engine gets; `before_submit` is awaited with the model of each of them, which
    may have been unloaded since. A request that has no output after `max_wait` seconds fails. An
    engine that leaves a heartbeat unanswered for more than `patience` seconds is `hung`. `observer`
    receives the events of all requests. `held` says what holds the engine's loop, such as a plugin;
    it is empty while the loop goes on.
    """

    def __init__(self) -> None:
        self.info: Ready | None = None
        self.progress = Progress(what="starting")
        self.loading: dict[str, Progress] = {}
        self.fault: OstroError | None = None
        self.draining = False
        self.held = ""
        self.admission: Admission = AdmitAll()
        self.before_submit: Callable[[str], Awaitable[None]] | None = None
        self.max_wait: float | None = None
        self.observer = RequestObserver()
        self.patience = PATIENCE
        self._streams: dict[str, OutputStream[Any]] = {}
        # In the order of the questions: the engine answers them in this order, without ids.
        self._stats_futures: deque[asyncio.Future[Stats]] = deque()
        self._commands: dict[str, asyncio.Future[Any]] = {}
        self._numbers = count()
        self._idle = asyncio.Event()
        self._idle.set()
        self._started = asyncio.Event()  # ready, or failed to start
        self._gone = asyncio.Event()
        self._heartbeat: asyncio.Future[None] | None = None
        self._unanswered_since: float | None = None

    @property
    def ready(self) -> bool:
        """Whether the engine accepts requests now."""
        return self.info is not None and self.fault is None and not self.draining and not self.hung

    @property
    def silence(self) -> float:
        """Seconds for which the engine has not answered a heartbeat."""
        since = self._unanswered_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def hung(self) -> bool:
        """Whether a pass of the loop takes so long that it may never end."""
        return self.silence > self.patience

    @property
    def requests(self) -> int:
        """The number of requests under way."""
        return len(self._streams)

    @abstractmethod
    async def start(self) -> Ready:
        """Start the engine and wait until it is ready. Raises the error if it fails to start."""

    @abstractmethod
    def _send(self, message: ToEngine) -> None:
        """Pass a message to the engine without blocking."""

    def _share(self, request: Request) -> Request:
        """The request with its arrays in memory that the engine can read."""
        return map_arrays(request, Array.read)

    @abstractmethod
    async def close(self) -> None:
        """End the engine; requests under way fail."""

    def generate(self, request: TokenRequest) -> AsyncGenerator[TokenOutput, None]:
        """The outputs of a request until each of its choices has finished.

        Closing the generator early aborts the request. Raises RequestError if the engine refuses
        it, Overloaded before the engine is ready, while it drains and after `max_wait`, EngineDied
        if it has ended, and the error of `admission`.
        """
        return self._outputs(request, TokenStream(), request.sampling.n)

    def work(self, request: PoolingRequest | JobRequest) -> AsyncGenerator[JobOutput, None]:
        """The progress of a pooling request or a job; the last output has the result.

        Closing the generator early aborts the request. Raises as `generate`.
        """
        return self._outputs(request, JobStream(), 1)

    async def result(self, request: PoolingRequest | JobRequest) -> JobOutput:
        """The last output of a pooling request or a job: its arrays and adapter generations."""
        last = JobOutput(id=request.id)
        # Closed explicitly: a generator that is only dropped is closed at some later time, and its
        # request would run until then.
        async with aclosing(self.work(request)) as outputs:
            async for output in outputs:
                last = output
        return last

    async def _outputs(
        self, request: Request, stream: OutputStream[Out], left: int
    ) -> AsyncGenerator[Out, None]:
        """The outputs of a request until `left` of its choices have finished."""
        try:
            if self.before_submit is not None:
                await self.before_submit(request.model)
            self.check()
            if request.id in self._streams:
                raise RequestError(f"a request with id {request.id!r} is under way", param="id")
            request = self._share(request)
            admitted = self.admission.admit(request)
            request = admitted.request
        except BaseException:
            # Shared memory outlives both processes unless it is unlinked.
            free_arrays(request)
            raise
        # Before the request is sent: an engine in this process may answer at once.
        self._streams[request.id] = stream
        self._idle.clear()
        try:
            self.observer.begin(request)
            self._send(request)
            wait = self.max_wait  # for the first output
            while left:
                try:
                    async with asyncio.timeout(wait or None):
                        output = await stream.get()
                except TimeoutError:
                    raise Overloaded(f"the request waited {wait:g} s; try again later") from None
                wait = None
                check_output(output)
                admitted.count(output)
                left -= output.finish is not None
                yield output
        finally:
            self.observer.end(request.id, sys.exception())
            admitted.close()
            free_arrays(request)
            del self._streams[request.id]
            # Closed early: the engine still computes the request.
            if left and self.fault is None:
                self._send(Abort(request.id))
            if not self._streams:
                self._idle.set()

    def check(self) -> None:
        """Raise EngineDied if the engine has ended, Overloaded if it accepts no requests now."""
        if self.fault is not None:
            raise EngineDied(str(self.fault))
        if self.draining:
            raise Overloaded("the server is shutting down")
        if self.info is None:
            raise Overloaded("the model is still loading; see /ready")
        if self.hung:
            raise Overloaded(f"the engine has not responded for {self.silence:.0f} s")

    def admit(self) -> None:
        """Raise as `check`, and Overloaded if `admission` admits no further request now."""
        self.check()
        self.admission.check()

    def abort(self, id: str, index: int | None = None) -> None:
        """Abort a request: its generator raises Overloaded. Unknown ids are ignored.

        With an index only that choice is aborted: its last output has finish reason "abort".
        """
        if stream := self._streams.get(id):
            if index is None:
                stream.fail(Overloaded("the request was aborted"))
            else:
                # Its reader has found a stop string, which the engine does not match.
                self.observer.receive(TokenOutput(id=id, index=index, finish="stop"))
                self._send(Abort(id, index))

    def abort_all(self, error: OstroError) -> None:
        """Abort all requests: their generators raise the error."""
        for stream in self._streams.values():
            stream.fail(error)

    async def stats(self) -> Stats:
        """The engine's counters, taken between two passes of its loop."""
        self.check()
        return await self._get_stats()

    async def change_models(self, command: ModelCommand) -> ModelResult:
        """Load, unload or requantize a model; returns all models afterwards.

        Raises the error of a load, which affects no other model, and NotFound; UsageError for
        unknown formats, InsufficientMemory if the model does not fit beside the old one.
        """
        try:
            result: ModelResult = await self._command(command)
        finally:
            self.loading.pop(command.model, None)
        return result

    async def adapt(self, command: AdapterCommand) -> list[AdapterInfo]:
        """Load, unload, register or read an adapter, or list all; returns all adapters afterwards.

        Raises the AdapterError of a command that fails.
        """
        result: AdapterResult = await self._command(command)
        return result.adapters

    async def _command(self, command: ModelCommand | AdapterCommand) -> Any:
        """Send a command under an id of this client and wait for its result."""
        self.check()
        message = replace(command, id=f"command {next(self._numbers)}")
        result = self._commands[message.id] = asyncio.get_running_loop().create_future()
        self._send(message)
        try:
            return await result
        finally:
            del self._commands[message.id]

    def _get_stats(self) -> asyncio.Future[Stats]:
        stats: asyncio.Future[Stats] = asyncio.get_running_loop().create_future()
        self._stats_futures.append(stats)
        self._send(GetStats())
        return stats

    async def _send_heartbeats(self) -> None:
        """Ask for counters forever: the engine answers between two passes of its loop."""
        while True:
            self._unanswered_since = time.monotonic()
            await self._get_stats()
            self._unanswered_since = None
            await asyncio.sleep(HEARTBEAT)

    async def drain(self, seconds: float) -> bool:
        """Accept no more requests and wait for those under way; return whether all finished."""
        self.draining = True
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def wait_gone(self) -> None:
        """Wait until the engine has ended, for any reason."""
        await self._gone.wait()

    def _deliver(self, message: FromEngine) -> None:
        """Pass a message from the engine to the request or command that waits for it."""
        # Futures may be cancelled and streams gone by now: their messages are dropped.
        if isinstance(message, Outputs):
            for output in message.outputs:
                if stream := self._streams.get(output.id):
                    self.observer.receive(output)
                    stream.put(output)
        elif isinstance(message, ModelResult | AdapterResult):
            if isinstance(message, ModelResult) and self.info is not None:
                self.info = replace(self.info, models=message.models)
            if (result := self._commands.get(message.id)) and not result.done():
                result.set_result(message)
        elif isinstance(message, Failed):
            if message.id is None:
                self._lose(message.error())
            elif (result := self._commands.get(message.id)) and not result.done():
                result.set_exception(message.error())
            elif stream := self._streams.get(message.id):
                stream.fail(message.error())
        elif isinstance(message, Stats):
            self.observer.update(message)
            if self._stats_futures and not (stats := self._stats_futures.popleft()).done():
                stats.set_result(message)
        elif isinstance(message, Held):
            self.held = message.message
        elif isinstance(message, Progress):
            if message.model:
                self.loading[message.model] = message
            else:
                self.progress = message
            # It answers no heartbeat, but shows that the engine works.
            if self._unanswered_since is not None:
                self._unanswered_since = time.monotonic()
        else:
            self.info = message
            self._started.set()

    def _lose(self, error: OstroError) -> None:
        """Record that the engine has ended, and fail all that waits for it."""
        # The first error is the cause; later ones, such as a closed socket, follow from it.
        self.fault = self.fault or error
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        self._unanswered_since, self.held = None, ""
        fault = EngineDied(str(self.fault))
        for stream in self._streams.values():
            stream.fail(fault)
        futures: list[asyncio.Future[Any]] = [*self._stats_futures, *self._commands.values()]
        for future in futures:
            if not future.done():
                future.set_exception(fault)
        self._stats_futures.clear()
        self._started.set()
        self._gone.set()

    async def _wait_ready(self) -> Ready:
        await self._started.wait()
        if self.fault is not None:
            raise self.fault
        assert self.info is not None
        self._heartbeat = asyncio.ensure_future(self._send_heartbeats())
        return self.info


def check_output(output: TokenOutput | JobOutput) -> None:
    """Raise the error if the engine ended a request with one."""
    if output.finish == "error":
        message = output.error or "the engine failed on this request"
        kind = output.kind or "OstroError"
        raise rebuild_error(kind, message, output.param, output.status, output.code, output.facts)
