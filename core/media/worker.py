"""Preparation of media in a worker process with limits on memory and time.

The owners of requests take turns (`core/turns.py`). A worker that takes too long is killed.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ostro.core.errors import Overloaded, RequestError, rebuild_error
from ostro.core.media import process
from ostro.core.media.parts import check_count
from ostro.core.media.process import (
    ArrayReply,
    DecodeRequest,
    ErrorReply,
    ItemReply,
    MeasureReply,
    MeasureRequest,
    MediaSource,
    Message,
    PlaceRequest,
    PrepareRequest,
    PromptReply,
    Reply,
)
from ostro.core.messages.arrays import Array, sweep
from ostro.core.messages.prompt import Item, Prompt
from ostro.core.records import Import
from ostro.core.turns import OWNER, FairThreads
from ostro.core.worker import WorkerProcess

if TYPE_CHECKING:
    from ostro.core.media.decode import Pixels
    from ostro.core.media.sound import Samples

SECONDS = 120.0
"""Time limit for the media of one request, in seconds of the worker process."""
LATE = f"took longer than {SECONDS:.0f} s"
GONE = "the server is shutting down"
THREADS = 16
"""Requests whose media are fetched and prepared at once."""
OWN_THREADS = 4
"""Those of one owner. While one is prepared, the others are fetched and their prompts rendered: an
owner whose next request is not ready loses its turn.
"""
MAX_PIXELS = 512 << 20
"""Pixels of all images and videos of one request."""
MAX_SAMPLES = 1 << 29
"""Samples of all sounds of one request, those of all channels."""
MAX_ARRAYS = 4 << 30
"""Bytes of the arrays of all items of one request."""
TURN = 1.0
"""Seconds after which the turn of an owner ends, with the file that is decoded then."""
T = TypeVar("T")


@dataclass
class Usage:
    """The worker's time that a request of an owner has used, and whether its client has left.

    turn: the time at the end of its turn.
    """

    owner: str
    seconds: float = 0.0
    turn: float = TURN
    cancelled: bool = False


USAGE: ContextVar[Usage] = ContextVar("USAGE")
"""The usage of the request whose work runs in a thread of `MediaWorker.run`."""


class MediaWorker:
    """The worker process that prepares media for one model.

    It starts with the first request and is replaced when it dies. Methods are thread-safe and
    block, except `run`, which is for callers that must not. The process does one thing at a time:
    owners take turns by the time that they used, and a turn ends after `TURN` and the file that is
    decoded then.
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

        `clock` measures the time limit and the turns.
        """
        self.inputs, self.raw, self.folder = inputs, raw, folder
        self.closed = False
        self._requests = FairThreads(THREADS, "ostro-media", OWN_THREADS)
        self._turns = FairThreads(1, "ostro-media-turn", clock=clock)
        self._lock = threading.Lock()
        self._worker = WorkerProcess(sweep, clock=clock)

    @property
    def pid(self) -> int | None:
        """The id of the process, None before it starts."""
        return self._worker.pid

    async def run(self, work: Callable[[], T]) -> T:
        """Run work that calls the other methods, in a thread, and return its result.

        The time limit applies to all its calls together. After a cancellation nothing more is
        decoded for it. Raises Overloaded if the worker is closed meanwhile.
        """
        usage, context = Usage(OWNER.get()), copy_context()
        context.run(USAGE.set, usage)
        if self.closed:
            raise Overloaded(GONE)
        try:
            future = self._requests.submit(usage.owner, partial(context.run, work))
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            usage.cancelled = True
            if self.closed:  # which cancels what waits
                raise Overloaded(GONE) from None
            raise

    def prepare(
        self,
        tokens: Sequence[int],
        sources: Sequence[MediaSource],
        check: Callable[[int], object] = lambda length: None,
    ) -> Prompt:
        """Place media in a prompt; large arrays stay in shared memory. Equal ones share them.

        check: called before anything is decoded with the number of tokens that the prompt will at
        least have; raises an error for too many. Raises RequestError for media that are too large
        or cannot be decoded, Unsupported for kinds that the model does not support, Overloaded if
        the process was killed.
        """
        check_count(sources)
        usage = self._usage()
        steps = self._prepare(usage, tokens, sources, check)
        while (prompt := self._take_turn(usage, partial(next, steps))) is None:
            pass
        return prompt

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

    def close(self) -> None:
        """End the process. Requests that run or wait fail with Overloaded."""
        self.closed = True
        self._worker.kill()  # the thread that waits for a reply fails and releases the lock
        with self._lock:
            self._worker.stop()
        self._turns.close()
        self._requests.close()

    def _usage(self) -> Usage:
        """The usage of the request whose work this thread runs, or a new one."""
        return USAGE.get(None) or Usage(OWNER.get())

    def _take_turn(self, usage: Usage, work: Callable[[], T]) -> T:
        """Do work with the process in the next turn of the owner."""
        if self.closed:
            raise Overloaded(GONE)
        usage.turn = usage.seconds + TURN
        try:
            return self._turns.submit(usage.owner, work).result()
        except CancelledError:
            raise Overloaded(GONE) from None

    def _prepare(
        self,
        usage: Usage,
        tokens: Sequence[int],
        sources: Sequence[MediaSource],
        check: Callable[[int], object],
    ) -> Iterator[Prompt | None]:
        """The steps of `prepare`, each of them one turn: None, and last the prompt."""
        distinct = {source: index for index, source in enumerate(dict.fromkeys(sources))}
        measured = dict[MediaSource, MeasureReply]()
        for source in distinct:
            if usage.seconds >= usage.turn:
                yield None
            measured[source] = self._ask(usage, MeasureRequest(source=source), MeasureReply)
        check_sizes([(source.kind, reply.size) for source, reply in measured.items()])
        check(len(tokens) + sum((measured[source].tokens or 1) - 1 for source in sources))
        items = list[Item]()
        try:
            for source in distinct:
                if usage.seconds >= usage.turn:
                    yield None
                items.append(self._ask(usage, PrepareRequest(source=source), ItemReply).item)
                check_arrays(sum(item.nbytes for item in items))
            indices = [distinct[source] for source in sources]
            place = PlaceRequest(tokens=list(tokens), items=items, indices=indices)
            yield self._ask(usage, place, PromptReply).prompt
        except BaseException:
            for item in items:
                item.drop()
            raise

    def _decode(self, request: DecodeRequest) -> Any:
        usage = self._usage()
        reply = self._take_turn(usage, partial(self._ask, usage, request, ArrayReply))
        return reply.array.numpy()

    def _ask(self, usage: Usage, message: Message, kind: type[T]) -> T:
        """Send a message and return its reply. Raises the error of an ErrorReply."""
        if usage.cancelled:
            raise Overloaded("the client has left")
        if usage.seconds >= SECONDS:
            raise failed(LATE)
        data = msgspec.msgpack.encode(message)
        with self._lock:
            begun = self._worker.clock()
            try:
                data = self._exchange(data, begun + SECONDS - usage.seconds)
                reply = take(msgspec.msgpack.decode(data, type=Reply | ErrorReply))
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
                raise failed(LATE if late else "crashed the worker") from None
            finally:
                usage.seconds += self._worker.clock() - begun
        if isinstance(reply, ErrorReply):
            raise rebuild_error(
                reply.kind, reply.message, reply.param, reply.status, reply.code, reply.facts
            )
        assert isinstance(reply, kind)
        return reply

    def _was_killed(self) -> bool:
        """Whether a process that has ended was killed: a file may crash it, but not kill it."""
        return self._worker.pid is not None and self._worker.wait() == -signal.SIGKILL

    def _exchange(self, data: bytes, deadline: float) -> bytes:
        """Send an encoded message, return the reply. Raises EOFError, OSError or TimeoutError."""
        if self.closed:
            raise Overloaded(GONE)
        if not self._worker.running:
            command = [sys.executable, "-P", "-m", process.__name__]
            self._worker.start(command, process.environment())
            setup = msgspec.msgpack.encode([self.inputs, self.raw, str(self.folder)])
            self._worker.send(setup, deadline)
        self._worker.send(data, deadline)
        return self._worker.receive(deadline)


def failed(why: str) -> RequestError:
    """The error for media that cannot be prepared."""
    return RequestError(f"preparing the media {why}; send smaller ones", param="messages")


def take(reply: Reply | ErrorReply) -> Reply | ErrorReply:
    """A reply with its arrays taken over from the worker. Raises OSError if one is missing."""
    if isinstance(reply, ItemReply):
        return ItemReply(item=reply.item.change(Array.take))
    if isinstance(reply, PromptReply):
        return PromptReply(prompt=reply.prompt.change(Array.take))
    if isinstance(reply, ArrayReply):
        return ArrayReply(array=reply.array.read())
    return reply


def check_sizes(sizes: Sequence[tuple[str, int]]) -> None:
    """Raise RequestError for media of a request that are too large together.

    sizes: the kind of each, and its pixels or samples.
    """
    pixels = sum(size for kind, size in sizes if kind != "audio")
    samples = sum(size for kind, size in sizes if kind == "audio")
    for total, most, what in (
        (pixels, MAX_PIXELS, "pixels"),
        (samples, MAX_SAMPLES, "samples"),
    ):
        if total > most:
            raise RequestError(
                f"the media of the request have {total / 1e6:.0f} million {what} together; the "
                f"limit is {most / 1e6:.0f} million: send fewer or smaller ones",
                param="messages",
            )


def check_arrays(used: int) -> None:
    """Raise RequestError for a request whose items have arrays of too many bytes."""
    if used > MAX_ARRAYS:
        raise RequestError(
            f"the prepared media of the request have more than {MAX_ARRAYS >> 30} GiB; send fewer "
            "or smaller ones",
            param="messages",
        )
