"""Runs batches: one server at a time works on a batch, and another one continues after its end.

Each result is stored when its request ends, so that a request whose result is stored never runs
again. A lease in the batch's job keeps other servers away; it ends if the server does.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from secrets import token_hex
from typing import Any

import msgspec
from msgspec.structs import replace

from ostro.core.errors import DocumentNotFound, OstroError, StoreConflict, StoreError
from ostro.core.store import new_id
from ostro.entrypoints.operations.batch_lines import (
    MAX_LINES,
    Line,
    LineError,
    LineResponse,
    LineResult,
    add_result,
    custom_id_of,
    encode_results,
    line_id,
    line_kind,
    parse_line,
    read_lines,
    stored_results,
)
from ostro.entrypoints.operations.batches import (
    ENDED,
    JOB_KIND,
    KIND,
    Batch,
    BatchFault,
    BatchUsage,
    Job,
    Status,
)
from ostro.entrypoints.operations.caller import Caller
from ostro.entrypoints.operations.files import KIND as FILE_KIND
from ostro.entrypoints.operations.files import File, Files, seconds_of
from ostro.entrypoints.operations.state import State

log = logging.getLogger(__name__)
SLOTS = 16
"""Requests of batches that run at once."""
MAX_RUNNING = 8
"""Batches that run at once."""
POLL_SECONDS, LEASE_SECONDS, PROGRESS_SECONDS = 10.0, 30.0, 1.0
"""Intervals: search for batches, length of a lease, update of the progress."""
MAX_OUTPUT = 1 << 40
"""Limit on the bytes of a file of results."""
RETRY_SECONDS = 0.5, 30.0
"""First and longest wait before a request is repeated for which the server had no capacity."""
BUSY = (429, 503)
"""Statuses of such requests."""
Execute = Callable[[str, Mapping[str, Any], str], Awaitable[tuple[int, bytes]]]
"""Runs a request: its route, its body and the caller's name give the status and the JSON of a
response. The permissions are those that the caller has when the request runs.
"""


class BatchRunner:
    """Runs the batches of all callers until `run` is cancelled."""

    def __init__(
        self,
        state: State,
        files: Files,
        execute: Execute,
        *,
        slots: int = SLOTS,
        poll: float = POLL_SECONDS,
        lease: float = LEASE_SECONDS,
    ) -> None:
        """slots: requests that run at once. poll, lease: seconds."""
        self.state, self.files, self.execute = state, files, execute
        self.poll, self.lease = poll, lease
        self.server = token_hex(8)
        self.slots = asyncio.Semaphore(slots)
        self.changed = asyncio.Event()
        self.running: dict[str, asyncio.Task[None]] = {}

    def notify(self) -> None:
        """Look for new and cancelled batches now."""
        self.changed.set()

    async def run(self) -> None:
        """Run batches until cancelled. Their leases then end, and another server continues."""
        try:
            while True:
                self.changed.clear()
                try:
                    await self.take()
                except StoreError as error:
                    log.warning("batches cannot be read: %s", error)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.changed.wait(), self.poll)
        finally:
            tasks = [*self.running.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def take(self) -> None:
        """Start the batches that no server works on, oldest first."""
        page = await self.state.list(None, JOB_KIND, Job, limit=1000, descending=False)
        for each in page.items:
            owner, id = each.document.owner, each.document.id
            if id in self.running or len(self.running) >= MAX_RUNNING:
                continue
            if await self.claim(owner, id):
                task = asyncio.create_task(self.work(owner, id))
                self.running[id] = task
                task.add_done_callback(partial(self.release, id))

    def release(self, id: str, _: asyncio.Task[None]) -> None:
        """Forget a task that has ended."""
        del self.running[id]
        self.changed.set()

    async def claim(self, owner: str, id: str, seconds: float | None = None) -> bool:
        """Take or renew the lease of a batch. False if another server has it or it is gone."""
        now = time.time()
        until = now + (self.lease if seconds is None else seconds)

        def extend(job: Job) -> Job:
            if job.server != self.server and now < job.until < now + 10 * self.lease:
                return job
            return replace(job, server=self.server, until=until)

        try:
            job = await self.state.change(owner, JOB_KIND, id, Job, extend)
        except (DocumentNotFound, StoreConflict):
            return False
        return job.server == self.server

    async def work(self, owner: str, id: str) -> None:
        """Run a batch whose lease is held, and renew the lease meanwhile."""
        work = asyncio.ensure_future(BatchRun(self, owner, id).run())
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=self.lease / 3)
                held = work.done() or await self.claim(owner, id)
                if not held and not work.done():  # the end of a batch deletes its job
                    log.warning("batch %s is continued by another server", id)
                    return
            await work
        except DocumentNotFound:  # the batch was deleted
            await self.forget(owner, id)
        except StoreError as error:
            log.error("batch %s waits for the store: %s", id, error)
            await asyncio.sleep(self.poll)
        except Exception:
            log.exception("batch %s has stopped; it is tried again", id)
            await asyncio.sleep(self.poll)
        finally:
            if not work.done():
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
                with suppress(OstroError):
                    await self.claim(owner, id, 0.0)

    async def forget(self, owner: str, id: str) -> None:
        """Delete the job and the results of a batch."""
        with suppress(OstroError):
            await self.state.delete(owner, line_kind(id))
            await self.state.delete(owner, JOB_KIND, id)


@dataclass
class BatchRun:
    """One batch while it runs: `batch` as stored, `counts` with the newest counts."""

    runner: BatchRunner
    owner: str
    id: str
    batch: Batch = field(init=False)
    counts: Batch = field(init=False)
    done: set[str] = field(default_factory=set)
    names: set[str | None] = field(default_factory=set)

    @property
    def state(self) -> State:
        """The store of the batch."""
        return self.runner.state

    async def run(self) -> None:
        """Run the batch to its end. Raises DocumentNotFound if it is deleted, and StoreError."""
        self.batch = (await self.state.get(self.owner, KIND, self.id, Batch)).value
        if self.batch.status not in ENDED:
            await self.read_results()
            try:
                if self.batch.status == "validating":
                    await self.count()
                if self.batch.status == "in_progress":
                    await self.run_all()
            except InputLost:
                await self.fail("file_not_found", "the input file was deleted")
            await self.finish()
        await self.runner.forget(self.owner, self.id)

    async def change(self, function: Callable[[Batch], Batch]) -> None:
        """Change the stored batch."""
        self.batch = await self.state.change(self.owner, KIND, self.id, Batch, function)

    async def enter(self, status: Status, **fields: Any) -> None:
        """Change the status, unless a client has cancelled the batch meanwhile."""

        def enter(batch: Batch) -> Batch:
            if batch.status in ENDED or (batch.status == "cancelling" and status not in ENDED):
                return batch
            return batch.to(status, **fields)

        await self.change(enter)

    async def fail(self, code: str, message: str) -> None:
        """Store the reason why the batch cannot run."""
        reason = BatchFault(code=code, message=message)
        await self.change(lambda batch: replace(batch, faults=[reason]))

    async def lines(self) -> AsyncGenerator[tuple[int, bytes], None]:
        """Return the lines of the input file. Raises InputLost if it is deleted."""
        id = self.batch.request.input_file_id
        try:
            found = await self.state.get(self.owner, FILE_KIND, id, File)
            return read_lines(await self.state.open_blob(found.document))
        except DocumentNotFound:
            raise InputLost from None

    async def count(self) -> None:
        """Count the requests, and begin or fail."""
        total = 0
        async with aclosing(await self.lines()) as lines:
            async for _ in lines:
                total += 1
        if total == 0:
            await self.fail("empty_file", "the input file has no requests")
        elif total > MAX_LINES:
            text = f"the input file has {total} requests, more than {MAX_LINES}"
            await self.fail("too_many_requests", text)
        else:
            await self.enter("in_progress", total=total)

    async def read_results(self) -> None:
        """Count the results that exist, and remember their requests."""
        self.counts = replace(self.batch, completed=0, failed=0, usage=BatchUsage(), model=None)
        async for id, result in stored_results(self.state, self.owner, self.batch):
            self.add(id, result)

    def add(self, id: str, result: LineResult) -> None:
        """Count a result."""
        self.done.add(id)
        if result.error is None:
            self.names.add(result.custom_id)
        self.counts = add_result(self.counts, result)

    async def run_all(self) -> None:
        """Run the requests that have no result yet, until a client cancels or the time is over."""
        feeding = asyncio.ensure_future(self.feed())
        try:
            while not feeding.done():
                await asyncio.wait({feeding}, timeout=PROGRESS_SECONDS)
                await self.report()
                if self.batch.status != "in_progress" or self.is_late():
                    break
        finally:
            if not feeding.done():
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)
        if not feeding.cancelled():
            await feeding
        await self.read_results()  # a cancelled request may have stored its result
        if self.is_late():
            await self.feed(LineError(code="batch_expired", message="the batch has expired"))
        await self.report()

    def is_late(self) -> bool:
        """Whether the time of the batch is over."""
        return time.time() > self.batch.expires

    async def report(self) -> None:
        """Store the progress."""
        now = self.counts
        fields = {"completed": now.completed, "failed": now.failed}

        def report(batch: Batch) -> Batch:
            if batch.status not in ("in_progress", "cancelling"):  # another server ends it
                return batch
            return replace(batch, usage=now.usage, model=now.model, **fields)

        await self.change(report)

    async def feed(self, error: LineError | None = None) -> None:
        """Run the requests in order, as many at once as there are slots.

        error: the result to store instead of running them.
        """
        try:
            async with asyncio.TaskGroup() as group, aclosing(await self.lines()) as lines:
                async for number, data in lines:
                    if line_id(number) in self.done:
                        continue
                    line = error or self.parse(data)
                    if isinstance(line, LineError):
                        await self.store(number, custom_id_of(data), error=line)
                        continue
                    await self.runner.slots.acquire()
                    task = group.create_task(self.execute(number, line))
                    task.add_done_callback(lambda _: self.runner.slots.release())
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None

    def parse(self, data: bytes) -> Line | LineError:
        """Return the request of a line, or what is wrong with it."""
        line = parse_line(data, self.batch.request.endpoint)
        if isinstance(line, Line):
            if line.custom_id in self.names:
                text = f"the custom_id {line.custom_id!r:.100} is used twice"
                return LineError(code="duplicate_custom_id", message=text)
            self.names.add(line.custom_id)
        return line

    async def execute(self, number: int, line: Line) -> None:
        """Run a request and store its result. A request without capacity is repeated."""
        wait, longest = RETRY_SECONDS
        while True:
            status, body = await self.runner.execute(line.url, line.body, self.owner)
            if status not in BUSY:
                break
            await asyncio.sleep(wait)
            wait = min(longest, 2 * wait)
        response = LineResponse(
            status_code=status, request_id=new_id("req_"), body=msgspec.Raw(body)
        )
        await self.store(number, line.custom_id, response=response)

    async def store(self, number: int, custom_id: str | None, **fields: Any) -> None:
        """Store the result of a line, unless another server has."""
        result = LineResult(id=new_id("batch_req_"), custom_id=custom_id, **fields)
        id = line_id(number)
        with suppress(StoreConflict):
            await self.state.put(self.owner, line_kind(self.id), id, result, expected=0)
            self.add(id, result)

    async def finish(self) -> None:
        """Write the files of the results, and end the batch."""
        expired = self.batch.status == "in_progress" and self.is_late()
        if self.batch.status == "in_progress" and not self.batch.faults:
            await self.enter("finalizing")
        end: Status = "expired" if expired else "completed"
        if self.batch.faults:
            end = "failed"
        elif self.batch.status == "cancelling":
            end = "cancelled"
        output = await self.write("output", ok=True) if self.counts.completed else None
        errors = await self.write("error", ok=False) if self.counts.failed else None
        await self.enter(end, output_file=output, error_file=errors)

    async def write(self, name: str, ok: bool) -> str:
        """Write a file of results and return its id, which is the same after a restart."""
        file = await self.runner.files.write(
            f"{self.id}_{name}.jsonl",
            "batch_output",
            encode_results(self.state, self.owner, self.batch, ok),
            Caller(name=self.owner),
            lifetime=seconds_of(self.batch.request.output_expires_after),
            limit=MAX_OUTPUT,
            id=f"file-{self.id[-32:-1]}{0 if ok else 1}",
        )
        return file.id


class InputLost(Exception):
    """The input file of a batch was deleted."""
