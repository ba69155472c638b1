"""An engine in a child process: the client that starts the child, and the child's main program.

Both communicate over a socket pair. The child is a new interpreter, not a fork; it refuses to start
unless it finds the same plugins, and ends when the socket is closed. `python -m` runs this module
as the child.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ostro.core.errors import EngineDied, InsufficientMemory, OstroError
from ostro.core.ipc import loop
from ostro.core.ipc.client import AsyncEngine
from ostro.core.ipc.frames import Frames, frame, from_engine, map_arrays, to_engine
from ostro.core.messages.arrays import Array
from ostro.core.messages.commands import (
    Close,
    Failed,
    FromEngine,
    Held,
    ModelSpec,
    Progress,
    Ready,
    StartEngine,
    ToEngine,
)
from ostro.core.messages.requests import JobRequest, Request, TokenRequest
from ostro.core.plugins.manager import PluginManager
from ostro.core.plugins.watchdog import Watchdog
from ostro.core.records import Import, resolve
from ostro.core.settings import Settings
from ostro.core.threads import THREADS

log = logging.getLogger(__name__)
ENGINE: Import = "ostro.core.engine.startup.start:open_engine"
"""The default engine of a child: `open_engine(models, plugins, report)` returns an engine that is
warmed up, and the lines of `--explain`."""
BUFFER = 1 << 20
"""Bytes of socket buffers and of one read: a prompt with media is one message."""
PATIENCE = 10.0
"""Seconds that a child has to end by itself before it is killed."""


# The client


class ProcessEngine(AsyncEngine, asyncio.Protocol):
    """An engine in a child process. After the child's death `start` may be called again."""

    def __init__(
        self,
        settings: Settings,
        *,
        plugin_paths: Sequence[str] = (),
        registry: Mapping[str, str] | None = None,
        engine: Import = ENGINE,
    ) -> None:
        """`registry` is that of this process's plugin manager, which the child compares with its
        own; None skips the comparison.
        """
        super().__init__()
        self.settings, self.engine = settings, engine
        self.plugin_paths, self.registry = list(plugin_paths), dict(registry or {})
        self._child: subprocess.Popen[bytes] | None = None
        self._transport: asyncio.Transport | None = None

    @property
    def pid(self) -> int | None:
        """The child's process id."""
        return None if self._child is None else self._child.pid

    async def start(self) -> Ready:
        self.spawn()
        return await self.load([ModelSpec(self.settings)])

    def spawn(self) -> None:
        """Start the child, which imports its engine and waits for the models to load."""
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        argv = [sys.executable, "-P", "-m", __name__, str(theirs.fileno()), self.engine]
        # -P: the child must not import from the current directory what this process did not.
        paths = os.pathsep.join(dict.fromkeys(filter(None, sys.path)))
        try:
            self._child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, "PYTHONPATH": paths},
            )
        finally:
            # While this process holds the child's end, it would not notice the child's death.
            theirs.close()
        self._socket, self._transport = ours, None

    async def load(self, models: Sequence[ModelSpec]) -> Ready:
        """Send the spawned child the models to load and wait until it is ready."""
        self.info, self.fault, self._frames = None, None, Frames()
        self.progress = Progress("starting")
        self._started.clear()
        self._gone.clear()
        running = asyncio.get_running_loop()
        self._transport, _ = await running.create_unix_connection(lambda: self, sock=self._socket)
        self._send(
            StartEngine(
                settings=self.settings,
                models=list(models),
                plugin_paths=self.plugin_paths,
                registry=self.registry,
            )
        )
        return await self._wait_ready()

    async def close(self) -> None:
        if self._child is None:
            return
        self._send(Close())
        self._lose(EngineDied("the engine is closed"))
        # A child that is still loading does not read messages: it is killed at once.
        if self.info is not None:
            with suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._child.wait, PATIENCE)
        self.kill()

    def kill(self, reason: str = "the server stopped the engine process") -> None:
        """Kill the child; requests under way fail with EngineDied(reason)."""
        if self._child is None:
            return
        # Before the signal: the lost connection would give a less precise reason.
        self.fault = self.fault or EngineDied(reason)
        self._child.kill()
        self._child.wait()
        if self._transport is not None:
            self._transport.abort()
        else:
            self._socket.close()

    def _send(self, message: ToEngine) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(message))

    def _share(self, request: Request) -> Request:
        return map_arrays(request, Array.share)

    def data_received(self, data: bytes) -> None:
        """Called by the event loop with bytes from the child."""
        for body in self._frames.feed(data):
            self._deliver(map_arrays(from_engine.decode(body), Array.read))

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop when the child's end is closed."""
        self._lose(EngineDied(f"the engine process has ended{self._cause()}"))

    def _cause(self) -> str:
        """The child's exit code or signal, for the message of an error; empty if it still runs."""
        assert self._child is not None
        try:
            code = self._child.wait(1)
        except subprocess.TimeoutExpired:
            return ""
        if code >= 0:
            return f" (exit code {code})"
        hint = "; the system may be out of memory" if code == -signal.SIGKILL else ""
        return f" (killed by {signal.Signals(-code).name}{hint})"


