"""The loop that drives an engine in one thread: receive messages, run a step, send outputs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec.structs import replace

from ostro.core.errors import OstroError
from ostro.core.messages.commands import (
    Abort,
    AdapterCommand,
    Close,
    Failed,
    FromEngine,
    GetStats,
    ModelCommand,
    ModelInfo,
    Outputs,
    ToEngine,
)
from ostro.core.messages.outputs import Output, Stats
from ostro.core.messages.requests import Request
from ostro.core.threads import THREADS

log = logging.getLogger(__name__)

Send = Callable[[FromEngine], None]


class Inbox(Protocol):
    """Messages to an engine, with a way for other threads to interrupt the wait for them."""

    def receive(self, wait: bool) -> list[ToEngine]:
        """The messages that have come in. With `wait`, block until there is one or until `wake`,
        which may leave the list empty.
        """

    def wake(self) -> None:
        """End the wait of `receive`, or that of its next call. May be called in any thread."""


class DrivenEngine(Protocol):
    """The interface of an engine that the loop drives.

    `busy`: requests or commands are under way. `runnable`: `step` can go on with one of them now;
    otherwise all of them wait for reads of adapters and models, and `step` would block until one
    ends. `events` returns and clears the messages beside outputs: results of commands, failures.
    """

    @property
    def infos(self) -> dict[str, ModelInfo]: ...

    @property
    def busy(self) -> bool: ...

    @property
    def runnable(self) -> bool: ...

    def set_wake(self, notify: Callable[[], None]) -> None:
        """Have `notify` called in another thread whenever the engine may have become runnable."""

    def submit(self, request: Any) -> None: ...

    def abort(self, id: str, index: int | None = None) -> Sequence[Output]: ...

    def step(self) -> Sequence[Output]: ...

    def stats(self) -> Stats: ...

    def change_models(self, message: ModelCommand) -> None: ...

    def adapt(self, message: AdapterCommand) -> None: ...

    def events(self) -> Sequence[FromEngine]: ...

    def close(self) -> None: ...


class Watched(Protocol):
    """The state of the loop, which a watchdog reads; see `core.plugins.watchdog`."""

    passes: int
    waiting: bool


def drive(engine: DrivenEngine, inbox: Inbox, send: Send, watchdog: Watched | None = None) -> None:
    """Run the loop until `Close` comes. Without work it waits for messages and for the engine."""
    engine.set_wake(inbox.wake)
    try:
        while True:
            messages = inbox.receive(wait=not engine.runnable)
            if watchdog is not None:
                watchdog.passes, watchdog.waiting = watchdog.passes + 1, False
            for message in messages:
                if isinstance(message, Close):
                    return
                answer(engine, message, send)
            # A step that is not runnable would block: messages such as Abort have to be received.
            if engine.runnable:
                THREADS.follow_load()
                if outputs := engine.step():
                    send(Outputs(list(outputs)))
            for event in engine.events():
                send(event)
            if watchdog is not None:
                watchdog.waiting = True
    finally:
        engine.close()


def answer(engine: DrivenEngine, message: ToEngine, send: Send) -> None:
    """Handle one message. An error of a request or command fails it alone.

    Commands that take time are answered later, among the engine's events.
    """
    if isinstance(message, Request | AdapterCommand | ModelCommand):
        try:
            if isinstance(message, AdapterCommand):
                engine.adapt(message)
            elif isinstance(message, ModelCommand):
                engine.change_models(message)
            else:
                engine.submit(message)
        # Whatever it is: the request has not begun, so other requests are unaffected.
        except Exception as error:
            if not isinstance(error, OstroError):  # the client does not receive its traceback
                log.error("a request failed with an unexpected error", exc_info=error)
            send(Failed.of(error, message.id))
    elif isinstance(message, Abort):
        if outputs := engine.abort(message.id, message.index):
            send(Outputs(list(outputs)))
    elif isinstance(message, GetStats):
        # A copy: in one process the engine goes on counting in its own.
        send(replace(engine.stats()))
