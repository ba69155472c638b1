"""Follows responses in the background, whichever server generates them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial

import msgspec

from ostro.core.store import DocumentStore
from ostro.entrypoints.api.openai.responses.store import JOB_KIND, event_kind
from ostro.entrypoints.operations.documents.jobs import Job
from ostro.entrypoints.operations.documents.state import State

POLL_SECONDS = 0.1
"""Interval at which the store is read."""
SHARE = 20
"""The store is not read again for this many times as long as the last reading took."""
Name = tuple[str, str]
"""The owner and the id of a response."""


@dataclass(frozen=True)
class Progress:
    """How far a response is. events: the id of the newest document of events, empty without one.

    over: its job has ended, or is cancelled.
    """

    over: bool
    events: str = ""


@dataclass(eq=False)
class Waiter:
    """A task that waits until the progress of a response is not `seen` any more."""

    seen: Progress | None
    changed: asyncio.Future[Progress] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class ResponseWatch:
    """Waits for the progress of responses. One query at a time reads that of all of them."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.waiters: dict[Name, list[Waiter]] = {}
        self.polling: asyncio.Task[None] | None = None

    async def changed(self, owner: str, id: str, seen: Progress | None) -> Progress:
        """Return the progress of a response as soon as it is not `seen`. Raises StoreError."""
        waiter, name = Waiter(seen), (owner, id)
        self.waiters.setdefault(name, []).append(waiter)
        if self.polling is None or self.polling.done():
            # Not in the context of this request: the query is that of all owners.
            self.polling = asyncio.create_task(self.poll(), context=Context())
        try:
            return await waiter.changed
        finally:
            self.waiters[name].remove(waiter)
            if not self.waiters[name]:
                del self.waiters[name]

    async def over(self, owner: str, id: str) -> None:
        """Return when the job of a response has ended or is cancelled. Raises StoreError."""
        progress = None
        while progress is None or not progress.over:
            progress = await self.changed(owner, id, progress)

    async def poll(self) -> None:
        """Read the progress of all responses, again and again while a task waits."""
        while self.waiters:
            names, seconds = [*self.waiters], 0.0
            try:
                progress, seconds = await self.state.call(partial(read_progress, names))
            except Exception as error:
                for name in names:
                    self.fail(name, error)
            else:
                for name, now in zip(names, progress, strict=True):
                    self.tell(name, now)
            await asyncio.sleep(max(POLL_SECONDS, SHARE * seconds))

    def tell(self, name: Name, progress: Progress) -> None:
        """Wake the tasks that have not seen this progress."""
        for waiter in self.waiters.get(name, ()):
            if waiter.seen != progress and not waiter.changed.done():
                waiter.changed.set_result(progress)

    def fail(self, name: Name, error: Exception) -> None:
        """Raise an error in the tasks that wait for a response."""
        for waiter in self.waiters.get(name, ()):
            if not waiter.changed.done():
                waiter.changed.set_exception(error)


def read_progress(names: Sequence[Name], store: DocumentStore) -> tuple[list[Progress], float]:
    """Return the progress of responses, and the seconds that reading it took."""
    begin, progress = time.perf_counter(), list[Progress]()
    for owner, id in names:
        job = store.get(owner, JOB_KIND, id)
        over = job is None or msgspec.json.decode(job.body, type=Job).cancelled
        newest = store.list(owner, event_kind(id), limit=1, descending=True)
        progress.append(Progress(over, newest[0].id if newest else ""))
    return progress, time.perf_counter() - begin
