"""An engine in this process, stepped by whoever reads its outputs: no thread, no messages copied.

`LocalEngine` is the synchronous way, `LocalClient` the same engine for asynchronous pipelines.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from itertools import count
from typing import Any, Literal

from ostro.core.engine.request import Output, TokenOutput, TokenRequest
from ostro.core.errors import EngineDied, OstroError, Overloaded
from ostro.core.ipc.client import AsyncEngine, check_output
from ostro.core.ipc.loop import DrivenEngine, answer
from ostro.core.ipc.messages import (
    AdapterCommand,
    AdapterInfo,
    AdapterResult,
    Failed,
    FromEngine,
    Outputs,
    Ready,
    ToEngine,
)

Received = deque[Output | AdapterResult | Failed]


class LocalEngine:
    """Requests and changes to an engine, for one thread at a time.

    Several `generate` may be in progress at once: a step for one of them advances all, and their
    outputs wait in `received` by request id. Messages for other ids go to `deliver`.
    """

    def __init__(self, engine: DrivenEngine) -> None:
        self.engine = engine
        self.received: dict[str, Received] = {}
        self.deliver: Callable[[FromEngine], object] = lambda message: None
        self.fault: OstroError | None = None
        self.numbers = count()

    def generate(self, request: TokenRequest) -> Generator[TokenOutput]:
        """The outputs of a request, until each of its choices has finished.

        Closing the generator early aborts the request. Raises what the engine refuses or fails it
        with, and `fault` once the engine is closed.
        """
        received = self.received[request.id] = deque()
        left = request.sampling.n
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
            if left:
                self.engine.abort(request.id)

    def adapt(
        self, do: Literal["load", "unload", "read", "register", "list"], **fields: Any
    ) -> list[AdapterInfo]:
        """See `AsyncEngine.adapt`."""
        id = f"local change {next(self.numbers)}"
        received = self.received[id] = deque()
        try:
            self.engine.adapt(AdapterCommand(id=id, do=do, **fields))
            self.dispatch_events()
            adapted = self.next(received)
        finally:
            del self.received[id]
        assert isinstance(adapted, AdapterResult)
        return adapted.adapters

    def next(self, received: Received) -> Output | AdapterResult:
        """Step the engine until there is a message. Raises the error of one that failed."""
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
        for output in self.engine.step():
            self.dispatch_output(output)
        self.dispatch_events()

    def dispatch_output(self, output: Output) -> None:
        """Pass an output to the request that waits for it."""
        received = self.received.get(output.id)
        if received is None:
            self.deliver(Outputs([output]))
        else:
            received.append(output)

    def dispatch_events(self) -> None:
        """Pass on what has come up beside outputs: answers to changes, and failures."""
        for message in self.engine.events():
            self.dispatch(message)

    def dispatch(self, message: FromEngine) -> None:
        """Pass a message to the request or change that waits for it."""
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

    The event loop steps the engine while requests of its own are in progress.
    """

    def __init__(self, local: LocalEngine) -> None:
        super().__init__()
        self.local = local
        local.deliver = self._deliver
        self.info = Ready(models=local.engine.facts)
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
        engine, running = self.local.engine, asyncio.get_running_loop()
        changed = self._changed = asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the event loop has ended before the read
                running.call_soon_threadsafe(changed.set)

        engine.set_wake(wake)
        try:
            while engine.busy and (self._streams or self._changes) and self.fault is None:
                changed.clear()
                if engine.runnable:
                    self.local.step()
                    await asyncio.sleep(0)
                else:  # a step would block the event loop until an adapter has been read
                    await changed.wait()
        except Exception as error:
            self._lose(Failed.of(error).error())
