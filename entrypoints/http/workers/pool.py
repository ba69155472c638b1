"""The workers of a server: starts, replaces, informs and stops them."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from fastapi import FastAPI
from msgspec.structs import replace

from ostro.core.errors import UsageError
from ostro.core.ipc.client import HEARTBEAT
from ostro.core.pipeline import ServedModel
from ostro.entrypoints.http.budget import COUNT_BYTES
from ostro.entrypoints.http.http_series import HttpSeries
from ostro.entrypoints.http.workers.connection import WorkerConnection
from ostro.entrypoints.http.workers.messages import Renew, Start, Stop, View, ViewModel
from ostro.entrypoints.open import name_of
from ostro.entrypoints.operations.access.keys import KeyRing
from ostro.entrypoints.operations.models.service import Service
from ostro.entrypoints.serve_config import ModelOptions

log = logging.getLogger(__name__)
MEMORY = "memory"
"""The store of a single process."""
PAUSE = 0.5
"""Seconds between the end of a worker and the start of the next one."""
PATIENCE = 10.0
"""Seconds that workers have to finish their responses and to end."""
SYNC_SECONDS = 30.0
"""Seconds that workers have to read the files of models that were loaded."""
SERIES_SECONDS = 1.0
"""Seconds that workers have to report their figures; the last ones are used instead."""


class WorkerPool:
    """The workers of a server.

    `serve`, `use` and `stop` are those of `Web`, which serves HTTP in the server's process.
    """

    def __init__(
        self,
        app: FastAPI,
        ring: KeyRing,
        start: Start,
        count: int,
    ) -> None:
        """app: the application of the server. start: the first message to a worker."""
        self.app, self.ring, self.start, self.count = app, ring, start, count
        self.service: Service = app.state.operations.service
        self.connections: dict[int, WorkerConnection] = {}
        self.ended = HttpSeries()  # the figures of workers that have ended
        self.loads: dict[str, tuple[ServedModel, int]] = {}
        self.version = 0
        self.stopped = asyncio.Event()
        app.state.metrics.requests.workers = self.series
        app.state.metrics.measure_workers = self.measure

    # The interface of `Web`

    async def serve(self, sockets: list[socket.socket]) -> None:
        """Run workers until `stop`."""
        with tempfile.TemporaryFile() as counts:  # the workers map it: the kernel writes zeros
            counts.truncate(COUNT_BYTES * self.count)
            await self.keep_all(sockets[0], counts.fileno())

    async def keep_all(self, listener: socket.socket, counts: int) -> None:
        """Run all workers until `stop`. counts: descriptor of the file of `map_counts`."""
        keeping = [
            asyncio.ensure_future(self.keep(number, listener, counts))
            for number in range(self.count)
        ]
        try:
            await self.stopped.wait()
            self.send(Stop())
            await asyncio.wait(keeping, timeout=PATIENCE)
        finally:
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)

    def stop(self) -> None:
        """Let the workers finish their responses and end."""
        self.stopped.set()

    def use(self, certificate: ssl.SSLContext) -> None:
        """Workers read the certificate themselves, see `renew`."""

    # Processes

    async def keep(self, number: int, listener: socket.socket, counts: int) -> None:
        """Run a worker, and start another one when it ends."""
        while True:
            try:
                how = await self.run(number, listener, counts)
            except OSError as error:  # no memory for another process
                how = f": {error}"
            if self.stopped.is_set():
                return
            log.error("worker %d has ended%s; starting another", number, how)
            await asyncio.sleep(PAUSE)

    async def run(self, number: int, listener: socket.socket, counts: int) -> str:
        """Start a worker, wait until it has ended and return how; kill it if this is cancelled."""
        ours, theirs = socket.socketpair()
        process = spawn(theirs, listener, counts)
        try:
            await self.connect(number, ours)
            with suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(process.wait, PATIENCE)
        finally:
            process.kill()
            process.wait()
        return reason(process)

    async def connect(self, number: int, end: socket.socket) -> None:
        """Serve a worker until it has ended or hangs."""
        connection = WorkerConnection(self.app, self.ring, self.publish)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_unix_connection(lambda: connection, sock=end)
        self.connections[number] = connection
        try:
            connection.write(replace(self.start, number=number, keys=self.ring.state))
            connection.write(self.view())
            await self.watch(connection)
        finally:
            transport.abort()
            await connection.gone.wait()
            del self.connections[number]
            self.ended.add(connection.series)

    async def watch(self, connection: WorkerConnection) -> None:
        """Wait until a worker has ended or hangs."""
        while not connection.gone.is_set():
            connection.measure()
            silence = time.monotonic() - connection.last_message
            if silence > self.service.engine.patience:
                return log.error("a worker has not responded for %.0f s", silence)
            with suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT):
                    await connection.gone.wait()

    def send(self, message: msgspec.Struct) -> None:
        """Send a message to all workers."""
        for connection in self.connections.values():
            connection.write(message)

    # What workers know of the server

    def renew(self, _: object = None) -> None:
        """Let workers use the keys of the server, and read the certificate again."""
        self.send(Renew(self.ring.state))

    async def publish(self, seconds: float | None = SYNC_SECONDS) -> None:
        """Show the models and adapters to all workers, and wait until they serve them.

        seconds: time limit, None for none.
        """
        view = self.view()
        self.send(view)
        await self.until(lambda each: each.version >= view.version, seconds)

    def view(self) -> View:
        """The models and adapters of the server."""
        service, self.version = self.service, self.version + 1
        assert service.manager is not None
        return View(
            version=self.version,
            states={name: service.state(name) for name in service.names},
            aliases=service.aliases,
            models=[
                ViewModel(
                    name=name,
                    settings=service.manager.models[name].options.settings,
                    info=service.engine.info.models[name],
                    load=self.load_of(service.served[name]),
                )
                for name in service.models
                if service.engine.info is not None and name in service.engine.info.models
            ],
            adapters={m: [*known.values()] for m, known in service.adapters.known.items()},
            templates=service.adapters.templates,
            loaded=service.started_up,
            started=service.started,
        )

    def load_of(self, model: ServedModel) -> int:
        """The number of a load, which grows each time that the files of a model are read."""
        known, load = self.loads.get(model.name, (None, 0))
        if known is not model:
            load += 1
            self.loads[model.name] = (model, load)
        return load

    async def measure(self) -> None:
        """Get the figures of the HTTP requests of all workers."""
        for connection in self.connections.values():
            connection.measure()
        await self.until(lambda each: not each.awaits_series, SERIES_SECONDS)

    async def until(self, holds: Callable[[WorkerConnection], bool], seconds: float | None) -> None:
        """Wait until a condition holds for all workers that still run."""
        waits = [
            asyncio.ensure_future(each.until(partial(holds, each)))
            for each in self.connections.values()
        ]
        if waits:
            _, late = await asyncio.wait(waits, timeout=seconds)
            for task in late:
                task.cancel()

    def series(self) -> Iterable[HttpSeries]:
        """The figures of all workers, of those that have ended too."""
        return (self.ended, *(each.series for each in self.connections.values()))


def spawn(theirs: socket.socket, listener: socket.socket, counts: int) -> subprocess.Popen[bytes]:
    """Start the process of a worker, and close this process's copy of its end."""
    passed = (theirs.fileno(), listener.fileno(), counts)
    argv = [sys.executable, "-P", "-m", "ostro.entrypoints.http.workers.worker", *map(str, passed)]
    paths = os.pathsep.join(dict.fromkeys(filter(None, sys.path)))
    try:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            pass_fds=passed,
            env={**os.environ, "PYTHONPATH": paths},
        )
    finally:
        theirs.close()


