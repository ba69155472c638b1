"""Loads models in a thread; the engine's thread takes them over between two steps."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from time import monotonic
from typing import Protocol, TypeVar

from ostro.core.device import return_memory
from ostro.core.engine.models.model_engines import ModelEngines
from ostro.core.errors import CheckpointError, OstroError
from ostro.core.messages.commands import FromEngine, ModelSpec, Progress
from ostro.core.settings import ProgressCallback

log = logging.getLogger(__name__)
T = TypeVar("T")

NICENESS = 10
"""Added to the niceness of the loader thread: steps of other models come first."""

SWITCH_SECONDS = 0.00001
"""Seconds after which the loader thread yields the interpreter lock to a step (Python: 0.005).

A step waits that long up to once per kernel, since each call of a kernel releases the lock.
"""

SLACK_NANOSECONDS = 1
"""How late a wait of the engine's thread may end, for the same reason (Linux: 50,000)."""

PR_SET_TIMERSLACK = 29
"""The option of Linux's `prctl` that sets the slack of the calling thread."""

PROGRESS_SECONDS = 0.1
"""Seconds between two progress messages of one stage: each of them wakes the engine's thread."""


class BetweenSteps(Protocol):
    """Runs a call in the engine's thread between two steps and returns its result."""

    def __call__(self, call: Callable[[], T], /) -> T: ...


Build = Callable[[ModelSpec, ProgressCallback, BetweenSteps], ModelEngines]
"""Loads the model of a spec. It calls the progress callback often: the callback ends the load when
the engine is closed. Device graphs are captured through `BetweenSteps`."""

Finish = Callable[[ModelEngines | OstroError], None]
"""Receives the loaded model or the error of the load, in the engine's thread."""


class ModelLoader:
    """Loads and frees models in one thread, one at a time.

    The thread puts calls for the engine's thread on the queue `calls`, then calls `wake`; the
    engine's thread runs them with `poll`. `send` is called in the engine's thread.
    """

    def __init__(self, build: Build, send: Callable[[FromEngine], None]) -> None:
        self.build, self.send = build, send
        # One thread bounds the memory of loads.
        self.thread = ThreadPoolExecutor(1, "ostro-models", initializer=lower_priority)
        self.calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.wake: Callable[[], None] = lambda: None
        self.pending = 0  # loads and releases that have not ended
        self.closed = threading.Event()

    @property
    def busy(self) -> bool:
        """Whether a model is being loaded or freed."""
        return self.pending > 0

    @property
    def has_finished(self) -> bool:
        """Whether `poll` has something to do."""
        return not self.calls.empty()

    def poll(self) -> None:
        """Run the calls of the loader thread."""
        while self.has_finished:
            self.calls.get()()

    def load(self, name: str, spec: ModelSpec, finish: Finish) -> None:
        """Load a model, then call `finish` between two steps."""
        self.pending += 1
        self.thread.submit(self._load, name, spec, finish)
        # After the start of the loader thread, which would inherit it and then interrupt steps
        # more often.
        reduce_timer_slack()

    def free(self, entries: list[ModelEngines], finish: Callable[[], None]) -> None:
        """Close models and return their memory to the system, then call `finish` between two steps.

        The list must have the last references to the models.
        """
        close_all(entries)
        self.pending += 1
        self.thread.submit(self._free, entries, finish)

    def close(self) -> None:
        """Cancel the loads that wait, and end the one under way at its next progress report."""
        self.closed.set()
        self.thread.shutdown(wait=False, cancel_futures=True)

    # In the loader thread

    def _load(self, name: str, spec: ModelSpec, finish: Finish) -> None:
        report = self._throttled(name)
        interval = sys.getswitchinterval()
        sys.setswitchinterval(min(interval, SWITCH_SECONDS))
        try:
            result: ModelEngines | OstroError = self.build(spec, report, self._between_steps)
        except CancelledError:  # the engine was closed
            return
        except OstroError as error:
            result = type(error)(f"the model {name!r}: {error}", param=error.param)
        except Exception as error:
            # Only the type: the text of an unexpected error may contain paths of the server.
            log.exception("the model %r could not be loaded", name)
            kind = type(error).__name__
            result = CheckpointError(f"the model {name!r} could not be loaded: {kind}")
        finally:
            sys.setswitchinterval(interval)
        self._end(partial(finish, result))

    def _free(self, entries: list[ModelEngines], finish: Callable[[], None]) -> None:
        entries.clear()
        return_memory()
        self._end(finish)

    def _throttled(self, name: str) -> ProgressCallback:
        """A callback that reports the progress of a model. Raises CancelledError after `close`."""
        last = ("", 0.0)

        def report(what: str, done: int, total: int) -> None:
            nonlocal last
            if self.closed.is_set():
                raise CancelledError
            now = monotonic()
            if what != last[0] or now - last[1] > PROGRESS_SECONDS:
                last = (what, now)
                self._put(partial(self.send, Progress(what, done, total, name)))

        return report

    def _between_steps(self, call: Callable[[], T]) -> T:
        """See `BetweenSteps`."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

        self._put(run)
        while not self.closed.is_set():
            with suppress(TimeoutError):
                return future.result(1)
        raise CancelledError

    def _end(self, finish: Callable[[], None]) -> None:
        def run() -> None:
            self.pending -= 1
            finish()

        self._put(run)

    def _put(self, call: Callable[[], None]) -> None:
        # Queued before the call of `wake`: the woken thread must find it.
        self.calls.put(call)
        self.wake()


def close_all(entries: Iterable[ModelEngines]) -> None:
    """Close models."""
    for entry in entries:
        entry.close()


def lower_priority() -> None:
    """Lower the priority of this thread, and of the threads that its kernels start."""
    with suppress(OSError, AttributeError):  # other systems have one priority per process
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


def reduce_timer_slack() -> None:
    """Let the waits of this thread, such as those for the interpreter lock, end in time."""
    if sys.platform == "linux":
        slack = ctypes.c_ulong(SLACK_NANOSECONDS)
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, slack)
