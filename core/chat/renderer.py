"""Client of the process that renders chat templates."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import msgspec

from ostro.core.errors import Overloaded, TemplateError

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
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._finalizer: weakref.finalize[Any, Any] | None = None

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
            self._stop()

    def _exchange(self, data: bytes) -> dict[str, Any]:
        """Send a request and return its reply; a process that has died is replaced once."""
        message = struct.pack(">I", len(data)) + data
        for _ in range(2):
            process = self._start()
            assert process.stdin is not None and process.stdout is not None
            try:
                process.stdin.write(message)
                process.stdin.flush()
                reply: dict[str, Any] = json.loads(
                    _read(process.stdout.fileno(), self.timeout * PATIENCE)
                )
                return reply
            except TimeoutError:
                self._stop()
                if LATE:  # within its processor time: the process is stopped or starved
                    raise Overloaded(
                        "the process that renders chat templates did not answer within "
                        f"{self.timeout * PATIENCE:g} s; try again"
                    ) from None
                late = True
            except (BrokenPipeError, EOFError):
                late = process.wait() == -LATE
            self._stop()
            if late:
                raise TemplateError(
                    f"the chat template took longer than {self.timeout:g} s to render"
                )
        raise TemplateError("the chat template crashes the process that renders it")

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._owner == os.getpid():
            return self._process
        path = json.dumps([entry for entry in sys.path if entry])
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(WORKER), path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"TZ": os.environ["TZ"]} if "TZ" in os.environ else {},
        )
        self._process, self._owner = process, os.getpid()
        self._finalizer = weakref.finalize(self, _kill, process, os.getpid())
        assert process.stdout is not None
        try:
            _read(process.stdout.fileno(), START)
        except (TimeoutError, EOFError):
            self._stop()
            raise Overloaded(
                "the process that renders chat templates did not start; try again"
            ) from None
        return process

    def _stop(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self._process = self._finalizer = None


def _kill(process: subprocess.Popen[bytes], owner: int) -> None:
    """End a process; in a fork of its parent, do nothing."""
    if os.getpid() != owner:
        return
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def _read(pipe: int, timeout: float) -> bytes:
    """Read one message. Raises TimeoutError, and EOFError if the writer has ended."""
    deadline = time.monotonic() + timeout
    (size,) = struct.unpack(">I", _read_exactly(pipe, 4, deadline))
    return _read_exactly(pipe, size, deadline)


def _read_exactly(pipe: int, size: int, deadline: float) -> bytes:
    parts = []
    with selectors.DefaultSelector() as ready:
        ready.register(pipe, selectors.EVENT_READ)
        while size:
            if not ready.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            part = os.read(pipe, min(size, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
    return b"".join(parts)


RENDERER = Renderer()
"""The renderer that all templates of this process share."""
