"""Batches: results of every line exactly once, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from ostro.core.errors import DocumentNotFound, RequestError, StoreError
from ostro.core.plugins.manager import PluginManager
from ostro.entrypoints.operations.access.caller import Caller
from ostro.entrypoints.operations.documents import batch_lines, batch_runner, jobs
from ostro.entrypoints.operations.documents.batch_lines import (
    BatchResult,
    LineError,
    add_result,
    line_id,
    line_kind,
)
from ostro.entrypoints.operations.documents.batch_runner import BatchRunner, Busy
from ostro.entrypoints.operations.documents.batches import (
    ENDED,
    JOB_KIND,
    KIND,
    Batch,
    Batches,
    BatchListRequest,
    BatchRequest,
)
from ostro.entrypoints.operations.documents.files import FileListRequest, FileRequest, Files
from ostro.entrypoints.operations.documents.jobs import FairSlots, Job, JobRunner
from ostro.entrypoints.operations.documents.state import Page, State, open_state
from ostro.entrypoints.operations.requests.decoding import SMALL

ANN, BOB = Caller(name="ann"), Caller(name="bob")
URL = "/v1/chat/completions"
PATIENCE = 120.0
"""Seconds after which a test gives up."""


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report progress and repeat requests at once."""
    monkeypatch.setattr(batch_runner, "PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr(batch_runner, "RETRY_SECONDS", (0.0, 0.0))


class Clock:
    """The time, which a test moves forward."""

    offset = 0.0

    def __call__(self) -> float:
        return time.time() + self.offset


@dataclass
class Server:
    """A server without HTTP; `answer` gives the status and the content of a request's response.

    limit: the requests that end at once; later ones wait until `release` is set.
    """

    state: State
    answer: Callable[[Mapping[str, Any]], tuple[int, Any]]
    limit: float = inf
    asked: list[Any] = field(default_factory=list)
    owners: set[str] = field(default_factory=set)
    now: int = 0
    most: int = 0

    def __post_init__(self) -> None:
        self.files, self.clock, self.release = Files(self.state), Clock(), asyncio.Event()
        self.runner = BatchRunner(
            self.state, self.files, self.execute, slots=4, poll=0.0, lease=3600.0, clock=self.clock
        )
        self.batches = Batches(self.state, self.runner.notify)

    async def execute(self, url: str, given: bytes | msgspec.Raw, name: str) -> tuple[int, bytes]:
        body = msgspec.json.decode(given)
        self.asked.append(body["n"])
        self.owners.add(name)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(0)
            if len(self.asked) > self.limit:
                await self.release.wait()
        finally:
            self.now -= 1
        status, content = self.answer(body)
        if status in (429, 503):
            raise Busy
        return status, msgspec.json.encode(content)

    async def create(self, lines: bytes, caller: Caller = ANN, **more: Any) -> Batch:
        file = await self.files.create(
            FileRequest(filename="in.jsonl", purpose="batch"), chunks(lines), caller
        )
        request = BatchRequest(input_file_id=file.id, endpoint=URL, completion_window="24h", **more)
        return await self.batches.create(request, caller)

    async def end_of(self, batch: Batch, caller: Caller = ANN) -> Batch:
        while (found := await self.batches.get(batch.id, caller)).status not in ENDED:
            await asyncio.sleep(0)
        return found

    async def completed(self, batch: Batch, number: int) -> None:
        """Wait until a number of requests have succeeded."""
        while (await self.batches.get(batch.id, ANN)).completed < number:
            await asyncio.sleep(0)

    async def results(self, id: str | None, caller: Caller = ANN) -> list[dict[str, Any]]:
        if id is None:
            return []
        _, data = await self.files.content(id, caller)
        text = b"".join([each async for each in data])
        return [json.loads(line) for line in text.splitlines()]


async def turns(number: int = 100) -> None:
    """Run whatever can run now."""
    for _ in range(number):
        await asyncio.sleep(0)


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def line(n: int, **more: Any) -> dict[str, Any]:
    return {"custom_id": f"c{n}", "method": "POST", "url": URL, "body": {"n": n}, **more}


def jsonl(*lines: Any) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


def succeed(body: Mapping[str, Any]) -> tuple[int, Any]:
    used = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": None}
    return 200, {"n": body["n"], "model": "tiny", "usage": used}


Work = Callable[[Server], Awaitable[Any]]
T = TypeVar("T")


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine, which is cancelled if it hangs."""
    return asyncio.run(asyncio.wait_for(main, PATIENCE))


def run(work: Work, plugins: PluginManager, location: str = "memory", **options: Any) -> Server:
    """Run a coroutine beside the runner of a server."""

    async def main() -> Server:
        server = Server(open_state(location, None, plugins), options.pop("answer", succeed))
        server.__dict__.update(options)
        running = asyncio.create_task(server.runner.run())
        try:
            await work(server)
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            await server.state.close()
        return server

    return run_async(main())


def test_every_request_gets_its_result_in_order(plugins: PluginManager) -> None:
    async def work(server: Server) -> None:
        data = jsonl(*(line(n) for n in range(20))).replace(
            b'{"custom_id": "c7"', b'\n \n{"custom_id": "c7"'
        )
        batch = await server.create(data, metadata={"team": "a"})
        assert (batch.status, batch.total) == ("validating", 0)
        while server.now < 4:
            await asyncio.sleep(0)
        await turns()
        server.release.set()
        done = await server.end_of(batch)
        assert (done.status, done.total, done.completed, done.failed) == ("completed", 20, 20, 0)
        assert done.request is not None and done.request.metadata == {"team": "a"}
        assert done.model == "tiny"
        assert (done.usage.input, done.usage.output) == (100, 40)
        assert list(done.times) == ["in_progress", "finalizing", "completed"]
        assert done.error_file is None
        results = await server.results(done.output_file)
        assert [each["custom_id"] for each in results] == [f"c{n}" for n in range(20)]
        assert [each["response"]["body"]["n"] for each in results] == list(range(20))
        assert {each["response"]["status_code"] for each in results} == {200}
        assert all(each["error"] is None for each in results)
        output = await server.files.get(done.output_file or "", ANN)
        assert output.purpose == "batch_output" and output.nbytes > 1000
        assert not (await server.state.list(None, JOB_KIND, Batch)).items
        usage = await server.state.usage()
        assert {each.kind for each in usage} == {"batch", "file"}

    server = run(work, plugins, limit=0)
    assert server.most == 4  # slots
    assert server.owners == {"ann"}


def test_results_are_read_within_a_limit_on_their_bytes(
    plugins: PluginManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images have megabytes, and 16 of them are not read at once."""
    sizes = list[int]()

    async def record(*args: Any, **options: Any) -> Page[BatchResult]:
        page: Page[BatchResult] = await listed(*args, **options)
        sizes.append(sum(len(each.document.body) for each in page.items))
        return page

    def large(body: Mapping[str, Any]) -> tuple[int, Any]:
        return 200, {"n": body["n"], "image": "x" * 1000}

    async def work(server: Server) -> None:
        nonlocal listed
        listed = server.state.list
        monkeypatch.setattr(server.state, "list", record)
        done = await server.end_of(await server.create(jsonl(*(line(n) for n in range(10)))))
        results = await server.results(done.output_file)
        assert [each["response"]["body"]["n"] for each in results] == list(range(10))

    listed: Any = None
    monkeypatch.setattr(batch_lines, "PAGE_BYTES", 3000)
    run(work, plugins, answer=large)
    assert 1000 < max(sizes) <= 3000


BAD = [
    b"not json",
    b"[]",
    jsonl({"custom_id": "x"}),
    jsonl(line(1, method="GET")),
    jsonl(line(1, url="/v1/embeddings")),
    jsonl(line(1, body="text")),
    jsonl(line(1, extra=1)),
    jsonl(line(1, custom_id="")),
    jsonl(line(1, custom_id="x" * 513)),
    jsonl(line(1, body={"n": 1, "stream": True})),
    b'{"custom_id": "\xff"}',
    b"[" * 100_000,
    jsonl(line(0)),
]


@pytest.mark.parametrize("bad", BAD, ids=range(len(BAD)))
def test_one_bad_line_is_one_error_and_the_others_run(plugins: PluginManager, bad: bytes) -> None:
    async def work(server: Server) -> None:
        data = jsonl(line(0)) + bad.strip() + b"\n" + jsonl(line(2))
        done = await server.end_of(await server.create(data))
        assert (done.status, done.completed, done.failed) == ("completed", 2, 1)
        assert [each["custom_id"] for each in await server.results(done.output_file)] == [
            "c0",
            "c2",
        ]
        [error] = await server.results(done.error_file)
        assert error["response"] is None and error["error"]["message"]

    run(work, plugins)


def test_a_line_beyond_the_limit_of_its_route_is_not_decoded(
    plugins: PluginManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, decoded = batch_lines.decode_line, list[int]()

    def count(data: bytes, endpoint: str | None) -> Any:
        decoded.append(len(data))
        return decode(data, endpoint)

    monkeypatch.setattr(batch_lines, "decode_line", count)
    limit = 100 + batch_lines.LINE_SLACK

    async def work(server: Server) -> None:
        server.runner.max_body = lambda url: 100 if url == URL else 0
        long = line(1, body={"n": 1, "text": "x" * (2 * batch_lines.GROUP_BYTES)})
        done = await server.end_of(await server.create(jsonl(line(0), long, line(2), long)))
        assert (done.completed, done.failed, done.total) == (2, 2, 4)
        for error in await server.results(done.error_file):
            assert error["error"]["code"] == "line_too_long"
            assert error["error"]["message"] == f"the line exceeds {limit} bytes"

    run(work, plugins)
    assert len(decoded) == 2 and max(decoded) < limit


COSTLY = {
    "arrays": b"[" + b"[]," * 300_000 + b"[]]",
    "members": b"{" + b",".join(b'"%x":0' % n for n in range(20_000)) + b"}",
    "malformed": b"[" + b"[]," * 300_000 + b"[]",
}


@pytest.mark.parametrize("name", COSTLY)
def test_a_costly_line_is_refused_before_it_is_decoded(name: str) -> None:
    """A decoder holds the GIL, and so stops all streams, for longer the more values there are."""
    data = b'{"custom_id": "a", "body": {"prompt": ' + COSTLY[name] + b"}}"
    assert isinstance(found := batch_lines.decode_line(data, URL), LineError)
    assert "the body has" in found.message
    assert batch_lines.decode_custom_id(data) is None


def test_a_large_line_is_decoded_in_a_thread(
    plugins: PluginManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set[str]()
    for function in (batch_lines.decode_line, batch_lines.decode_custom_id):

        def watched(*args: Any, function: Any = function) -> Any:
            threads.add(threading.current_thread().name)
            return function(*args)

        monkeypatch.setattr(batch_lines, function.__name__, watched)

    async def work(server: Server) -> None:
        good, bad = ({"n": 1, "text": "x" * SMALL} for _ in range(2))
        bad_line = line(2, body=bad, method="GET")
        done = await server.end_of(await server.create(jsonl(line(1, body=good), bad_line)))
        assert (done.completed, done.failed) == (1, 1)
        [error] = await server.results(done.error_file)
        assert error["custom_id"] == "c2"

    run(work, plugins)
    assert len(threads) == 1 and "json" in threads.pop()


def test_a_byte_order_mark_is_no_part_of_a_line(plugins: PluginManager) -> None:
    async def work(server: Server) -> None:
        done = await server.end_of(await server.create(b"\xef\xbb\xbf" + jsonl(line(0), line(1))))
        assert (done.completed, done.failed) == (2, 0)

    run(work, plugins)


def test_a_failed_request_is_in_the_error_file(plugins: PluginManager) -> None:
    def answer(body: Mapping[str, Any]) -> tuple[int, Any]:
        return (400, {"error": {"message": "no"}}) if body["n"] == 1 else succeed(body)

    async def work(server: Server) -> None:
        done = await server.end_of(await server.create(jsonl(line(0), line(1))))
        assert (done.completed, done.failed) == (1, 1)
        [error] = await server.results(done.error_file)
        assert error["response"]["body"] == {"error": {"message": "no"}}
        assert (error["custom_id"], error["response"]["status_code"]) == ("c1", 400)

    run(work, plugins, answer=answer)


def test_a_busy_server_is_asked_again(plugins: PluginManager) -> None:
    asked: list[int] = []

    def answer(body: Mapping[str, Any]) -> tuple[int, Any]:
        asked.append(body["n"])
        return ((503, {}), (429, {}))[len(asked) % 2] if len(asked) < 6 else succeed(body)

    async def work(server: Server) -> None:
        done = await server.end_of(await server.create(jsonl(line(0), line(1))))
        assert (done.completed, done.failed) == (2, 0)

    run(work, plugins, answer=answer)
    assert len(asked) == 7


def test_a_caller_beyond_its_limit_does_not_delay_others(plugins: PluginManager) -> None:
    """Requests that wait give back their slots, and no more of their batch are tried meanwhile."""
    closed, tried = [True], list[int]()

    def answer(body: Mapping[str, Any]) -> tuple[int, Any]:
        if body["n"] < 100:
            tried.append(body["n"])
            if closed[0]:
                raise Busy(0.0)
        return succeed(body)

    async def work(server: Server) -> None:
        late = await server.create(jsonl(*(line(n) for n in range(50))))
        while not tried:
            await asyncio.sleep(0)
        other = await server.create(jsonl(*(line(n) for n in range(100, 150))), BOB)
        assert (await server.end_of(other, BOB)).completed == 50
        assert (await server.batches.get(late.id, ANN)).completed == 0
        assert set(tried) <= {0, 1, 2, 3}  # as many as there are slots
        closed[0] = False
        assert (await server.end_of(late)).completed == 50

    run(work, plugins, answer=answer)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "empty_file"),
        (b"\n \n", "empty_file"),
        (b"{}\n" * 11, "too_many_requests"),
        (b"\n" * 21, "too_many_requests"),
    ],
)
def test_a_file_that_is_no_batch_fails(
    plugins: PluginManager, data: bytes, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_runner, "MAX_REQUESTS", 10)
    monkeypatch.setattr(batch_runner, "MAX_LINES", 20)

    async def work(server: Server) -> None:
        done = await server.end_of(await server.create(data))
        assert done.status == "failed" and not server.asked
        assert [each.code for each in done.faults] == [code]
        assert done.output_file is None and done.error_file is None

    run(work, plugins)


