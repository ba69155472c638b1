"""Client of the processes that render chat templates."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import LifoQueue
from typing import Any

import msgspec

from ostro.core.errors import Overloaded, TemplateError
from ostro.core.worker import WorkerProcess

TIMEOUT = 1.0
"""Limit on the processor time of one rendering, in seconds."""

PATIENCE = 15
"""Limit on the wall-clock time of one rendering, as a multiple of `timeout`."""

WORKERS = 3
"""The largest number of processes. While one renders a slow template, the others render further
ones.
"""

START = 30.0
"""Time limit for the start of the process, in seconds."""

LATE = getattr(signal, "SIGPROF", 0)
"""The signal that ends a process which exceeds its processor time; 0 on systems without it."""

WORKER = Path(__file__).with_name("worker.py")


class Renderer:
    """Renders templates in worker processes, one at a time in each. Methods are thread-safe.

    A process starts when all that run are busy. A rendering that takes more than `timeout` seconds
    of processor time ends its process. `clock` measures the limits on wall-clock time.
    """

    def __init__(
        self, timeout: float = TIMEOUT, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.timeout, self.clock = timeout, clock
        self.workers = [WorkerProcess(clock=clock) for _ in range(WORKERS)]
        # Last in, first out: a process that runs is taken before one that has to be started.
        self._idle = LifoQueue[WorkerProcess]()
        self._release(self.workers)

    def render(self, source: str, context: dict[str, Any], limit: int) -> str:
        """Render `source` to at most `limit` characters.

        Raises TemplateError with the template's own message if it rejects the conversation, with
        the line if it fails, and if it exceeds its time or memory. Raises Overloaded if the process
        does not start or does not answer.
        """
        request = {"template": source, "context": context, "limit": limit}
        request["seconds"] = self.timeout
        data = msgspec.json.encode(request)
        worker = self._idle.get()
        try:
            reply = self._exchange(worker, data)
        finally:
            self._idle.put(worker)
        if "text" in reply:
            return str(reply["text"])
        if "raised" in reply:
            raise TemplateError(reply["raised"])
        place = f", line {reply['line']}" if reply["line"] else ""
        raise TemplateError(f"chat template{place}: {reply['error']}")

    def close(self) -> None:
        """Wait for unfinished renderings and end the processes."""
        for worker in [self._idle.get() for _ in self.workers]:
            worker.stop()
        self._release(self.workers)

    def _release(self, workers: Sequence[WorkerProcess]) -> None:
        """Make workers available; the first is taken first."""
        for worker in reversed(workers):
            self._idle.put(worker)

    def _exchange(self, worker: WorkerProcess, data: bytes) -> dict[str, Any]:
        """Send a request and return its reply; a process that has died is replaced once."""
        for _ in range(2):
            self._start(worker)
            deadline = self.clock() + self.timeout * PATIENCE
            try:
                worker.send(data, deadline)
                reply: dict[str, Any] = json.loads(worker.receive(deadline))
                return reply
            except TimeoutError:
                worker.stop()
                if LATE:  # within its processor time: the process is stopped or starved
                    raise Overloaded(
                        "the process that renders chat templates did not answer within "
                        f"{self.timeout * PATIENCE:g} s; try again"
                    ) from None
                late = True
            except (BrokenPipeError, EOFError):
                late = worker.wait() == -LATE
            worker.stop()
            if late:
                raise TemplateError(
                    f"the chat template took longer than {self.timeout:g} s to render"
                )
        raise TemplateError("the chat template crashes the process that renders it")

    def _start(self, worker: WorkerProcess) -> None:
        """Start the process unless it runs. Raises Overloaded if it does not get ready."""
        if worker.running:
            return
        # An isolated process with the import path of this one as its argument.
        path = json.dumps([entry for entry in sys.path if entry])
        zone = {"TZ": os.environ["TZ"]} if "TZ" in os.environ else {}
        worker.start([sys.executable, "-I", "-S", str(WORKER), path], zone)
        try:
            worker.receive(self.clock() + START)
        except (TimeoutError, EOFError):
            worker.stop()
            raise Overloaded(
                "the process that renders chat templates did not start; try again"
            ) from None


RENDERER = Renderer()
"""The renderer that all templates of this process share."""
