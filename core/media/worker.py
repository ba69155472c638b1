"""Preparation of media in a worker process with limits on memory and time.

Files may be hostile: the server's own process never decodes them, and a worker that takes too long
is killed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from ostro.core.errors import (
    OstroError,
    Overloaded,
    RequestError,
    describe_error,
    rebuild_error,
)
from ostro.core.media.inputs import Inputs
from ostro.core.media.parts import check_count
from ostro.core.messages.arrays import Array, sweep
from ostro.core.messages.prompt import Item, Prompt
from ostro.core.records import Import, resolve
from ostro.core.worker import WorkerProcess, frame

if TYPE_CHECKING:
    from ostro.core.media.decode import Pixels
    from ostro.core.media.sound import Samples

MEMORY = 16 << 30
"""Limit on the worker's address space in bytes; libraries map more than they use."""
SECONDS = 120.0
"""Time limit for the media of one request, in seconds."""
GONE = "the server is shutting down"
THREADS = 2
"""Threads that fetch media and wait for the worker; one can fetch while the other waits."""


class MediaSource(msgspec.Struct, frozen=True):
    """One image, video or audio of a request: its kind and the contents of its file."""

    kind: str
    data: bytes


class PrepareRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A request to the worker: prepare media and place them in a prompt."""

    tokens: list[int]
    sources: list[MediaSource]


class DecodeRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A request to the worker: decode an image file, or an audio file to samples at `rate` Hz."""

    source: MediaSource
    rate: int = 0


