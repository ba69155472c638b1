"""The watchdog of a loop: it logs the plugin whose code keeps the loop from going on."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_stack
from types import FrameType

from ostro.core.plugins.manager import PluginManager

log = logging.getLogger(__name__)

CHECK_SECONDS = 1
"""Seconds between two checks."""
NOTICES = (10, 60)
"""Seconds of one call after which it is logged."""
LONG_CALLS = (
    "ostro.core.engine.startup.compilation.",
    "ostro.core.engine.graphs.Graphs.capture",
    "ostro.core.engine.startup.start.",
    "ostro.core.native.library.",
    "torch._dynamo.",
    "torch._inductor.",
    "triton.compiler.",
    "triton.runtime.autotuner.",
)
"""Functions that may take long in a loop: they load models, and compile and capture kernels."""


class Watchdog:
    """Watches the loop of one thread, which is the thread that creates it.

    The loop increases `passes` in each pass, and sets `waiting` while it has no work. Its call is
    held if the same functions run, of the same objects, at each check: a step of a large model on a
    slow CPU may take minutes, but goes from layer to layer.

    Seconds are numbers of checks, so that a pause of the whole process counts as one.
    """

    def __init__(
        self, loop: str, plugins: PluginManager, report: Callable[[str], None] | None = None
    ) -> None:
        """loop: its name in messages. report: receives the message for a held call, and "" when the
        loop goes on, in the thread of the watchdog.
        """
        self.loop, self.plugins, self.report = loop, plugins, report
        self.passes, self.waiting = 0, True
        self.thread = threading.get_ident()
        self.calls: object = None  # the pass and the calls that the last check has seen
        self.seconds = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Check the loop in a thread within the block."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(CHECK_SECONDS):
                self.check()

        threading.Thread(target=watch, name="ostro-watchdog", daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def check(self) -> None:
        """Compare the calls of the loop with those of the last check; log what is held."""
        passes = self.passes
        frames = [] if self.waiting else frames_of(self.thread)
        if any(is_long(frame) for frame in frames):
            frames = []
        inner, outer = self.innermost(frames)
        calls = (passes, [identity(frame) for frame in frames[: outer + 1]]) if frames else None
        if calls is None or calls != self.calls:
            if self.seconds >= NOTICES[0]:
                log.warning("%s goes on after %d s", self.loop, self.seconds)
                self.tell("")
            self.calls, self.seconds = calls, 0
            return
        self.seconds += CHECK_SECONDS
        if self.seconds in NOTICES:
            message = self.describe(frames[inner])
            log.warning("%s", message)
            self.tell(message)

    def innermost(self, frames: Sequence[FrameType]) -> tuple[int, int]:
        """The innermost frame of a plugin, and the first of the plugin's frames that lead to it.

        Without a plugin both are the innermost frame of ostro, or of all.
        """
        plugins = [self.plugins.plugin_in(module_of(frame)) for frame in frames]
        inner = next((i for i in reversed(range(len(frames))) if plugins[i]), None)
        if inner is None:
            own = [i for i, frame in enumerate(frames) if module_of(frame).startswith("ostro.")]
            return (own[-1], own[-1]) if own else (len(frames) - 1, len(frames) - 1)
        outer = inner
        while outer and plugins[outer - 1] == plugins[inner]:
            outer -= 1
        return inner, outer

    def describe(self, frame: FrameType) -> str:
        """The message for a loop that is held at a frame."""
        place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        if (plugin := self.plugins.plugin_in(module_of(frame))) is None:
            return f"{self.loop} is held for {self.seconds} s at {place}, by no plugin"
        return f"plugin {plugin} has held {self.loop} for {self.seconds} s at {place}"

    def tell(self, message: str) -> None:
        """Pass a message to `report`."""
        if self.report is not None:
            self.report(message)


def frames_of(thread: int) -> list[FrameType]:
    """The frames of a thread, the innermost last; none if it has ended."""
    frame = sys._current_frames().get(thread)
    return [] if frame is None else [each for each, _ in walk_stack(frame)][::-1]


def module_of(frame: FrameType) -> str:
    """The name of the module of a frame's function."""
    name: str = frame.f_globals.get("__name__", "")
    return name


def is_long(frame: FrameType) -> bool:
    """Whether a frame is that of a function that may take long."""
    return f"{module_of(frame)}.{frame.f_code.co_qualname}".startswith(LONG_CALLS)


def identity(frame: FrameType) -> tuple[object, int]:
    """The identity of a call: its function, and the object of a method, such as a layer."""
    # Only of methods: reading its locals, a frame keeps copies of them until it is read again.
    is_method = frame.f_code.co_varnames[:1] == ("self",)
    return frame.f_code, id(frame.f_locals.get("self")) if is_method else 0