def test_files_of_another_purpose_or_owner_are_refused(plugins: PluginManager) -> None:
    async def work(server: Server) -> None:
        file = await server.files.create(
            FileRequest(filename="a", purpose="user_data"), chunks(b""), ANN
        )
        request = BatchRequest(input_file_id=file.id, endpoint=URL, completion_window="24h")
        with pytest.raises(RequestError, match="purpose 'user_data'"):
            await server.batches.create(request, ANN)
        with pytest.raises(DocumentNotFound):
            await server.batches.create(request, BOB)

    run(work, plugins)


def test_many_batches_of_a_caller_do_not_keep_those_of_others(
    plugins: PluginManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "PAGE", 2)
    closed = [True]

    def answer(body: Mapping[str, Any]) -> tuple[int, Any]:
        return (429, {}) if body["n"] < 100 and closed[0] else succeed(body)

    async def work(server: Server) -> None:
        server.runner.most = 2
        waiting = [await server.create(jsonl(line(n))) for n in range(5)]
        while server.runner.owners["ann"] < 2:
            await asyncio.sleep(0)
        batch = await server.create(jsonl(line(100)), BOB)
        assert (await server.end_of(batch, BOB)).completed == 1
        assert server.runner.owners["ann"] == 2
        closed.clear()
        closed.append(False)
        for each in waiting:
            assert (await server.end_of(each)).completed == 1
        while server.runner.running:
            await asyncio.sleep(0)
        assert not server.runner.owners

    run(work, plugins, answer=answer)