class ErrorReply(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A reply of the worker: an OstroError, by the fields of `describe_error`."""

    kind: str
    message: str
    param: str | None = None
    status: int | None = None
    code: str | None = None


class PrepareReply(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A reply of the worker: the prompt, with its arrays in shared memory."""

    prompt: Prompt


class ArrayReply(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A reply of the worker: pixels or samples, in shared memory."""

    array: Array


def prepare(inputs: Inputs, tokens: Sequence[int], sources: Sequence[MediaSource]) -> Prompt:
    """Decode media and place them in a prompt. Raises RequestError or Unsupported."""
    return inputs.expand_placeholders(tokens, [make_item(inputs, source) for source in sources])


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


def decode(request: DecodeRequest) -> Pixels | Samples:
    """The pixels of an image file, or the samples of an audio file."""
    from ostro.core.media.decode import read_image
    from ostro.core.media.sound import read_sound

    data = request.source.data
    return read_image(data) if request.source.kind == "image" else read_sound(data, request.rate)


class MediaWorker:
    """The worker process that prepares media for one model.

    It starts with the first request and is replaced when it dies. Methods are thread-safe; requests
    run one at a time. `threads` is an executor for callers that must not block.
    """

    def __init__(
        self,
        inputs: Import,
        raw: Mapping[str, Any],
        folder: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`inputs` is the import string of an `Inputs` class, `raw` and `folder` its arguments.

        `clock` measures the time limit.
        """
        self.inputs, self.raw, self.folder = inputs, raw, folder
        self.closed = False
        self.threads = ThreadPoolExecutor(THREADS, "ostro-media")
        self._lock = threading.Lock()
        self._worker = WorkerProcess(sweep, clock=clock)

    @property
    def pid(self) -> int | None:
        """The id of the process, None before it starts."""
        return self._worker.pid

    def prepare(self, tokens: Sequence[int], sources: Sequence[MediaSource]) -> Prompt:
        """Place media in a prompt; large arrays stay in shared memory.

        Raises RequestError for media that cannot be decoded, Unsupported for kinds that the model
        does not support, Overloaded if the process was killed.
        """
        check_count(sources)
        reply = self._ask(PrepareRequest(tokens=list(tokens), sources=list(sources)))
        assert isinstance(reply, PrepareReply)
        return reply.prompt

    def listen(self, data: bytes, rate: int) -> Samples:
        """Decode an audio file; see `read_sound`."""
        return self._decode(DecodeRequest(source=MediaSource("audio", data), rate=rate))

    def look(self, data: bytes) -> Pixels:
        """Decode an image file; see `read_image`. The `param` of errors is "image"."""
        try:
            return self._decode(DecodeRequest(source=MediaSource("image", data)))
        except RequestError as error:
            error.param = "image"
            raise

    def _decode(self, request: DecodeRequest) -> Any:
        reply = self._ask(request)
        assert isinstance(reply, ArrayReply)
        return reply.array.numpy()

    def _ask(self, request: PrepareRequest | DecodeRequest) -> PrepareReply | ArrayReply:
        """Send a request and return its reply. Raises the error of an ErrorReply."""
        data = msgspec.msgpack.encode(request)
        with self._lock:
            try:
                reply = msgspec.msgpack.decode(
                    self._exchange(data), type=PrepareReply | ArrayReply | ErrorReply
                )
                if isinstance(reply, PrepareReply):
                    return PrepareReply(prompt=reply.prompt.change(Array.take))
                if isinstance(reply, ArrayReply):
                    return ArrayReply(array=reply.array.read())
            except (OSError, EOFError) as error:
                late = isinstance(error, TimeoutError)
                killed = not late and self._was_killed()
                self._worker.stop()
                if self.closed:
                    raise Overloaded(GONE) from None
                if killed:
                    raise Overloaded(
                        "the process that prepares media was killed; try again"
                    ) from None
                why = f"took longer than {SECONDS:.0f} s" if late else "crashed the worker"
                raise RequestError(
                    f"preparing the media {why}; send smaller ones", param="messages"
                ) from None
        raise rebuild_error(reply.kind, reply.message, reply.param, reply.status, reply.code)

    def close(self) -> None:
        """End the process. Requests that run or wait fail with Overloaded."""
        self.closed = True
        self._worker.kill()  # the thread that waits for a reply fails and releases the lock
        with self._lock:
            self._worker.stop()
        self.threads.shutdown(wait=False, cancel_futures=True)

    def _was_killed(self) -> bool:
        """Whether a process that has ended was killed: a file may crash it, but not kill it."""
        return self._worker.pid is not None and self._worker.wait() == -signal.SIGKILL

    def _exchange(self, data: bytes) -> bytes:
        """Send an encoded request, return the reply. Raises EOFError, OSError or TimeoutError."""
        deadline = self._worker.clock() + SECONDS
        if self.closed:
            raise Overloaded(GONE)
        if not self._worker.running:
            self._worker.start([sys.executable, "-P", "-m", __name__], environment())
            setup = msgspec.msgpack.encode([self.inputs, self.raw, str(self.folder)])
            self._worker.send(setup, deadline)
        self._worker.send(data, deadline)
        return self._worker.receive(deadline)


def environment() -> dict[str, str]:
    """The environment of the worker: that of this process, with its import path."""
    paths = os.pathsep.join(dict.fromkeys(filter(None, sys.path)))
    return {**os.environ, "PYTHONPATH": paths}


# The worker process


def answer(make: Callable[[], Inputs], data: bytes) -> PrepareReply | ArrayReply | ErrorReply:
    """Handle one request. Errors become an ErrorReply."""
    try:
        request = msgspec.msgpack.decode(data, type=PrepareRequest | DecodeRequest)
        if isinstance(request, DecodeRequest):
            return ArrayReply(array=Array.of(decode(request)).share())
        prompt = prepare(make(), request.tokens, request.sources)
        return PrepareReply(prompt=prompt.change(Array.share))
    except OstroError as error:
        reply = ErrorReply(**describe_error(error))
    except MemoryError:
        message = "preparing the media exceeds the memory limit; send smaller ones"
        reply = ErrorReply(kind="RequestError", message=message, param="messages")
    except Exception:
        traceback.print_exc()
        message = "the media could not be prepared; see the server's log"
        reply = ErrorReply(kind="OstroError", message=message, param="messages")
    sweep(os.getpid())
    return reply


def limit_resources() -> None:
    """Limit the memory of this process, within the limit of the server, and disable core dumps."""
    try:
        import resource
    except ImportError:  # not Unix: the time limit of the parent remains
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    memory = MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """Handle requests until stdin ends, which it does when the parent ends."""
    limit_resources()
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with replies
    reference, raw, folder = msgspec.msgpack.decode(read_frame(requests))
    make = cache(lambda: resolve(reference)(raw, Path(folder)))
    while data := read_frame(requests):
        replies.write(frame(msgspec.msgpack.encode(answer(make, data))))
        replies.flush()


def read_frame(file: BinaryIO) -> bytes:
    """The next frame, b"" at the end."""
    return file.read(int.from_bytes(file.read(8), "little"))


if __name__ == "__main__":
    main()