def reason(process: subprocess.Popen[bytes]) -> str:
    """How a process has ended, for a message."""
    code = process.returncode
    if code >= 0:
        return f" (exit code {code})"
    return f" (killed by {signal.Signals(-code).name})"


def options_of(options: Any) -> dict[str, Any]:
    """The fields of `Options` that can be sent to a worker. Keys are sent in `Start.keys`.

    A worker loads no models: it forwards such requests.
    """
    left_out = ("api_keys", "admin_key", "keys", "ready", "log_requests", "model_root")
    values = {each.name: getattr(options, each.name) for each in dataclasses.fields(options)}
    return {
        name: str(value) if isinstance(value, Path) else value
        for name, value in values.items()
        if name not in left_out
    }


def check_workers(options: Any, models: Sequence[ModelOptions]) -> None:
    """Raise UsageError for options that several workers do not support."""
    count = options.workers
    if count < 1:
        raise UsageError(f"--workers {count}: expected at least 1")
    if count == 1:
        return
    if options.store == MEMORY:
        raise UsageError(
            f"--workers {count} requires a store for several processes: --store FOLDER, or "
            "--store none"
        )
    if options.log_requests is not None:
        raise UsageError(f"--log-requests requires one worker, got --workers {count}")
    for model in models:
        if model.load != "start":
            raise UsageError(
                f"the model {name_of(model.settings)!r} is loaded {model.load}, which requires "
                f"one worker; got --workers {count}"
            )