def test_owners_get_slots_in_turn() -> None:
    async def main() -> list[str]:
        turns, order = FairSlots(1), list[str]()

        async def hold(name: str) -> None:
            async with turns.slot(name[0]):
                order.append(name)
                await asyncio.sleep(0)

        names = ("a1", "a2", "a3", "a4", "b1", "b2", "c1")
        tasks = {name: asyncio.create_task(hold(name)) for name in names}
        await asyncio.sleep(0)
        tasks["a2"].cancel()
        for _ in range(100):  # a task that is cancelled when it has its slot gives it on
            await asyncio.sleep(0)
            if order[-1] == "a3":
                tasks["b2"].cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        assert turns.free == 1 and not turns.waiting
        return order

    assert run_async(main()) == ["a1", "b1", "c1", "a3", "a4"]


def test_a_request_that_is_cancelled_as_it_gets_its_slot_gives_it_back() -> None:
    async def main() -> int:
        slots = FairSlots(1)

        async def hold() -> None:
            async with slots.slot("a"):
                pass

        async with slots.slot("b"):
            waiting = asyncio.create_task(hold())
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return slots.free

    assert run_async(main()) == 1


def test_a_batch_of_an_unknown_key_is_left_to_other_servers(plugins: PluginManager) -> None:
    async def work(server: Server) -> None:
        server.runner.knows = lambda owner: owner == "bob"
        batch = await server.create(jsonl(line(0), line(1)))
        bobs = await server.create(jsonl(line(2)), BOB)
        assert (await server.end_of(bobs, BOB)).completed == 1
        await turns()
        assert (await server.batches.get(batch.id, ANN)).status == "validating"
        server.clock.offset = jobs.ABANDONED_SECONDS + 10
        done = await server.end_of(batch)
        assert (done.status, done.completed, done.failed) == ("expired", 0, 2)

    assert run(work, plugins).asked == [2]


