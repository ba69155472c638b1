"""The watchdog of an event loop: it logs what keeps all requests of the process waiting."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, suppress

from ostro.core.plugins.manager import PluginManager
from ostro.core.plugins.watchdog import Watchdog


class EventLoopWatchdog(Watchdog):
    """Watches the running event loop: each check leaves a call that the loop must run.

    A pass is the time until the loop runs that call.
    """

    def __init__(self, plugins: PluginManager) -> None:
        super().__init__("the event loop of HTTP", plugins)
        self.event_loop = asyncio.get_running_loop()

    def check(self) -> None:
        """See `Watchdog`."""
        super().check()
        if self.waiting:
            self.passes, self.waiting = self.passes + 1, False
            with suppress(RuntimeError):  # the loop is closed
                self.event_loop.call_soon_threadsafe(self.answer)

    def answer(self) -> None:
        """Called by the loop."""
        self.waiting = True


def watch_event_loop(plugins: PluginManager) -> AbstractContextManager[None]:
    """Watch the running event loop within the block."""
    return EventLoopWatchdog(plugins).watching()
