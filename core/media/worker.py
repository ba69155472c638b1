"""Where media become items: decoded and prepared here, or in a process that is kept for it.

A hostile file is met by a process of its own, with bounded memory and time, which is killed when it
takes too long; the server's own process never opens it.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from ostro.core import errors
from ostro.core.errors import OstroError, Overloaded, RequestError
from ostro.core.media.items import Array, Inputs, Item, Prompt, sweep
from ostro.core.media.parts import check_count
from ostro.core.records import Import, resolve

if TYPE_CHECKING:
    from ostro.core.media.sound import Samples

MEMORY = 16 << 30
"""Bytes of address space that the process may use; libraries map much that they never touch."""
SECONDS = 120.0
"""How long one request's media may take."""
GONE = "the server is shutting down"
THREADS = 2
"""Threads that wait for media, so that nobody else waits: one fetches while the other prepares."""


class MediaSource(msgspec.Struct, frozen=True):
    """A medium as a request gives it: its kind, and the bytes of its file."""

    kind: str
    data: bytes


class PrepareRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What the process is asked: sources to prepare, and the prompt to put them in."""

    tokens: list[int]
    sources: list[MediaSource]


class AudioRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What else it is asked: the samples of a sound file, `rate` of them per second."""

    data: bytes
    rate: int


class ErrorReply(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Why it cannot."""

    kind: str
    message: str
    param: str | None = None


class PrepareReply(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The prompt, its arrays in shared memory."""

    prompt: Prompt


class AudioReply(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The samples, float32 [n], in shared memory."""

    samples: Array


def prepare(inputs: Inputs, tokens: Sequence[int], sources: Sequence[MediaSource]) -> Prompt:
    """Decode media and put them into a prompt. Raises RequestError or Unsupported."""
    return inputs.place(tokens, [make_item(inputs, source) for source in sources])


def make_item(inputs: Inputs, source: MediaSource) -> Item:
    from ostro.core.media.decode import read_image, read_video
    from ostro.core.media.sound import read_sound

    try:
        if source.kind == "image":
            return inputs.image(read_image(source.data))
        if source.kind == "video":
            return inputs.video(*read_video(source.data))
        return inputs.audio(read_sound(source.data, inputs.rate))
    except RequestError as error:
        error.param = "messages"
        raise


class MediaWorker:
    """The process that prepares media for one model: started with the first, replaced when dead.

    Safe to use from many threads, one at a time. `threads` are for who would wait for it.
    """

    def __init__(self, inputs: Import, raw: Mapping[str, Any], folder: Path) -> None:
        """`inputs` is what an architecture's record names; `Inputs` says what the others are."""
        self.inputs, self.raw, self.folder = inputs, raw, folder
        self.closed = False
        self.threads = ThreadPoolExecutor(THREADS, "ostro-media")
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] | None = None

    @property
    def pid(self) -> int | None:
        """The process' id, None before it is started."""
        return None if self._process is None else self._process.pid

    def prepare(self, tokens: Sequence[int], sources: Sequence[MediaSource]) -> Prompt:
        """Put media into a prompt; large arrays stay in shared memory.

        Raises RequestError for media that cannot be read, Unsupported for kinds that the model
        does not take.
        """
        check_count(sources)
        reply = self._ask(PrepareRequest(tokens=list(tokens), sources=list(sources)))
        assert isinstance(reply, PrepareReply)
        return reply.prompt

    def listen(self, data: bytes, rate: int) -> Samples:
        """The samples of a sound file; see `read_sound`."""
        reply = self._ask(AudioRequest(data=data, rate=rate))
        assert isinstance(reply, AudioReply)
        return reply.samples.numpy()

    def _ask(self, asked: PrepareRequest | AudioRequest) -> PrepareReply | AudioReply:
        """Have something done. Raises what it is refused with."""
        order = msgspec.msgpack.encode(asked)
        with self._lock:
            try:
                reply = msgspec.msgpack.decode(
                    self._exchange(order), type=PrepareReply | AudioReply | ErrorReply
                )
                if isinstance(reply, PrepareReply):
                    return PrepareReply(prompt=reply.prompt.change(Array.take))
                if isinstance(reply, AudioReply):
                    return AudioReply(samples=reply.samples.read())
            except (OSError, EOFError, TimeoutError) as error:
                self._stop()
                if self.closed:
                    raise Overloaded(GONE) from None
                late = isinstance(error, TimeoutError)
                why = f"took longer than {SECONDS:.0f} s" if late else "ended the process"
                raise RequestError(
                    f"preparing these media {why}; send smaller ones", param="messages"
                ) from None
        kind = getattr(errors, reply.kind, OstroError)
        raise kind(reply.message, param=reply.param)

    def close(self) -> None:
        """End the process for good; who waits for it is refused."""
        self.closed = True
        if self._process is not None:
            self._process.kill()  # lets go of the lock whoever waits for a reply
        with self._lock:
            self._stop()
        self.threads.shutdown(wait=False, cancel_futures=True)

    def _exchange(self, order: bytes) -> bytes:
        """Send an order and wait for its reply. Raises EOFError, OSError or TimeoutError."""
        deadline = time.monotonic() + SECONDS
        if self.closed:
            raise Overloaded(GONE)
        if self._process is None or self._process.poll() is not None:
            self._start()
            setup = msgspec.msgpack.encode([self.inputs, self.raw, str(self.folder)])
            self._write(setup, deadline)
        self._write(order, deadline)
        size = int.from_bytes(self._read(8, deadline), "little")
        return self._read(size, deadline)

    def _start(self) -> None:
        self._stop()
        paths = os.pathsep.join(dict.fromkeys(filter(None, sys.path)))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": paths},
        )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        self._end = weakref.finalize(self, end, self._process)

    def _write(self, data: bytes, deadline: float) -> None:
        """Write a frame: its length, and the data."""
        assert self._process is not None and self._process.stdin is not None
        pipe, left = self._process.stdin.fileno(), memoryview(frame(data))
        while left:
            wait_for(pipe, select.POLLOUT, deadline)
            left = left[os.write(pipe, left) :]

    def _read(self, size: int, deadline: float) -> bytes:
        assert self._process is not None and self._process.stdout is not None
        pipe, parts = self._process.stdout.fileno(), bytearray()
        while len(parts) < size:
            wait_for(pipe, select.POLLIN, deadline)
            part = os.read(pipe, min(size - len(parts), 1 << 20))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)

    def _stop(self) -> None:
        if self._end is not None:
            self._end()
        self._process = self._end = None


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    sweep(process.pid)