def test_a_batch_waits_for_a_server_with_its_model(
    plugins: PluginManager, caplog: pytest.LogCaptureFixture
) -> None:
    """A name that no server has ever had is an error of its line."""

    async def work(server: Server) -> None:
        served = {"tiny"}
        server.runner.serves = served.__contains__
        server.batches.models = lambda: ["tiny", "one"]
        bodies = [{"n": 0, "model": "tiny"}, {"n": 1, "model": "other"}, {"n": 2}]
        bodies += [{"n": n, "model": "one"} for n in range(3, 30)]
        batch = await server.create(jsonl(*(line(n, body=body) for n, body in enumerate(bodies))))
        while "waits for a server with the model 'one'" not in caplog.text:
            await asyncio.sleep(0)
        await turns()
        assert (await server.batches.get(batch.id, ANN)).status == "in_progress"
        job = (await server.state.get("ann", JOB_KIND, batch.id, Job)).value
        assert job.until <= server.clock() and not server.runner.running
        assert set(server.asked) <= {0, 1, 2}
        served.add("one")
        server.clock.offset = jobs.SKIP_SECONDS + 1
        done = await server.end_of(batch)
        assert (done.status, done.completed, done.failed) == ("completed", 30, 0)

    run(work, plugins)


def test_another_owner_finds_no_batch(plugins: PluginManager) -> None:
    async def work(server: Server) -> None:
        batch = await server.create(jsonl(line(0)))
        for method in (server.batches.get, server.batches.cancel):
            with pytest.raises(DocumentNotFound):
                await method(batch.id, BOB)
        assert not (await server.batches.list(BatchListRequest(), BOB)).batches
        [found] = (await server.batches.list(BatchListRequest(), ANN)).batches
        assert found.id == batch.id
        await server.end_of(batch)
        assert not (await server.files.list(FileListRequest(), BOB)).files

    run(work, plugins)


