"""A child process that answers requests over pipes, with a deadline for each.

Requests and replies are frames: a length of eight bytes, little-endian, and as many bytes of data.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import time
import weakref
from collections.abc import Callable, Mapping, Sequence


class WorkerProcess:
    """A child process with which its parent exchanges frames over stdin and stdout.

    ended: called with the id of a process that has ended. clock: the seconds that deadlines count.
    Methods are not thread-safe, except `kill`.
    """

    def __init__(
        self,
        ended: Callable[[int], object] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ended, self.clock = ended, clock
        self._process: subprocess.Popen[bytes] | None = None
        self._finalizer: Callable[[], object] | None = None
        self._owner = 0

    @property
    def pid(self) -> int | None:
        """The id of the process, None if none was started."""
        return None if self._process is None else self._process.pid

    @property
    def running(self) -> bool:
        """Whether this process has a child that runs; a fork of its parent has none."""
        owned = self._process is not None and self._owner == os.getpid()
        return owned and self._process is not None and self._process.poll() is None

    def start(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        """Start a process in the place of the last one.

        command, env: those of `subprocess.Popen`. The process must end when its stdin does.
        """
        self.stop()
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=env,
        )
        assert process.stdin is not None
        # A child that reads nothing must not block its parent beyond the deadline of `send`.
        os.set_blocking(process.stdin.fileno(), False)
        self._process, self._owner = process, os.getpid()
        self._finalizer = weakref.finalize(self, _end, process, os.getpid(), self.ended)

    def send(self, data: bytes, deadline: float) -> None:
        """Write a frame before `deadline` (of `clock`). Raises TimeoutError and OSError."""
        assert self._process is not None and self._process.stdin is not None
        pipe, left = self._process.stdin.fileno(), memoryview(frame(data))
        while left:
            self._wait_for(pipe, select.POLLOUT, deadline)
            left = left[os.write(pipe, left) :]

    def receive(self, deadline: float) -> bytes:
        """Read a frame before `deadline`.

        Raises TimeoutError, and EOFError if the process has ended.
        """
        size = int.from_bytes(self._read(8, deadline), "little")
        return self._read(size, deadline)

    def wait(self) -> int:
        """Wait for the end of a process that has closed its stdout; returns its exit status."""
        assert self._process is not None
        return self._process.wait()

    def kill(self) -> None:
        """Kill the process, from any thread: a `send` or `receive` under way raises."""
        if self._process is not None:
            self._process.kill()

    def stop(self) -> None:
        """Kill the process and close its pipes."""
        if self._finalizer is not None:
            self._finalizer()
        self._process = self._finalizer = None

    def _read(self, size: int, deadline: float) -> bytes:
        assert self._process is not None and self._process.stdout is not None
        pipe, parts = self._process.stdout.fileno(), bytearray()
        while len(parts) < size:
            self._wait_for(pipe, select.POLLIN, deadline)
            part = os.read(pipe, min(size - len(parts), 1 << 20))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)

    def _wait_for(self, pipe: int, event: int, deadline: float) -> None:
        """Wait until a pipe can be read or written. Raises TimeoutError."""
        poll = select.poll()
        poll.register(pipe, event)
        while not poll.poll(max(0.0, deadline - self.clock()) * 1000):
            if self.clock() >= deadline:
                raise TimeoutError


def frame(data: bytes) -> bytes:
    """`data` with its length before it."""
    return len(data).to_bytes(8, "little") + data


def _end(
    process: subprocess.Popen[bytes], owner: int, ended: Callable[[int], object] | None
) -> None:
    """End a process. In a fork of its parent, do nothing: the child is not the fork's."""
    if os.getpid() != owner:
        return
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
    if ended is not None:
        ended(process.pid)
