"""The engine in a process of its own: the child that runs it, and the client that started it.

The two share a socket pair and nothing else. The child is started afresh, never forked, finds the
same plugins or refuses to start, and ends when the socket does. `python -m` runs this module as the
child.
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

from ostro.core.engine.request import JobRequest, Request, TokenRequest
from ostro.core.errors import EngineDied, OstroError
from ostro.core.ipc import loop
from ostro.core.ipc.client import AsyncEngine
from ostro.core.ipc.messages import (
    Close,
    Failed,
    Frames,
    FromEngine,
    ModelSpec,
    Progress,
    Ready,
    StartEngine,
    ToEngine,
    carry,
    frame,
    from_engine,
    to_engine,
)
from ostro.core.media import Array
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Import, Settings, resolve

log = logging.getLogger(__name__)
ENGINE: Import = "ostro.core.engine.start:open_engine"
"""What a child runs unless told otherwise: `open_engine(models, plugins, report)` gives an engine
that has drawn its first tokens, and the choices made for it, for people."""
BUFFER = 1 << 20
PATIENCE = 10.0
"""Seconds a child gets to end by itself."""


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
        """`registry` is what this process' plugin manager found; None does not compare."""
        super().__init__()
        self.settings, self.plugin_paths, self.engine = settings, plugin_paths, engine
        self.registry = registry
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
        """Start the child, which imports its engine and waits to be told what to load."""
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        argv = [sys.executable, "-P", "-m", __name__, str(theirs.fileno()), self.engine]
        paths = os.pathsep.join(dict.fromkeys(filter(None, sys.path)))
        try:
            self._child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, "PYTHONPATH": paths},
            )
        finally:
            theirs.close()
        self._socket, self._transport = ours, None

    async def load(self, models: Sequence[ModelSpec]) -> Ready:
        """Tell the spawned child what to load and wait until it is ready."""
        self.info, self.fault, self._frames = None, None, Frames()
        self.progress = Progress("starting")
        self._settled.clear()
        self._gone.clear()
        running = asyncio.get_running_loop()
        self._transport, _ = await running.create_unix_connection(lambda: self, sock=self._socket)
        hello = StartEngine(
            models=list(models),
            plugin_paths=list(self.plugin_paths),
            registry=dict(self.registry or {}),
        )
        self._send(hello)
        return await self._wait_ready()

    async def close(self) -> None:
        if self._child is None:
            return
        if self._transport is not None and not self._transport.is_closing():
            self._send(Close())
        self._lose(EngineDied("the engine is closed"))
        if self.info is not None:
            with suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._child.wait, PATIENCE)
        self.kill()

    def kill(self, reason: str = "the server stopped the engine process") -> None:
        """End the child at once; requests under way fail with EngineDied(reason)."""
        if self._child is None:
            return
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

    def _lend(self, request: Request) -> Request:
        return carry(request, Array.share)

    def data_received(self, data: bytes) -> None:
        """Called by the event loop with bytes from the child."""
        for body in self._frames.feed(data):
            self._deliver(carry(from_engine.decode(body), Array.read))

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop when the child's end is closed."""
        self._lose(EngineDied(f"the engine process is gone{self._cause()}"))

    def _cause(self) -> str:
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
        # A wait for the socket can be interrupted only by another descriptor that is polled.
        self._wakes, self._waker = os.pipe()
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(self._wakes, select.POLLIN)
        for each in (self._wakes, self._waker):
            os.set_blocking(each, False)

    def send(self, message: FromEngine) -> None:
        """Write a message, waiting for room."""
        self._socket.sendall(frame(carry(message, Array.share)))

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
                    messages.append(carry(message, Array.read))
                except OstroError as error:  # its client has left and taken its arrays along
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
        """End this process soon after its parent has gone, whatever it is busy with."""
        poll = select.poll()
        poll.register(self._socket, getattr(select, "POLLRDHUP", select.POLLHUP))
        poll.poll()
        time.sleep(PATIENCE / 5)
        os._exit(1)


def main(argv: Sequence[str]) -> int:
    """Run the child: descriptor of its socket, import string of its engine."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    end = socket.socket(fileno=int(argv[0]))
    end.set_inheritable(False)
    link = EngineConnection(end)
    threading.Thread(target=link.watch, name="ostro-parent", daemon=True).start()
    try:
        opener = resolve(argv[1])
        hello = link.receive(True)[0]
        if not isinstance(hello, StartEngine):
            return 0
        loop.drive(load(opener, hello, link), link, link.send)
    except (BrokenPipeError, ConnectionResetError):
        return 1
    except BaseException as error:
        failed = Failed.of(error)
        if not failed.kind:
            traceback.print_exc()
        link.send(failed)
        return 1
    return 0


def load(opener: Any, hello: StartEngine, link: EngineConnection) -> loop.DrivenEngine:
    """Load the plugins and the model, and say so."""
    plugins = PluginManager()
    plugins.load(hello.models[0].settings, hello.plugin_paths)
    if hello.registry:
        plugins.compare(hello.registry)
    report = lambda *news: link.send(Progress(*news))  # noqa: E731
    engine, explain = opener(hello.models, plugins, report)
    gc.collect()
    gc.freeze()
    link.send(Ready(models=engine.facts, explain=explain, digest=plugins.digest()))
    steps: loop.DrivenEngine = engine
    return steps


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