def test_a_cancelled_batch_keeps_finished_results(plugins: PluginManager) -> None:
    async def work(server: Server) -> None:
        batch = await server.create(jsonl(*(line(n) for n in range(200))))
        await server.completed(batch, 8)
        assert (await server.batches.cancel(batch.id, ANN)).status == "cancelling"
        done = await server.end_of(batch)
        assert done.status == "cancelled" and "cancelling" in done.times
        assert (done.completed, done.total) == (8, 200)
        assert len(await server.results(done.output_file)) == done.completed
        with pytest.raises(RequestError, match="the batch is cancelled"):
            await server.batches.cancel(batch.id, ANN)
        asked = len(server.asked)
        server.release.set()
        await turns()
        assert len(server.asked) == asked and not server.now

    run(work, plugins, limit=8)


def test_a_batch_that_is_being_completed_is_not_cancelled(plugins: PluginManager) -> None:
    async def main() -> None:
        server = Server(open_state("memory", None, plugins), succeed)  # its runner does not run
        batch = await server.create(jsonl(line(0)))
        await server.state.change(
            "ann", server.batches.kind, batch.id, Batch, lambda found: found.to("finalizing")
        )
        assert (await server.batches.cancel(batch.id, ANN)).status == "finalizing"
        await server.state.close()

    run_async(main())


