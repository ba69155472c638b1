"""The server's end of the connection to a worker: admits and relays its requests."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing, suppress
from math import inf
from types import SimpleNamespace
from typing import Any, get_args

import msgspec
from fastapi import FastAPI

from ostro.core.errors import OstroError, Overloaded, Unsupported
from ostro.core.ipc.frames import Frames, frame
from ostro.core.messages.commands import (
    Abort,
    AdapterCommand,
    AdapterResult,
    GetStats,
    ModelCommand,
    Outputs,
)
from ostro.core.messages.outputs import Output
from ostro.core.messages.requests import DEFAULT_MODEL, TokenRequest
from ostro.entrypoints.http.http_series import HttpSeries
from ostro.entrypoints.http.request_record import RECORD, RequestRecord
from ostro.entrypoints.http.workers.forwarding import READS, ForwardHandler
from ostro.entrypoints.http.workers.messages import (
    Enter,
    Entered,
    Forward,
    GetSeries,
    JobsChanged,
    Leave,
    Refused,
    Series,
    Submit,
    Synced,
    from_worker,
)
from ostro.entrypoints.operations.access.admission import CLAIM, Claim
from ostro.entrypoints.operations.access.caller import Forbidden
from ostro.entrypoints.operations.access.keys import KeyRing
from ostro.entrypoints.operations.access.quotas import Quotas
from ostro.entrypoints.operations.documents.documents import Documents
from ostro.entrypoints.operations.models.service import Service

log = logging.getLogger(__name__)


class WorkerConnection(asyncio.Protocol):
    """The connection to a worker.

    claims: its HTTP requests under way, by their numbers. requests: those to the engine. series:
    the figures that the worker last reported. version: that of its view. last_message: its time.
    """

    def __init__(self, app: FastAPI, ring: KeyRing, publish: Callable[[], Awaitable[None]]) -> None:
        """app: the application of the server. publish: shows the server's models and adapters to
        all workers.
        """
        self.app, self.ring, self.publish = app, ring, publish
        self.service: Service = app.state.operations.service
        self.quotas: Quotas = app.state.quotas
        self.forwards = ForwardHandler(app, self.claim_of)
        self.frames = Frames()
        self.claims: dict[int, Claim] = {}
        self.requests: dict[str, asyncio.Task[None]] = {}
        self.others: set[asyncio.Task[None]] = set()
        self.outputs: list[Output] = []
        self.series = HttpSeries()
        self.version = 0
        self.awaits_series = False
        self.last_message = inf  # a worker that starts sends nothing
        self.changes: set[asyncio.Event] = set()
        self.gone = asyncio.Event()
        self.handlers: Mapping[type, Callable[[Any], None]] = {
            Enter: self.enter,
            Leave: self.leave,
            Submit: self.submit,
            Abort: self.abort,
            **dict.fromkeys(get_args(AdapterCommand), lambda each: self.run(self.adapt(each))),
            **dict.fromkeys(get_args(ModelCommand), self.refuse_command),
            GetStats: lambda _: self.run(self.report()),
            Forward: lambda message: self.run(self.forward(message)),
            JobsChanged: self.notify_jobs,
            Synced: self.note_view,
            Series: self.note_series,
        }

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop before the first message."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Called by the event loop with bytes from the worker."""
        self.last_message = time.monotonic()
        for body in self.frames.feed(data):
            message = from_worker.decode(body)
            self.handlers[type(message)](message)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop when the worker has ended: so do its requests."""
        for task in self.requests.values():
            task.cancel()
        for own in self.claims.values():
            own.quota.leave()
        self.claims.clear()
        # Only their sums outlive the worker.
        self.series.running = self.series.body_bytes = 0
        self.gone.set()
        self.wake()

    def write(self, message: msgspec.Struct) -> None:
        """Send a message, after the outputs that wait."""
        self.flush()
        if not self.transport.is_closing():
            self.transport.write(frame(message))

    def flush(self) -> None:
        """Send the outputs of one pass of the engine's loop in one message."""
        outputs, self.outputs = self.outputs, []
        if outputs and not self.transport.is_closing():
            self.transport.write(frame(Outputs(outputs)))

    def note_view(self, message: Synced) -> None:
        """Note that the worker uses a view."""
        self.version = message.version
        self.wake()

    def note_series(self, message: Series) -> None:
        """Note the figures of the worker."""
        self.series, self.awaits_series = message.series, False
        self.wake()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition holds, or the worker has ended."""
        changed = asyncio.Event()
        self.changes.add(changed)
        try:
            while not (holds() or self.gone.is_set()):
                await changed.wait()
                changed.clear()
        finally:
            self.changes.discard(changed)

    def wake(self) -> None:
        """Let `until` check its condition."""
        for changed in self.changes:
            changed.set()

    def measure(self) -> None:
        """Ask for the figures of the worker."""
        self.awaits_series = True
        self.write(GetSeries())

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work that goes on if the worker ends."""
        task = asyncio.ensure_future(work)
        self.others.add(task)
        task.add_done_callback(self.others.discard)

    # HTTP requests and their limits

    def enter(self, message: Enter) -> None:
        """Count an HTTP request that begins, unless a limit of its key refuses it."""
        headers = dict[str, str]()
        try:
            own = self.claim_of(message.key)
            try:
                own.taken = own.quota.enter()
            finally:
                headers = own.quota.headers()
        except OstroError as error:
            return self.write(Refused.of(error, claim=message.claim, headers=headers))
        self.claims[message.claim] = own
        self.write(Entered(message.claim, headers))

    def claim_of(self, digest: bytes | None) -> Claim:
        """A claim of the caller of a key. Raises Forbidden for a key that is gone."""
        if digest is None:
            caller = self.ring.anonymous()
            return Claim(caller, self.quotas.of(caller.name))
        key = self.ring.keys.get(digest)
        if key is None:
            raise Forbidden("the API key is no longer valid")
        return Claim(self.ring.caller(key), self.quotas.of(key.name, key))

    def leave(self, message: Leave) -> None:
        """Count an HTTP request that has ended; one that was refused is unknown."""
        if (own := self.claims.pop(message.claim, None)) is not None:
            own.quota.leave()

    # Requests to the engine

    def submit(self, message: Submit) -> None:
        """Relay a request."""
        id = message.request.id
        task = self.requests[id] = asyncio.ensure_future(self.relay(message))
        task.add_done_callback(lambda _: self.requests.pop(id, None))

    def abort(self, message: Abort) -> None:
        """Abort a request or a choice of it."""
        if message.index is not None:
            self.service.engine.abort(message.id, message.index)
        elif (task := self.requests.get(message.id)) is not None:
            task.cancel()

    async def relay(self, message: Submit) -> None:
        """Pass a request to the engine and its outputs to the worker."""
        request, engine = message.request, self.service.engine
        try:
            own = self.claims.get(-1 if message.claim is None else message.claim)
            own = own or self.claim_of(message.key)
            CLAIM.set(own)
            RECORD.set(record_for(request.id, message.route))
            if request.model != DEFAULT_MODEL and request.model not in self.service.models:
                raise Overloaded(f"the model {request.model!r:.100} is not loaded", param="model")
            outputs: AsyncGenerator[Any, None]
            if isinstance(request, TokenRequest):
                outputs = engine.generate(request)
            else:
                outputs = engine.work(request)
            is_first = True
            async with aclosing(outputs):
                async for output in outputs:
                    if is_first and message.claim is not None and (new := own.quota.headers()):
                        self.write(Entered(message.claim, new))
                    is_first = False
                    self.put(output)
        except OstroError as error:
            self.write(Refused.of(error, id=request.id))
        except Exception:  # the worker waits for an answer
            log.exception("a request of a worker has failed")
            self.write(Refused.of(OstroError("the server failed on this request"), id=request.id))

    def put(self, output: Output) -> None:
        """Send an output soon, together with others of the same pass of the engine's loop."""
        if not self.outputs:
            asyncio.get_running_loop().call_soon(self.flush)
        self.outputs.append(output)

    async def adapt(self, message: AdapterCommand) -> None:
        """Run a command on adapters."""
        try:
            found = await self.service.engine.adapt(message)
        except OstroError as error:
            return self.write(Refused.of(error, id=message.id))
        self.write(AdapterResult(message.id, found))

    def refuse_command(self, message: ModelCommand) -> None:
        """Refuse a command of a plugin: the server's list of models would not change."""
        error = Unsupported("a worker changes no models; use the routes of models")
        self.write(Refused.of(error, id=message.id))

    def notify_jobs(self, message: JobsChanged) -> None:
        """Look for new batches and responses in the background."""
        documents: Documents = self.app.state.operations.documents
        for runner in documents.runners:
            runner.notify()

    async def report(self) -> None:
        """Send the counters of the engine."""
        with suppress(OstroError):  # the worker waits until the engine is ready again
            self.write(await self.service.engine.stats())

    # The server

    async def forward(self, message: Forward) -> None:
        """Handle an HTTP request. All workers see its changes before it is answered."""
        response = await self.forwards.handle(message)
        if message.method not in READS:
            await self.publish()
        self.write(response)


def record_for(id: str, route: str) -> RequestRecord:
    """The record of an HTTP request of a worker, for the metrics of its request to the engine."""
    return RequestRecord({"type": "http", "route": SimpleNamespace(path=route)}, id, "")
