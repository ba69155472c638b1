"""A worker: serves HTTP in a process of its own, with the engine and the limits of the server."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec

from ostro.core.errors import EngineDied, OstroError
from ostro.core.ipc.frames import LENGTH, Frames, frame
from ostro.core.messages.commands import AdapterResult, Outputs, Ready
from ostro.core.messages.outputs import Stats
from ostro.core.pipeline import ServedModel
from ostro.core.plugins.manager import PluginManager
from ostro.core.tasks import TaskPipeline
from ostro.entrypoints.http.app import make_app
from ostro.entrypoints.http.budget import map_counts
from ostro.entrypoints.http.daemon_thread import in_thread
from ostro.entrypoints.http.listener import open_certificate
from ostro.entrypoints.http.log import configure_log
from ostro.entrypoints.http.loop_watchdog import watch_event_loop
from ostro.entrypoints.http.options import Options
from ostro.entrypoints.http.server import SWITCH_SECONDS, find_ready
from ostro.entrypoints.http.tracing import start_tracing
from ostro.entrypoints.http.web import Web
from ostro.entrypoints.http.workers.engine import WorkerEngine, WorkerQuotas
from ostro.entrypoints.http.workers.forwarding import Forwarding
from ostro.entrypoints.http.workers.messages import (
    Entered,
    Forward,
    Forwarded,
    GetSeries,
    JobsChanged,
    Refused,
    Renew,
    Series,
    Start,
    Stop,
    Synced,
    View,
    ViewModel,
    to_worker,
)
from ostro.entrypoints.open import make_pipelines
from ostro.entrypoints.operations.access.keys import KeyRing
from ostro.entrypoints.operations.documents.documents import Documents
from ostro.entrypoints.operations.documents.jobs import JobRunner
from ostro.entrypoints.operations.documents.state import open_state
from ostro.entrypoints.operations.models.service import Service

log = logging.getLogger(__name__)


class WorkerService(Service):
    """The models and adapters of the server, as its last `View` describes them."""

    def __init__(self, engine: WorkerEngine, *, resolves: bool) -> None:
        super().__init__(engine, "", resolves=resolves)
        self.loaded, self.states = False, dict[str, str]()

    @property
    def started_up(self) -> bool:
        return self.loaded

    def state(self, model: str) -> str:
        return self.states.get(model, "unloaded")


@dataclass(frozen=True)
class WorkerModel:
    """A model whose files a worker has read. `load` is that of its `ViewModel`."""

    load: int
    served: ServedModel
    pipelines: Mapping[str, TaskPipeline]


class Worker(asyncio.Protocol):
    """A worker and its connection to the server."""

    def __init__(self, start: Start, counts: memoryview) -> None:
        """counts: the bytes of bodies that each worker holds."""
        self.number, self.counts = start.number, counts
        counts[self.number] = 0  # a worker that was killed has left its count
        self.options, self.settings = Options(**start.options), start.settings
        self.frames = Frames()
        self.plugins = PluginManager()
        self.plugins.load(self.settings, self.options.plugin_paths)
        self.plugins.compare(start.registry)
        self.ring = KeyRing.of_state(start.keys)
        self.engine, self.quotas = WorkerEngine(self.write), WorkerQuotas(self.write)
        self.forwarded: dict[int, asyncio.Future[Forwarded]] = {}
        self.opened: dict[str, WorkerModel] = {}
        self.views: asyncio.Queue[View] = asyncio.Queue()
        self.begun = asyncio.Event()
        self.tracing = start_tracing()

    async def run(self, end: socket.socket, listener: socket.socket) -> None:
        """Serve until the server ends the connection or sends `Stop`.

        Connections are accepted once the models of the first view are open: a worker that replaces
        another one has none before.
        """
        app = self.open()
        self.web = Web.of(
            app,
            self.options.ssl_certfile,
            self.options.ssl_keyfile,
            accepts=1,
            trusted_proxies=self.options.trusted_proxies,
        )
        documents: Documents = app.state.operations.documents
        await documents.start()
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=end)
        tasks = [
            asyncio.ensure_future(self.follow()),
            *(asyncio.ensure_future(self.report(runner)) for runner in documents.runners),
        ]
        await self.begun.wait()
        with watch_event_loop(self.plugins):
            await self.web.serve(sockets=[listener])
        for task in tasks:
            task.cancel()
        await documents.close()
        for model in self.opened.values():
            model.served.close()
        if self.tracing is not None:
            self.tracing.close()

    def open(self) -> Any:
        """Return the application. Its models are those of the first view."""
        options = self.options
        self.service = WorkerService(self.engine, resolves=self.settings.adapter_resolvers)
        app = make_app(
            self.service,
            self.plugins,
            options,
            ring=self.ring,
            state=open_state(options.store, options.retention, self.plugins, options.store_limit),
            observers=[] if self.tracing is None else [self.tracing],
            quotas=self.quotas,
            forwarding=Forwarding(self.forward).endpoint_of,
            body_counts=self.counts,
            own_count=self.number,
        )
        self.requests = app.state.metrics.requests
        return app

    # The connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop before the first message."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def write(self, message: msgspec.Struct) -> None:
        """Send a message to the server."""
        if not self.transport.is_closing():
            self.transport.write(frame(message))

    def data_received(self, data: bytes) -> None:
        """Called by the event loop with bytes from the server."""
        for body in self.frames.feed(data):
            self.handle(to_worker.decode(body))

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop when the server has ended."""
        self.engine.lose()
        self.quotas.lose()
        for future in self.forwarded.values():
            if not future.done():
                future.set_exception(EngineDied("the server has ended"))
        self.stop()

    def handle(self, message: Any) -> None:
        """Handle a message of the server."""
        match message:
            case Outputs() | AdapterResult() | Stats():
                self.engine.deliver(message)
            case Entered():
                self.quotas.answer(message.claim, message.headers)
            case Refused(claim=None):
                self.engine.refuse(message.id, message.error())
            case Refused(claim=int() as claim):
                self.quotas.answer(claim, message.headers, message.error())
            case Forwarded():
                if (future := self.forwarded.get(message.number)) and not future.done():
                    future.set_result(message)
            case View():
                self.views.put_nowait(message)
            case Renew():
                self.renew(message)
            case GetSeries():
                self.write(Series(self.requests.http))
            case Stop():
                self.stop()

    def stop(self) -> None:
        """Finish the responses and end, also before the first view."""
        self.web.stop()
        self.begun.set()

    async def forward(self, forward: Forward) -> Forwarded:
        """Let the server handle an HTTP request."""
        future = self.forwarded[forward.number] = asyncio.get_running_loop().create_future()
        self.write(forward)
        try:
            return await future
        finally:
            del self.forwarded[forward.number]

    def renew(self, message: Renew) -> None:
        """Use other keys, and read the certificate again."""
        self.ring.use(message.keys)
        with suppress(OstroError):  # which the server has logged
            context = open_certificate(self.options.ssl_certfile, self.options.ssl_keyfile)
            if context is not None:
                self.web.use(context)

    async def report(self, runner: JobRunner) -> None:
        """Tell the server, which runs the jobs, when they change."""
        while True:
            await runner.changed.wait()
            runner.changed.clear()
            self.write(JobsChanged())

    # Models

    async def follow(self) -> None:
        """Follow the views of the server."""
        while True:
            view = await self.views.get()
            opened = {each.name: await self.find(each) for each in view.models}
            self.show(view, {name: each for name, each in opened.items() if each is not None})
            self.write(Synced(view.version))
            self.begun.set()

    async def find(self, model: ViewModel) -> WorkerModel | None:
        """Read the files of a model but its weights, unless it is open. None if that fails."""
        known = self.opened.get(model.name)
        if known is not None and known.load == model.load:
            return known
        try:
            found = await in_thread(partial(find_ready, model.settings, self.plugins))
            served = replace(found, name=model.name).ready(model.info)
            return WorkerModel(
                model.load, served, make_pipelines(served, self.engine, self.plugins)
            )
        except OstroError as error:
            log.error("a worker cannot serve the model %r: %s", model.name, error)
            return None

    def show(self, view: View, opened: dict[str, WorkerModel]) -> None:
        """Let requests use the models and adapters of a view."""
        service, before = self.service, self.opened
        self.opened = opened
        service.names, service.aliases = tuple(view.states), view.aliases
        service.states, service.loaded = view.states, view.loaded
        service.started = view.started
        service.models = {name: each.pipelines for name, each in opened.items()}
        service.served = {name: each.served for name, each in opened.items()}
        service.takes_media = any(
            "text" in each.served.tasks and each.served.architecture.inputs is not None
            for each in opened.values()
        )
        service.adapters.known = {
            model: {info.name: info for info in known} for model, known in view.adapters.items()
        }
        service.adapters.templates = view.templates
        self.requests.default = service.name
        if view.models:
            self.engine.info = Ready(models={each.name: each.info for each in view.models})
        for name, model in before.items():
            if opened.get(name) is not model:
                model.served.close()


def receive_start(end: socket.socket) -> Start | None:
    """Wait for the first message; None if the server has ended."""
    size = int.from_bytes(end.recv(LENGTH, socket.MSG_WAITALL), "little")
    body = end.recv(size, socket.MSG_WAITALL)
    if not size or len(body) < size:
        return None
    start = to_worker.decode(body)
    assert isinstance(start, Start)
    return start


def main(argv: Sequence[str]) -> int:
    """Run a worker. `argv` has the descriptors of its connection, of the listening socket, and of
    the file of `map_counts`.
    """
    # A terminal and systemd send signals to all processes: the server decides when workers end.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    end, listener = (socket.socket(fileno=int(number)) for number in argv[:2])
    for opened in (end, listener):
        opened.set_inheritable(False)
    counts = map_counts(int(argv[2]))
    os.close(int(argv[2]))
    start = receive_start(end)
    if start is None:
        return 0
    sys.setswitchinterval(SWITCH_SECONDS)
    configure_log(Options(**start.options).log_format)

    async def serve() -> None:
        await Worker(start, counts).run(end, listener)

    asyncio.run(serve())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