@pytest.mark.parametrize(
    ("code", "unrun"), [("batch_expired", 1), ("batch_cancelled", 1), ("invalid_request", 0)]
)
def test_requests_that_did_not_run_are_counted(
    plugins: PluginManager, code: str, unrun: int
) -> None:
    async def work(server: Server) -> None:
        batch = await server.create(jsonl(line(0)))
        error = LineError(code=code, message="")
        added = add_result(batch, BatchResult(id="r", custom_id="c", error=error))
        assert (added.failed, added.unrun, added.completed) == (1, unrun, 0)

    run(work, plugins)


def test_a_batch_ends_after_24_hours(plugins: PluginManager) -> None:
    async def work(server: Server) -> None:
        batch = await server.create(jsonl(*(line(n) for n in range(30))))
        await server.completed(batch, 4)
        server.clock.offset = 82_800
        await turns()
        assert (await server.batches.get(batch.id, ANN)).status == "in_progress"
        server.clock.offset = 86_401
        done = await server.end_of(batch)
        assert (done.status, done.completed, done.failed) == ("expired", 4, 26)
        errors = await server.results(done.error_file)
        assert {each["error"]["code"] for each in errors} == {"batch_expired"}
        assert len(await server.results(done.output_file)) == 4

    run(work, plugins, limit=4)


def test_an_input_file_that_is_deleted_before_the_start_fails_the_batch(
    plugins: PluginManager,
) -> None:
    async def main() -> None:
        server = Server(open_state("memory", None, plugins), succeed)
        batch = await server.create(jsonl(line(0)))
        assert batch.request is not None
        await server.files.delete(batch.request.input_file_id, ANN)
        running = asyncio.create_task(server.runner.run())
        done = await server.end_of(batch)
        assert done.status == "failed" and [x.code for x in done.faults] == ["file_not_found"]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run_async(main())


def test_a_deleted_batch_leaves_no_job(plugins: PluginManager) -> None:
    async def work(server: Server) -> None:
        batch = await server.create(jsonl(*(line(n) for n in range(50))))
        while len(server.asked) < 5:
            await asyncio.sleep(0)
        await server.state.delete("ann", KIND, batch.id)
        while {each.kind for each in await server.state.usage()} != {"file"}:
            await asyncio.sleep(0)

    run(work, plugins, limit=5)


@pytest.mark.parametrize("turns", range(6))
def test_a_runner_ends_whenever_it_is_cancelled(turns: int) -> None:
    """Also in the turns of the event loop after a job was announced."""

    class Idle(JobRunner):
        async def take(self) -> None: ...

    async def main() -> None:
        runner = Idle(None, poll=1000)  # type: ignore[arg-type]
        running = asyncio.create_task(runner.run())
        for _ in range(3):
            await asyncio.sleep(0)
        runner.notify()
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        done, _ = await asyncio.wait({running}, timeout=60)
        assert done

    asyncio.run(main())


def test_a_store_that_fails_for_a_while_loses_nothing(plugins: PluginManager) -> None:
    async def work(server: Server) -> None:
        put, failures = server.state.put, [3]

        async def fail(*args: Any, **more: Any) -> int:
            if "batch_line" in args[1] and failures[0]:
                failures[0] -= 1
                raise StoreError("the disk is full")
            return await put(*args, **more)

        server.state.put = fail  # type: ignore[method-assign]
        done = await server.end_of(await server.create(jsonl(*(line(n) for n in range(20)))))
        assert not failures[0]
        assert (done.status, done.completed) == ("completed", 20)
        results = await server.results(done.output_file)
        assert [each["custom_id"] for each in results] == [f"c{n}" for n in range(20)]

    run(work, plugins)