def wait_for(pipe: int, event: int, deadline: float) -> None:
    """Return when a pipe can be read or written. Raises TimeoutError."""
    poll = select.poll()
    poll.register(pipe, event)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise TimeoutError


def frame(data: bytes) -> bytes:
    return len(data).to_bytes(8, "little") + data


# The process


def answer(make: Callable[[], Inputs], data: bytes) -> PrepareReply | AudioReply | ErrorReply:
    """Do what is asked, or say why not."""
    try:
        order = msgspec.msgpack.decode(data, type=PrepareRequest | AudioRequest)
        if isinstance(order, AudioRequest):
            from ostro.core.media.sound import read_sound

            return AudioReply(samples=Array.of(read_sound(order.data, order.rate)).share())
        return PrepareReply(prompt=prepare(make(), order.tokens, order.sources).change(Array.share))
    except OstroError as error:
        refusal = ErrorReply(kind=type(error).__name__, message=str(error), param=error.param)
    except MemoryError:
        told = "these media need too much memory; send smaller ones"
        refusal = ErrorReply(kind="RequestError", message=told, param="messages")
    except Exception:
        traceback.print_exc()
        told = "these media could not be prepared; the server's log says why"
        refusal = ErrorReply(kind="OstroError", message=told, param="messages")
    sweep(os.getpid())
    return refusal


def limit_resources() -> None:
    """Take away what preparing does not need: memory beyond a limit, and core dumps."""
    try:
        import resource
    except ImportError:  # not a Unix: the parent's deadline is the only limit
        return
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """Answer orders until stdin ends, as it does when the parent is gone."""
    limit_resources()
    orders, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not stand among replies
    reference, raw, folder = msgspec.msgpack.decode(read_frame(orders))
    make = cache(lambda: resolve(reference)(raw, Path(folder)))
    while data := read_frame(orders):
        replies.write(frame(msgspec.msgpack.encode(answer(make, data))))
        replies.flush()


def read_frame(file: BinaryIO) -> bytes:
    """The next frame, or nothing where there is no other."""
    return file.read(int.from_bytes(file.read(8), "little"))


if __name__ == "__main__":
    main()
