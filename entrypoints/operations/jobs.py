"""Jobs: work on stored documents that outlives a request, and a server.

One server at a time works on a job. A lease in the job's document keeps other servers away; it ends
if the server does, and another server continues.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from secrets import token_hex

import msgspec

from ostro.core.errors import DocumentNotFound, OstroError, StoreConflict, StoreError
from ostro.entrypoints.operations.state import State

log = logging.getLogger(__name__)
POLL_SECONDS, LEASE_SECONDS = 10.0, 30.0
"""Interval at which jobs are searched for, and length of a lease."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Work that has not ended. One server at a time does it: `server`, until `until`."""

    server: str = ""
    until: float = 0.0


class JobRunner:
    """Does the jobs of one kind, of all owners, until `run` is cancelled.

    Subclasses define `work`, and what `forget` deletes besides the job. `name` is that of the
    documents, for messages; `most` jobs are done at once.
    """

    kind: str
    name: str
    most: int

    def __init__(
        self,
        state: State,
        *,
        poll: float = POLL_SECONDS,
        lease: float = LEASE_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """poll, lease: seconds. clock: the time since 1970, which all servers of a store share."""
        self.state, self.poll, self.lease, self.clock = state, poll, lease, clock
        self.server = token_hex(8)
        self.changed = asyncio.Event()
        self.running: dict[str, asyncio.Task[None]] = {}

    async def work(self, owner: str, id: str) -> None:
        """Do a job to its end. Raises DocumentNotFound if its document is deleted."""
        raise NotImplementedError

    async def forget(self, owner: str, id: str) -> None:
        """Delete a job."""
        with suppress(OstroError):
            await self.state.delete(owner, self.kind, id)

    def notify(self) -> None:
        """Look for new jobs now."""
        self.changed.set()

    async def run(self) -> None:
        """Do jobs until cancelled. Their leases then end, and another server continues."""
        try:
            while True:
                self.changed.clear()
                try:
                    await self.take()
                except StoreError as error:
                    log.warning("%s: the jobs cannot be read: %s", self.name, error)
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.poll):
                        await self.changed.wait()
        finally:
            tasks = [*self.running.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def take(self) -> None:
        """Start the jobs that no server works on, oldest first."""
        page = await self.state.list(None, self.kind, Job, limit=1000, descending=False)
        for each in page.items:
            owner, id = each.document.owner, each.document.id
            if id in self.running or len(self.running) >= self.most:
                continue
            if await self.claim(owner, id):
                task = asyncio.create_task(self.hold(owner, id))
                self.running[id] = task
                task.add_done_callback(partial(self.release, id))

    def release(self, id: str, _: asyncio.Task[None]) -> None:
        """Forget a task that has ended."""
        del self.running[id]
        self.changed.set()

    async def claim(self, owner: str, id: str, seconds: float | None = None) -> bool:
        """Take or renew the lease of a job. False if another server has it or it is gone."""
        now = self.clock()
        until = now + (self.lease if seconds is None else seconds)

        def extend(job: Job) -> Job:
            if job.server != self.server and now < job.until < now + 10 * self.lease:
                return job
            return msgspec.structs.replace(job, server=self.server, until=until)

        try:
            job = await self.state.change(owner, self.kind, id, Job, extend)
        except (DocumentNotFound, StoreConflict):
            return False
        return job.server == self.server

    async def hold(self, owner: str, id: str) -> None:
        """Do a job whose lease is held, and renew the lease meanwhile."""
        work = asyncio.ensure_future(self.work(owner, id))
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=self.lease / 3)
                held = work.done() or await self.claim(owner, id)
                if not held and not work.done():  # the end of a job deletes it
                    log.warning("%s %s is continued by another server", self.name, id)
                    return
            await work
        except DocumentNotFound:  # the document was deleted
            await self.forget(owner, id)
        except StoreError as error:
            log.error("%s %s waits for the store: %s", self.name, id, error)
            await asyncio.sleep(self.poll)
        except Exception:
            log.exception("%s %s has stopped; it is tried again", self.name, id)
            await asyncio.sleep(self.poll)
        finally:
            if not work.done():
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
                with suppress(OstroError):
                    await self.claim(owner, id, 0.0)