def test_two_servers_share_batches_and_run_no_request_twice(
    plugins: PluginManager, tmp_path: Path
) -> None:
    location = str(tmp_path / "state")

    async def main() -> None:
        servers = [Server(open_state(location, None, plugins), succeed) for _ in range(2)]
        running = [asyncio.create_task(server.runner.run()) for server in servers]
        first, second = servers
        made = [await first.create(jsonl(*(line(n) for n in range(30)))) for _ in range(4)]
        for batch in made:
            done = await second.end_of(batch)
            assert (done.status, done.completed) == ("completed", 30)
            assert len(await second.results(done.output_file)) == 30
        assert len(first.asked) + len(second.asked) == 120
        first.limit = second.limit = 0
        cancelled = await first.create(jsonl(*(line(n) for n in range(500))))
        while not first.now + second.now:
            await asyncio.sleep(0)
        await second.batches.cancel(cancelled.id, ANN)
        assert (await first.end_of(cancelled)).status == "cancelled"
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for server in servers:
            await server.state.close()

    run_async(main())


def test_a_duplicate_whose_error_is_stored_does_not_stop_the_first_line(
    plugins: PluginManager,
) -> None:
    """The server ended after the second line had failed, while the first one was running."""

    async def main() -> None:
        server = Server(open_state("memory", None, plugins), succeed)
        batch = await server.create(jsonl(line(0), line(0)))
        error = LineError(code="duplicate_custom_id", message="used twice")
        result = BatchResult(id="batch_req_1", custom_id="c0", error=error)
        await server.state.put("ann", line_kind(batch.id), line_id(2), result)
        running = asyncio.create_task(server.runner.run())
        done = await server.end_of(batch)
        assert (done.completed, done.failed) == (1, 1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run_async(main())


def test_the_end_of_a_batch_is_not_a_lost_lease(
    plugins: PluginManager, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(server: Server) -> None:
        server.runner.lease = 0.0  # it is renewed all the time
        for batch in [await server.create(jsonl(line(0))) for _ in range(20)]:
            assert (await server.end_of(batch)).status == "completed"

    run(work, plugins)
    assert "another server" not in caplog.text


def test_a_job_of_another_server_is_continued_once_its_lease_is_over(
    plugins: PluginManager,
) -> None:
    async def main() -> None:
        server = Server(open_state("memory", None, plugins), succeed, limit=0)
        state, runner = server.state, server.runner
        batch = await server.create(jsonl(line(0)))
        until = server.clock() + 3600

        def claim(job: Job) -> Job:
            return msgspec.structs.replace(job, server="another", until=until)

        await state.change("ann", JOB_KIND, batch.id, Job, claim)
        await runner.take()
        assert not runner.running
        server.clock.offset = 3601
        await runner.take()
        assert [*runner.running] == [batch.id]
        job = (await state.get("ann", JOB_KIND, batch.id, Job)).value
        assert job.server == runner.server and job.until > until + 3600
        server.release.set()
        assert (await server.end_of(batch)).status == "completed"
        await asyncio.gather(*runner.running.values())
        await state.close()

    run_async(main())


def test_a_lease_is_renewed_while_a_job_runs(plugins: PluginManager) -> None:
    async def work(server: Server) -> None:
        server.runner.lease = 0.0
        batch = await server.create(jsonl(line(0)))
        while not server.now:
            await asyncio.sleep(0)
        server.clock.offset = 1000
        now = server.clock()
        while (await server.state.get("ann", JOB_KIND, batch.id, Job)).value.until < now:
            await asyncio.sleep(0)
        server.release.set()
        assert (await server.end_of(batch)).status == "completed"

    run(work, plugins, limit=0)


def test_two_servers_that_run_one_batch_at_once_count_each_line_once(
    plugins: PluginManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def claim(*_: Any) -> bool:
        return True

    monkeypatch.setattr(BatchRunner, "claim", claim)

    async def main() -> None:
        location = str(tmp_path / "state")
        servers = [Server(open_state(location, None, plugins), succeed, 0) for _ in range(2)]
        batch = await servers[0].create(jsonl(*(line(n) for n in range(30))))
        running = [asyncio.create_task(server.runner.run()) for server in servers]
        while not all(server.asked for server in servers):
            await asyncio.sleep(0)
        for server in servers:
            server.release.set()
        await servers[0].end_of(batch)
        while any(server.runner.running for server in servers):
            await asyncio.sleep(0)
        done = await servers[0].batches.get(batch.id, ANN)
        assert (done.completed, done.failed, done.usage.input) == (30, 0, 150)
        assert len(await servers[0].results(done.output_file)) == 30
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for server in servers:
            await server.state.close()

    run_async(main())


def test_counts_that_another_server_reports_last_do_not_stay(
    plugins: PluginManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = batch_runner.BatchRun.finish

    async def finish_later(batch_run: batch_runner.BatchRun) -> None:
        await batch_run.change(lambda batch: msgspec.structs.replace(batch, completed=1))
        await finish(batch_run)

    async def work(server: Server) -> None:
        done = await server.end_of(await server.create(jsonl(*(line(n) for n in range(5)))))
        assert (done.status, done.completed) == ("completed", 5)

    monkeypatch.setattr(batch_runner.BatchRun, "finish", finish_later)
    run(work, plugins)


CHILD = """
import asyncio, json, sys
from ostro.core.plugins.manager import PluginManager
from ostro.entrypoints.operations.documents.batch_runner import BatchRunner
from ostro.entrypoints.operations.documents.files import Files
from ostro.entrypoints.operations.documents.state import open_state

async def execute(url, body, caller):
    await asyncio.sleep(0.01)
    n = json.loads(bytes(body))["n"]
    print(n, flush=True)
    return 200, b'{"n": %d, "by": "child"}' % n

async def main():
    plugins = PluginManager()
    plugins.load()
    state = open_state(sys.argv[1], None, plugins)
    await BatchRunner(state, Files(state), execute, poll=0.05, lease=0.5).run()

asyncio.run(main())
"""


@pytest.mark.process
def test_a_batch_of_500_survives_a_killed_server(plugins: PluginManager, tmp_path: Path) -> None:
    location = str(tmp_path / "state")

    async def create() -> Batch:
        server = Server(open_state(location, None, plugins), succeed)
        batch = await server.create(jsonl(*(line(n) for n in range(500))))
        await server.state.close()
        return batch

    batch = run_async(create())
    command = [sys.executable, "-c", textwrap.dedent(CHILD), location]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for _ in range(120):
            assert child.stdout.readline()
        child.kill()

    async def work(server: Server) -> None:
        done = await server.end_of(batch)
        assert (done.status, done.completed, done.failed) == ("completed", 500, 0)
        results = await server.results(done.output_file)
        assert [each["custom_id"] for each in results] == [f"c{n}" for n in range(500)]
        by_child = [each["response"]["body"].get("by") == "child" for each in results]
        assert 80 < sum(by_child) < 500
        assert sum(by_child) + len(server.asked) == 500  # no request ran again

    run(work, plugins, location)


@pytest.mark.parametrize(
    "fields",
    [
        {"endpoint": "/v1/moderations"},
        {"completion_window": "1h"},
        {"metadata": {"k" * 65: "v"}},
        {"metadata": {"k": "v" * 513}},
        {"metadata": {str(n): "" for n in range(17)}},
        {"output_expires_after": {"anchor": "created_at", "seconds": 1}},
        {"model": "x"},
    ],
)
def test_invalid_requests_are_refused(fields: dict[str, Any]) -> None:
    good = {"input_file_id": "file-1", "endpoint": URL, "completion_window": "24h"}
    msgspec.convert({**good, "metadata": {"k" * 64: "v" * 512}}, BatchRequest)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**good, **fields}, BatchRequest)
