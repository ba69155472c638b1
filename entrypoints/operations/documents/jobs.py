"""Jobs: work on stored documents that outlives a request, and a server.

One server at a time works on a job. A lease in the job's document keeps other servers away; it ends
if the server does, and another server continues.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from math import inf
from secrets import token_hex
from time import monotonic

import msgspec

from ostro.core.errors import DocumentNotFound, OstroError, StoreConflict, StoreError
from ostro.core.turns import Turns
from ostro.entrypoints.operations.documents.state import State

log = logging.getLogger(__name__)
POLL_SECONDS, LEASE_SECONDS = 10.0, 30.0
"""Interval at which jobs are searched for, and length of a lease."""
PAGE = 1000
"""Jobs that are read at a time."""
SHARE = 20
"""The jobs are not listed again for this many times as long as listing them took."""
SKIP_SECONDS = 60.0
"""Time for which a server does not try again a job that it had to leave to others."""
ABANDONED_SECONDS = 25 * 3600.0
"""Age at which any server ends a job whose key it does not know: no server has continued it."""


class ModelNotServed(OstroError):
    """Only a server with another model can do the job, or this one after a change."""

    def __init__(self, model: str) -> None:
        super().__init__(f"waits for a server with the model {model!r}")


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Work that has not ended. One server at a time does it: `server`, until `until`.

    cancelled: its document says that it was cancelled.
    """

    server: str = ""
    until: float = 0.0
    cancelled: bool = False


class FairSlots:
    """Slots that owners get in turn, however many requests of one owner wait."""

    def __init__(self, slots: int) -> None:
        self.free = slots
        self.waiting = Turns[asyncio.Future[None]]()

    @asynccontextmanager
    async def slot(self, owner: str) -> AsyncIterator[None]:
        """Hold a slot within the block."""
        if self.free:
            self.free -= 1
        else:
            turn = asyncio.get_running_loop().create_future()
            self.waiting.add(owner, turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # it has got a slot
                    self.release()
                raise
        try:
            yield
        finally:
            self.release()

    def release(self) -> None:
        """Give a slot to the next owner."""
        while (following := self.waiting.take()) is not None:
            _, turn = following
            if not turn.cancelled():
                turn.set_result(None)
                return
        self.free += 1


class JobRunner:
    """Does the jobs of one kind, of all owners, until `run` is cancelled.

    Subclasses define `work`, and what `forget` deletes besides the job. `name` is that of the
    documents, for messages. `most` jobs are done at once, and one of each owner in any case.
    `knows` returns whether an owner is a caller of this server; jobs of others are left to the
    servers that know them. `serves` returns whether this server has a model of a name.
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
        self.knows: Callable[[str], bool] = lambda owner: True
        self.serves: Callable[[str], bool] = lambda model: True
        self.running: dict[str, asyncio.Task[None]] = {}
        self.owners = Counter[str]()  # of the jobs that run
        self.skipped: dict[str, float] = {}  # jobs that only others can do, until when
        self.queue: dict[str, deque[str]] = {}  # the last list: ids by owner, oldest first
        self.listed, self.announced = -inf, True  # time of the list; whether it lacks jobs
        self.listing_seconds = 0.0

    async def work(self, owner: str, id: str) -> None:
        """Do a job to its end. Raises DocumentNotFound if its document is deleted."""
        raise NotImplementedError

    async def forget(self, owner: str, id: str) -> None:
        """Delete a job."""
        with suppress(OstroError):
            await self.state.delete(owner, self.kind, id)

    def notify(self) -> None:
        """Look for new jobs now."""
        self.announced = True
        self.changed.set()

    async def run(self) -> None:
        """Do jobs until cancelled. Their leases then end, and another server continues."""
        try:
            while True:
                self.changed.clear()
                try:
                    await (self.take() if self.must_list() else self.begin())
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

    def must_list(self) -> bool:
        """Whether to list the jobs: some were announced, or `poll` seconds are over.

        Listing many jobs often would leave no time for requests.
        """
        age = monotonic() - self.listed
        if not self.announced and age < self.poll:
            return False
        pause = SHARE * self.listing_seconds - age
        if pause > 0:
            asyncio.get_running_loop().call_later(pause, self.changed.set)
        return pause <= 0

    async def take(self) -> None:
        """List the jobs that no server works on, and start some."""
        self.announced, begin = False, monotonic()
        self.queue = await self.waiting()
        self.listed = monotonic()
        self.listing_seconds = self.listed - begin
        await self.begin()

    async def begin(self) -> None:
        """Start jobs of the last list.

        Owners with the fewest running jobs come first, and of each owner the oldest job.
        """
        queue = self.queue
        while queue:
            owner = min(queue, key=self.owners.__getitem__)
            if self.owners[owner] and len(self.running) >= self.most:
                break
            id = queue[owner].popleft()
            if not queue[owner]:
                del queue[owner]
            if id not in self.running and await self.claim(owner, id):
                task = asyncio.create_task(self.hold(owner, id))
                self.running[id] = task
                self.owners[owner] += 1
                task.add_done_callback(partial(self.release, owner, id))

    async def waiting(self) -> dict[str, deque[str]]:
        """Return the ids of the jobs that this server may start, oldest first, by owner."""
        now, found = self.clock(), dict[str, deque[str]]()
        self.skipped = {id: until for id, until in self.skipped.items() if until > now}
        after, more = None, True
        while more:
            page = await self.state.list(
                None, self.kind, Job, after=after, limit=PAGE, descending=False
            )
            for each in page.items:
                owner, id = each.document.owner, each.document.id
                after = id
                mine = self.knows(owner) or now > each.document.created + ABANDONED_SECONDS
                if mine and not (
                    id in self.running or id in self.skipped or self.taken(each.value)
                ):
                    found.setdefault(owner, deque()).append(id)
            more = page.has_more
        return found

    def taken(self, job: Job) -> bool:
        """Whether another server has the lease of a job."""
        now = self.clock()
        return job.server != self.server and now < job.until < now + 10 * self.lease

    def release(self, owner: str, id: str, _: asyncio.Task[None]) -> None:
        """Forget a task that has ended."""
        del self.running[id]
        self.owners[owner] -= 1
        self.owners += Counter()  # drops owners without running jobs
        self.changed.set()

    async def claim(self, owner: str, id: str, seconds: float | None = None) -> bool:
        """Take or renew the lease of a job. False if another server has it or it is gone."""
        until = self.clock() + (self.lease if seconds is None else seconds)

        def extend(job: Job) -> Job:
            if self.taken(job):
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
        except ModelNotServed as error:
            log.warning("%s %s: %s", self.name, id, error)
            self.skipped[id] = self.clock() + SKIP_SECONDS
            with suppress(OstroError):
                await self.claim(owner, id, 0.0)
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
