"""Clients of an engine in this process without a thread: reading outputs steps the engine.

`LocalEngine` is synchronous; `LocalClient` is the same engine behind `AsyncEngine`, for pipelines.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from itertools import count

from msgspec.structs import replace

from ostro.core.errors import EngineDied, OstroError, Overloaded
from ostro.core.ipc.client import AsyncEngine, check_output
from ostro.core.ipc.loop import DrivenEngine, answer
from ostro.core.messages.commands import (
    AdapterCommand,
    AdapterInfo,
    AdapterResult,
    Failed,
    FromEngine,
    Outputs,
    Ready,
    ToEngine,
)
from ostro.core.messages.outputs import Output, TokenOutput
from ostro.core.messages.requests import TokenRequest
from ostro.core.threads import THREADS

Received = deque[Output | AdapterResult | Failed]


class LocalEngine:
    """Requests and commands to an engine, for one thread at a time.

    Several `generate` may be in progress at once: a step for one of them advances all, and their
    outputs are queued in `received` by request id. Messages with other ids are passed to `deliver`.
    A signal handler may set `interrupted`: the next step raises KeyboardInterrupt.
    """

    def __init__(self, engine: DrivenEngine) -> None:
        self.engine = engine
        self.received: dict[str, Received] = {}
        self.deliver: Callable[[FromEngine], object] = lambda message: None
        self.fault: OstroError | None = None
        self.interrupted = False
        self.numbers = count()

    def generate(self, request: TokenRequest) -> Generator[TokenOutput]:
        """The outputs of a request, until each of its choices has finished.

        Closing the generator early aborts the request. Raises the error with which the engine
        refuses or fails it, and `fault` once the engine is closed.
        """
        received = self.received[request.id] = deque()
        left = request.sampling.n  # choices that have not finished
        try:
            self.engine.submit(request)
            while left:
                output = self.next(received)
                assert isinstance(output, TokenOutput)
                check_output(output)
                left -= output.finish is not None
                yield output
        finally:
            del self.received[request.id]
            # Closed early, or failed: nothing else would remove the request from the engine.
            if left:
                self.engine.abort(request.id)

    def adapt(self, command: AdapterCommand) -> list[AdapterInfo]:
        """See `AsyncEngine.adapt`."""
        # Other ids than those of `LocalClient`, which uses the same engine.
        id = f"local command {next(self.numbers)}"
        received = self.received[id] = deque()
        try:
            self.engine.adapt(replace(command, id=id))
            self.dispatch_events()
            result = self.next(received)
        finally:
            del self.received[id]
        assert isinstance(result, AdapterResult)
        return result.adapters

    def next(self, received: Received) -> Output | AdapterResult:
        """Step the engine until there is a message. Raises the error if it is a failure."""
        while not received:
            if self.fault is None and not self.engine.busy:
                raise Overloaded("the request was aborted")
            self.step()
        message = received.popleft()
        if isinstance(message, Failed):
            raise message.error()
        return message

    def step(self) -> None:
        """One pass of the engine. Raises `fault` once the engine is closed."""
        if self.fault is not None:
            raise self.fault
        if self.interrupted:
            self.interrupted = False
            raise KeyboardInterrupt
        THREADS.follow_load()
        for output in self.engine.step():
            self.dispatch_output(output)
        self.dispatch_events()

    def dispatch_output(self, output: Output) -> None:
        """Queue an output for its request."""
        received = self.received.get(output.id)
        if received is None:
            self.deliver(Outputs([output]))
        else:
            received.append(output)

    def dispatch_events(self) -> None:
        """Pass on the engine's messages beside outputs: results of commands, and failures."""
        for message in self.engine.events():
            self.dispatch(message)

    def dispatch(self, message: FromEngine) -> None:
        """Pass a message to the request or command that waits for it."""
        if isinstance(message, Outputs):
            for output in message.outputs:
                self.dispatch_output(output)
        elif isinstance(message, AdapterResult | Failed) and message.id in self.received:
            self.received[message.id].append(message)
        else:
            self.deliver(message)

    def close(self, fault: OstroError) -> None:
        """Abort all requests; later use raises `fault`."""
        self.fault = fault
        self.engine.close()


class LocalClient(AsyncEngine):
    """A `LocalEngine` behind the interface that pipelines use.

    A task of the event loop steps the engine while requests or commands of this client are under
    way.
    """

    def __init__(self, local: LocalEngine) -> None:
        super().__init__()
        self.local = local
        local.deliver = self._deliver
        self.info = Ready(models=local.engine.infos)
        self._changed = asyncio.Event()
        self._stepping: asyncio.Future[None] | None = None

    async def start(self) -> Ready:
        assert self.info is not None
        return self.info

    async def close(self) -> None:
        self._lose(EngineDied("the engine is closed"))
        self._changed.set()

    def _send(self, message: ToEngine) -> None:
        answer(self.local.engine, message, self.local.dispatch)
        self.local.dispatch_events()
        self._changed.set()
        if self._stepping is None or self._stepping.done():
            self._stepping = asyncio.ensure_future(self._step())

    async def _step(self) -> None:
        """Step the engine until no request or command of this client is under way."""
        engine, running = self.local.engine, asyncio.get_running_loop()
        changed = self._changed = asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the event loop has ended before the read
                running.call_soon_threadsafe(changed.set)

        engine.set_wake(wake)
        try:
            while engine.busy and (self._streams or self._commands) and self.fault is None:
                changed.clear()
                if engine.runnable:
                    self.local.step()
                    await asyncio.sleep(0)  # let the readers of the outputs run
                else:  # a step would block the event loop until an adapter has been read
                    await changed.wait()
        except Exception as error:
            self._lose(Failed.of(error).error())
