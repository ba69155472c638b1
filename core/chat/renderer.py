"""Client of the process that renders chat templates."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from ostro.core.errors import Overloaded, TemplateError
from ostro.core.worker import WorkerProcess

TIMEOUT = 1.0
"""Limit on the processor time of one rendering, in seconds."""

PATIENCE = 15
"""Limit on the wall-clock time of one rendering, as a multiple of `timeout`."""

START = 30.0
"""Time limit for the start of the process, in seconds."""

LATE = getattr(signal, "SIGPROF", 0)
"""The signal that ends a process which exceeds its processor time; 0 on systems without it."""

WORKER = Path(__file__).with_name("worker.py")


class Renderer:
    """Renders templates in a worker process, one at a time. Methods are thread-safe.

    The process starts with the first rendering. A rendering that takes more than `timeout` seconds
    of processor time ends it; the next rendering starts another.
    """

    def __init__(self, timeout: float = TIMEOUT) -> None:
        self.timeout = timeout
        self._lock = threading.Lock()
        self.worker = WorkerProcess()

    def render(self, source: str, context: dict[str, Any], limit: int) -> str:
        """Render `source` to at most `limit` characters.

        Raises TemplateError with the template's own message if it rejects the conversation, with
        the line if it fails, and if it exceeds its time or memory. Raises Overloaded if the process
        does not start or does not answer.
        """
        request = {"template": source, "context": context, "limit": limit}
        request["seconds"] = self.timeout
        data = msgspec.json.encode(request)
        with self._lock:
            reply = self._exchange(data)
        if "text" in reply:
            return str(reply["text"])
        if "raised" in reply:
            raise TemplateError(reply["raised"])
        place = f", line {reply['line']}" if reply["line"] else ""
        raise TemplateError(f"chat template{place}: {reply['error']}")

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self.worker.stop()

    def _exchange(self, data: bytes) -> dict[str, Any]:
        """Send a request and return its reply; a process that has died is replaced once."""
        for _ in range(2):
            self._start()
            deadline = time.monotonic() + self.timeout * PATIENCE
            try:
                self.worker.send(data, deadline)
                reply: dict[str, Any] = json.loads(self.worker.receive(deadline))
                return reply
            except TimeoutError:
                self.worker.stop()
                if LATE:  # within its processor time: the process is stopped or starved
                    raise Overloaded(
                        "the process that renders chat templates did not answer within "
                        f"{self.timeout * PATIENCE:g} s; try again"
                    ) from None
                late = True
            except (BrokenPipeError, EOFError):
                late = self.worker.wait() == -LATE
            self.worker.stop()
            if late:
                raise TemplateError(
                    f"the chat template took longer than {self.timeout:g} s to render"
                )
        raise TemplateError("the chat template crashes the process that renders it")

    def _start(self) -> None:
        """Start the process unless it runs. Raises Overloaded if it does not get ready."""
        if self.worker.running:
            return
        # An isolated process with the import path of this one as its argument.
        path = json.dumps([entry for entry in sys.path if entry])
        zone = {"TZ": os.environ["TZ"]} if "TZ" in os.environ else {}
        self.worker.start([sys.executable, "-I", "-S", str(WORKER), path], zone)
        try:
            self.worker.receive(time.monotonic() + START)
        except (TimeoutError, EOFError):
            self.worker.stop()
            raise Overloaded(
                "the process that renders chat templates did not start; try again"
            ) from None


RENDERER = Renderer()
"""The renderer that all templates of this process share."""
