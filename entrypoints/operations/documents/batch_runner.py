"""Runs batches: one server at a time works on a batch, and another one continues after its end.

Each result is stored when its request ends, so that a request whose result is stored never runs
again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from ostro.core.errors import DocumentNotFound, OstroError, StoreConflict
from ostro.core.store import new_id
from ostro.entrypoints.operations.access.caller import Caller
from ostro.entrypoints.operations.documents.batch_lines import (
    CANCELLED,
    EXPIRED,
    LINE_SLACK,
    MAX_LINES,
    MAX_REQUESTS,
    BatchResult,
    Line,
    LineError,
    LineResponse,
    add_result,
    custom_id_of,
    encode_results,
    line_id,
    line_kind,
    model_of,
    parse_line,
    read_lines,
    stored_results,
)
from ostro.entrypoints.operations.documents.batches import (
    ENDED,
    JOB_KIND,
    Batch,
    BatchFault,
    BatchUsage,
    Status,
    kind_of,
)
from ostro.entrypoints.operations.documents.files import KIND as FILE_KIND
from ostro.entrypoints.operations.documents.files import File, Files, seconds_of
from ostro.entrypoints.operations.documents.jobs import (
    LEASE_SECONDS,
    POLL_SECONDS,
    FairSlots,
    JobRunner,
    ModelNotServed,
)
from ostro.entrypoints.operations.documents.state import State
from ostro.entrypoints.operations.requests.decoding import MAX_BYTES

log = logging.getLogger(__name__)
SLOTS = 16
"""Requests of batches that run at once."""
MAX_RUNNING = 8
"""Batches that run at once."""
PROGRESS_SECONDS = 1.0
"""Interval at which the progress of a batch is stored."""
MAX_OUTPUT = 1 << 40
"""Limit on the bytes of a file of results."""
RETRY_SECONDS = 0.5, 30.0
"""First and longest wait before a request is repeated for which the server had no capacity."""
Execute = Callable[[str, bytes | msgspec.Raw, str], Awaitable[tuple[int, bytes]]]
"""Runs a request: its route, the JSON of its body and the caller's name give the status and the
JSON of a response. The permissions and limits are those that the caller has when the request runs.
Raises `Busy`.
"""


class Busy(Exception):
    """The server, or a limit of the caller, has no room for a request now.

    `seconds`: when there will be, None if that is unknown.
    """

    def __init__(self, seconds: float | None = None) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class BatchRunner(JobRunner):
    """Runs the batches of all callers until `run` is cancelled."""

    kind, name, most = JOB_KIND, "batch", MAX_RUNNING

    def __init__(
        self,
        state: State,
        files: Files,
        execute: Execute,
        *,
        max_body: Callable[[str], int] = lambda path: MAX_BYTES,
        slots: int = SLOTS,
        poll: float = POLL_SECONDS,
        lease: float = LEASE_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """max_body: returns the limit on the bytes of a route's body. slots: requests that run at
        once. poll, lease, clock: as in `JobRunner`.
        """
        super().__init__(state, poll=poll, lease=lease, clock=clock)
        self.files, self.execute, self.max_body = files, execute, max_body
        self.slots = FairSlots(slots)

    async def work(self, owner: str, id: str) -> None:
        """Run a batch to its end."""
        await BatchRun(self, owner, id).run()

    async def forget(self, owner: str, id: str) -> None:
        """Delete the job and the results of a batch."""
        with suppress(OstroError):
            await self.state.delete(owner, line_kind(id))
        await super().forget(owner, id)


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
    room: asyncio.Event = field(default_factory=asyncio.Event)
    """Whether the last request to end found room; no other one begins before."""

    @property
    def kind(self) -> str:
        """The kind of the batch's document."""
        return kind_of(self.id)

    @property
    def max_line(self) -> int:
        """The limit on the bytes of a line: that of its body, and some for the rest."""
        request = self.batch.request
        # Those without a file came in the body of one request.
        body = MAX_BYTES if request is None else self.runner.max_body(request.endpoint)
        return body + LINE_SLACK

    @property
    def state(self) -> State:
        """The store of the batch."""
        return self.runner.state

    async def run(self) -> None:
        """Run the batch to its end. Raises DocumentNotFound if it is deleted, and StoreError."""
        self.batch = (await self.state.get(self.owner, self.kind, self.id, Batch)).value
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
        self.batch = await self.state.change(self.owner, self.kind, self.id, Batch, function)

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
        """Return the lines of the requests. Raises InputLost if their file is deleted."""
        request = self.batch.request
        if request is None:
            own = await self.state.get(self.owner, self.kind, self.id, Batch)
            return read_lines(await self.state.open_blob(own.document), self.max_line)
        try:
            found = await self.state.get(self.owner, FILE_KIND, request.input_file_id, File)
            return read_lines(await self.state.open_blob(found.document), self.max_line)
        except DocumentNotFound:
            raise InputLost from None

    async def count(self) -> None:
        """Count the requests, and begin or fail."""
        total, too_many = 0, False
        async with aclosing(await self.lines()) as lines:
            async for number, data in lines:
                total += bool(data)
                if too_many := total > MAX_REQUESTS or number > MAX_LINES:
                    break
        if too_many:
            text = f"the input file has more than {MAX_REQUESTS} requests or {MAX_LINES} lines"
            await self.fail("too_many_requests", text)
        elif total == 0:
            await self.fail("empty_file", "the input file has no requests")
        else:
            await self.enter("in_progress", total=total)

    async def read_results(self) -> None:
        """Count the results that exist, and remember their requests."""
        none = {"completed": 0, "failed": 0, "unrun": 0, "usage": BatchUsage(), "model": None}
        self.counts = replace(self.batch, **none)
        async for id, result in stored_results(self.state, self.owner, self.batch):
            self.add(id, result)

    def add(self, id: str, result: BatchResult) -> None:
        """Count a result."""
        self.done.add(id)
        if result.error is None:
            self.names.add(result.custom_id)
        self.counts = add_result(self.counts, result)

    async def run_all(self) -> None:
        """Run the requests that have no result yet, until a client cancels or the time is over."""
        if not self.is_late():
            await self.run_some()
        await self.read_results()  # a cancelled request may have stored its result
        if self.batch.status == "in_progress" and self.is_late():
            await self.feed(LineError(code=EXPIRED, message="the batch has expired"))
        await self.report()

    async def run_some(self) -> None:
        """Run requests until all have ended, a client cancels, or the time is over."""
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

    def is_late(self) -> bool:
        """Whether the time of the batch is over."""
        return self.runner.clock() > self.batch.expires

    async def report(self) -> None:
        """Store the progress."""

        def report(batch: Batch) -> Batch:
            if batch.status not in ("in_progress", "cancelling"):  # another server ends it
                return batch
            return replace(batch, **self.progress())

        await self.change(report)

    def progress(self) -> dict[str, Any]:
        """The fields of a batch that count results."""
        now = self.counts
        return {
            "completed": now.completed,
            "failed": now.failed,
            "unrun": now.unrun,
            "usage": now.usage,
            "model": now.model,
        }

    async def feed(self, error: LineError | None = None) -> None:
        """Run the requests in order, as many at once as there are slots.

        error: the result to store instead of running them. Raises ModelNotServed at a request for a
        model of the server that got the batch, which this one lacks.
        """
        self.room.set()
        missing = {name for name in self.batch.models if not self.runner.serves(name)}
        try:
            async with asyncio.TaskGroup() as group, aclosing(await self.lines()) as lines:
                async for number, data in lines:
                    if not data or line_id(number) in self.done:
                        continue
                    line = error or await self.parse(data)
                    if isinstance(line, LineError):
                        id = await custom_id_of(data, self.max_line)
                        await self.store(number, id, error=line)
                        continue
                    if missing and (model := model_of(line.body)) in missing:
                        raise ModelNotServed(model or "")
                    await self.room.wait()
                    begun = asyncio.Event()
                    group.create_task(self.execute(number, line, begun))
                    await begun.wait()
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def parse(self, data: bytes) -> Line | LineError:
        """Return the request of a line, or what is wrong with it."""
        request = self.batch.request
        endpoint = None if request is None else request.endpoint
        line = await parse_line(data, endpoint, self.max_line)
        if isinstance(line, Line):
            if line.custom_id in self.names:
                text = f"the custom_id {line.custom_id!r:.100} is used twice"
                return LineError(code="duplicate_custom_id", message=text)
            self.names.add(line.custom_id)
        return line

    async def execute(self, number: int, line: Line, begun: asyncio.Event) -> None:
        """Run a request and store its result. begun: set once the request has a slot.

        A request without room gives back its slot and is repeated.
        """
        wait, longest = RETRY_SECONDS
        while True:
            async with self.runner.slots.slot(self.owner):
                begun.set()
                try:
                    status, body = await self.runner.execute(line.url, line.body, self.owner)
                    break
                except Busy as busy:
                    seconds = wait if busy.seconds is None else busy.seconds
            self.room.clear()
            await asyncio.sleep(seconds)
            wait = min(longest, 2 * wait)
        self.room.set()
        response = LineResponse(
            status_code=status, request_id=new_id("req_"), body=msgspec.Raw(body)
        )
        await self.store(number, line.custom_id, response=response)

    async def store(self, number: int, custom_id: str | None, **fields: Any) -> None:
        """Store the result of a line, unless another server has."""
        result = BatchResult(id=new_id("batch_req_"), custom_id=custom_id, **fields)
        id = line_id(number)
        with suppress(StoreConflict):
            await self.state.put(self.owner, line_kind(self.id), id, result, expected=0)
            self.add(id, result)

    async def finish(self) -> None:
        """Write the results, and end the batch."""
        expired = self.batch.status == "in_progress" and self.is_late()
        if self.batch.status == "in_progress" and not self.batch.faults:
            # Again: another server that runs the batch may have reported less since.
            await self.enter("finalizing", **self.progress())
        end: Status = "expired" if expired else "completed"
        if self.batch.faults:
            end = "failed"
        elif self.batch.status == "cancelling":
            end = "cancelled"
        if self.batch.request is None:
            await self.replace_requests(end)
        else:
            await self.write_files(end)

    async def replace_requests(self, end: Status) -> None:
        """Write the results in the place of the requests, and end the batch."""
        if end == "cancelled":
            await self.feed(LineError(code=CANCELLED, message="the batch was cancelled"))
            await self.report()
        async with self.state.writing_blob() as blob:
            async for _, result in stored_results(self.state, self.owner, self.batch):
                await blob.write(msgspec.json.encode(result) + b"\n")

        def finish(batch: Batch) -> Batch:
            return batch if batch.status in ENDED else batch.to(end)

        try:
            await self.state.change(self.owner, self.kind, self.id, Batch, finish, blob=blob.name)
        except BaseException:
            await self.state.discard_blob(blob)
            raise

    async def write_files(self, end: Status) -> None:
        """Write the files of the results, and end the batch."""
        output = await self.write("output", ok=True) if self.counts.completed else None
        errors = await self.write("error", ok=False) if self.counts.failed else None
        await self.enter(end, output_file=output, error_file=errors)

    async def write(self, name: str, ok: bool) -> str:
        """Write a file of results and return its id, which is the same after a restart."""
        request = self.batch.request
        assert request is not None
        file = await self.runner.files.write(
            f"{self.id}_{name}.jsonl",
            "batch_output",
            encode_results(self.state, self.owner, self.batch, ok),
            Caller(name=self.owner),
            lifetime=seconds_of(request.output_expires_after),
            limit=MAX_OUTPUT,
            limited=False,
            id=f"file-{self.id[-32:-1]}{0 if ok else 1}",
        )
        return file.id


class InputLost(Exception):
    """The input file of a batch was deleted."""