# The child


class EngineConnection:
    """The child's end of the socket; see `loop.Inbox`."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._frames = Frames()
        self._sending = threading.Lock()
        # A wait for the socket can be interrupted only by another descriptor that is polled.
        self._wakes, self._waker = os.pipe()
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(self._wakes, select.POLLIN)
        for each in (self._wakes, self._waker):
            os.set_blocking(each, False)

    def send(self, message: FromEngine) -> None:
        """Write a message; blocks while the socket's buffer is full. Any thread may call it."""
        data = frame(map_arrays(message, share_if_possible))
        with self._sending:
            self._socket.sendall(data)

    def send_held(self, message: str) -> None:
        """Send what holds the loop; nothing if the client has ended."""
        with suppress(OSError):
            self.send(Held(message))

    def wake(self) -> None:
        """End the wait of `receive`, or that of its next call. May be called in any thread."""
        with suppress(BlockingIOError):  # a full pipe wakes as well
            os.write(self._waker, b"\0")

    def receive(self, wait: bool) -> list[ToEngine]:
        """The messages that have come in. With `wait`, block until there is one or until `wake`.

        The end of the socket reads as `Close`.
        """
        messages: list[ToEngine] = []
        while True:
            if wait and not messages and self._woken():
                return []
            try:
                data = self._socket.recv(BUFFER, socket.MSG_DONTWAIT)
            except BlockingIOError:
                if messages or not wait:
                    return messages
                continue
            if not data:
                return [*messages, Close()]
            for body in self._frames.feed(data):
                message = to_engine.decode(body)
                try:
                    messages.append(map_arrays(message, Array.read))
                except OstroError as error:  # its client aborted and has freed the arrays
                    assert isinstance(message, TokenRequest | JobRequest)
                    self.send(Failed.of(error, message.id))

    def _woken(self) -> bool:
        """Block until the socket has bytes or `wake` is called; whether it was called."""
        self._poll.poll()
        try:
            return bool(os.read(self._wakes, BUFFER))
        except BlockingIOError:
            return False

    def watch(self) -> None:
        """Run in a thread: end this process soon after its parent, even during a long step."""
        poll = select.poll()
        poll.register(self._socket, getattr(select, "POLLRDHUP", select.POLLHUP))
        poll.poll()
        # The loop sees the closed socket, too: it has this time to end in order.
        time.sleep(PATIENCE / 5)
        os._exit(1)


def share_if_possible(array: Array) -> Array:
    """The array in shared memory, or as it is if that is full: the result of one request must not
    end the engine.
    """
    try:
        return array.share()
    except InsufficientMemory:
        return array


def main(argv: Sequence[str]) -> int:
    """Run the child; `argv` has the descriptor of its socket and its engine's import string."""
    # A terminal sends Ctrl-C to both processes: the parent decides when the child ends.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    end = socket.socket(fileno=int(argv[0]))
    end.set_inheritable(False)
    # Until the models are loaded: collections would visit the objects of all imports several times.
    gc.disable()
    connection = EngineConnection(end)
    threading.Thread(target=connection.watch, name="ostro-parent", daemon=True).start()
    try:
        open_engine = resolve(argv[1])
        start = connection.receive(wait=True)[0]
        if not isinstance(start, StartEngine):
            return 0
        plugins = PluginManager()
        engine = load(open_engine, start, plugins, connection)
        watchdog = Watchdog("the engine's loop", plugins, connection.send_held)
        with watchdog.watching():
            loop.drive(engine, connection, connection.send, watchdog)
    except (BrokenPipeError, ConnectionResetError):
        return 1
    except BaseException as error:
        if not isinstance(error, OstroError):
            traceback.print_exc()
        connection.send(Failed.of(error))
        return 1
    finally:
        # Triton 3.9 (nanobind) reports objects that are still frozen at exit as leaks, on stderr.
        gc.unfreeze()
    return 0


def load(
    open_engine: Any, start: StartEngine, plugins: PluginManager, connection: EngineConnection
) -> loop.DrivenEngine:
    """Load the plugins and the models, and send `Ready`."""
    plugins.load(start.settings, start.plugin_paths)
    if start.registry:
        plugins.compare(start.registry)
    if not start.models:  # the first model is loaded by a command
        THREADS.set(start.settings.threads)
    report = lambda *values: connection.send(Progress(*values))  # noqa: E731
    opened, explain = open_engine(start.models, plugins, report)
    engine: loop.DrivenEngine = opened
    # What exists now lives as long as the process: later collections need not visit it.
    gc.collect()
    gc.freeze()
    gc.enable()
    connection.send(Ready(models=engine.infos, explain=explain, digest=plugins.digest()))
    return engine


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
