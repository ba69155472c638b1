"""The asynchronous client over a fake transport: outputs, abort, bounds, the engine's end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from ostro.core.errors import (
    AdapterConflict,
    EngineDied,
    InsufficientMemory,
    OstroError,
    Overloaded,
    RequestError,
    UsageError,
)
from ostro.core.ipc import client, streams
from ostro.core.ipc.client import AsyncEngine
from ostro.core.messages.arrays import Array
from ostro.core.messages.commands import (
    Abort,
    AdapterInfo,
    AdapterResult,
    Failed,
    FromEngine,
    GetStats,
    ListAdapters,
    LoadAdapter,
    ModelInfo,
    ModelResult,
    Outputs,
    Progress,
    Ready,
    RequantizeModel,
    ToEngine,
    UnloadAdapter,
)
from ostro.core.messages.outputs import JobOutput, Stats, TokenOutput
from ostro.core.messages.requests import JobRequest, PoolingRequest, Request, Sampling, TokenRequest

READY = Ready(models={"m": ModelInfo(context=8)})


class FakeEngine(AsyncEngine):
    """`sent` are the messages to the engine; the test delivers those that come back. Where it
    `shares`, arrays stay in shared memory, as for another process.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[ToEngine] = []
        self.shares = False

    async def start(self) -> Ready:
        return await self._wait_ready()

    async def close(self) -> None:
        self._lose(EngineDied("the engine is closed"))

    def _send(self, message: ToEngine) -> None:
        if not isinstance(message, GetStats):
            self.sent.append(message)

    def _share(self, request: Request) -> Request:
        return request if self.shares else super()._share(request)

    def deliver(self, *messages: FromEngine | TokenOutput | JobOutput) -> None:
        """Messages from the engine; outputs each in one of their own."""
        for message in messages:
            wrap = isinstance(message, TokenOutput | JobOutput)
            self._deliver(Outputs([message]) if wrap else message)  # type: ignore[arg-type, list-item]


def run(test: Callable[[FakeEngine], Awaitable[None]]) -> None:
    """Test an engine that is ready."""

    async def main() -> None:
        engine = FakeEngine()
        engine.deliver(READY)
        assert await engine.start() is READY
        await test(engine)
        await engine.close()

    asyncio.run(asyncio.wait_for(main(), 600))


def tokens(id: str, *new: int, **fields: Any) -> TokenOutput:
    return TokenOutput(id=id, tokens=list(new), **fields)


def ask(id: str = "a", n: int = 1) -> TokenRequest:
    return TokenRequest(id=id, tokens=[1], sampling=Sampling(n=n))


class Reader:
    """Reads a request's outputs in a task; `found` are those so far."""

    def __init__(self, engine: FakeEngine, request: Any) -> None:
        self.found: list[Any] = []
        call = engine.generate if isinstance(request, TokenRequest) else engine.work
        self.task = asyncio.ensure_future(self.read(call(request)))

    async def read(self, outputs: Any) -> None:
        async for output in outputs:
            self.found.append(output)


async def settle() -> None:
    """All tasks that can go on do."""
    for _ in range(10):
        await asyncio.sleep(0)


async def pass_time(seconds: float) -> None:
    """Move the clock of the event loop, which then stands still; timers that end are handled."""
    running = asyncio.get_running_loop()
    now = running.time() + seconds
    running.time = lambda: now  # type: ignore[method-assign]
    await settle()


# Outputs


def test_outputs_reach_their_request_in_order() -> None:
    async def test(engine: FakeEngine) -> None:
        first, second = Reader(engine, ask("a")), Reader(engine, ask("b"))
        await settle()
        assert [message.id for message in engine.sent] == ["a", "b"]  # type: ignore[union-attr]
        for output in (tokens("b", 7), tokens("a", 1), tokens("a", 2), tokens("b", 8)):
            engine.deliver(output)
            await settle()
        engine.deliver(Outputs([tokens("b", finish="stop"), tokens("a", 3, finish="length")]))
        await asyncio.gather(first.task, second.task)
        assert [output.tokens for output in first.found] == [[1], [2], [3]]
        assert [output.tokens for output in second.found] == [[7], [8], []]
        assert engine.requests == 0 and len(engine.sent) == 2, "nothing is aborted"

    run(test)


def test_a_request_ends_when_all_its_choices_have() -> None:
    async def test(engine: FakeEngine) -> None:
        reader = Reader(engine, ask(n=3))
        await settle()
        engine.deliver(tokens("a", index=2, finish="stop"), tokens("a", 5, index=0, finish="stop"))
        await settle()
        assert not reader.task.done() and engine.requests == 1
        engine.deliver(tokens("a", index=1, finish="abort"))
        await reader.task
        assert [output.index for output in reader.found] == [2, 0, 1]

    run(test)


def test_tokens_that_are_not_read_yet_are_merged_by_choice() -> None:
    async def test(engine: FakeEngine) -> None:
        reader = Reader(engine, ask(n=2))
        await settle()
        engine.deliver(tokens("a", 1), tokens("a", 9, index=1), tokens("a", 2))
        await settle()
        assert [(output.index, output.tokens) for output in reader.found] == [(0, [1, 2]), (1, [9])]
        engine.deliver(tokens("a", finish="stop"), tokens("a", index=1, finish="stop"))
        await reader.task

    run(test)


def test_outputs_of_unknown_requests_are_dropped() -> None:
    async def test(engine: FakeEngine) -> None:
        reader = Reader(engine, ask())
        await settle()
        engine.deliver(tokens("b", 1), Failed(kind="RequestError", message="m", id="b"))
        engine.deliver(tokens("a", 2, finish="stop"))
        await reader.task
        assert [output.tokens for output in reader.found] == [[2]] and engine.fault is None

    run(test)


def test_the_result_of_a_job_is_its_last_output() -> None:
    async def test(engine: FakeEngine) -> None:
        result = asyncio.ensure_future(engine.result(JobRequest(id="a")))
        await settle()
        engine.deliver(JobOutput(id="a", done=1, total=2))
        await settle()
        last = JobOutput(id="a", done=2, total=2, finish="stop", generations=("g",))
        engine.deliver(last)
        assert await result is last

    run(test)


# Errors of one request


def test_a_request_that_the_engine_refuses_raises_its_error_alone() -> None:
    async def test(engine: FakeEngine) -> None:
        refused, other = Reader(engine, ask("a")), Reader(engine, ask("b"))
        await settle()
        error = Failed.of(RequestError("the prompt is empty", param="prompt"), "a")
        engine.deliver(error)
        with pytest.raises(RequestError, match="the prompt is empty") as raised:
            await refused.task
        assert raised.value.param == "prompt"
        engine.deliver(tokens("b", finish="stop"))
        await other.task

    run(test)


@pytest.mark.parametrize(
    ("output", "kind", "said"),
    [
        (tokens("a", finish="error", error="it broke"), OstroError, "it broke"),
        (tokens("a", finish="error"), OstroError, "the engine failed on this request"),
        (JobOutput(id="a", finish="error", error="too wide"), OstroError, "too wide"),
        (
            JobOutput(id="a", finish="error", error="w", kind="RequestError", param="width"),
            RequestError,
            "w",
        ),
        (tokens("a", finish="error", error="full", kind="Overloaded"), Overloaded, "full"),
    ],
)
def test_an_output_with_an_error_ends_its_request(
    output: TokenOutput | JobOutput, kind: type[OstroError], said: str
) -> None:
    async def test(engine: FakeEngine) -> None:
        job = isinstance(output, JobOutput)
        reader = Reader(engine, PoolingRequest(id="a", inputs=[[1]]) if job else ask())
        await settle()
        engine.deliver(output)
        with pytest.raises(OstroError, match=said) as raised:
            await reader.task
        assert type(raised.value) is kind and raised.value.param == getattr(output, "param", None)
        assert not reader.found and engine.requests == 0

    run(test)


def test_an_id_that_is_under_way_is_refused() -> None:
    async def test(engine: FakeEngine) -> None:
        first = Reader(engine, ask("a"))
        await settle()
        with pytest.raises(RequestError, match="a request with id 'a' is under way"):
            await Reader(engine, ask("a")).task
        engine.deliver(tokens("a", 1, finish="stop"))
        await first.task
        assert len(engine.sent) == 1 and engine.requests == 0

    run(test)


# Abort


def test_closing_a_generator_early_aborts_its_request() -> None:
    async def test(engine: FakeEngine) -> None:
        request = ask()
        outputs = engine.generate(request)
        first = asyncio.ensure_future(anext(outputs))
        await settle()
        engine.deliver(tokens("a", 1))
        assert (await first).tokens == [1]
        await outputs.aclose()
        assert engine.sent == [request, Abort("a")] and engine.requests == 0

    run(test)


def test_a_task_that_is_cancelled_aborts_its_request() -> None:
    async def test(engine: FakeEngine) -> None:
        reader = Reader(engine, JobRequest(id="a"))
        await settle()
        reader.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader.task
        assert engine.sent[1:] == [Abort("a")]

    run(test)


def test_abort_raises_where_the_request_is_read_and_tells_the_engine() -> None:
    async def test(engine: FakeEngine) -> None:
        reader, other = Reader(engine, ask("a")), Reader(engine, ask("b"))
        await settle()
        engine.abort("unknown")
        engine.abort("a")
        engine.deliver(Failed.of(RequestError("too late"), "a"))
        with pytest.raises(Overloaded, match="the request was aborted"):
            await reader.task
        assert engine.sent[2:] == [Abort("a")] and not other.task.done()
        engine.abort_all(Overloaded("the server ends"))
        with pytest.raises(Overloaded, match="the server ends"):
            await other.task
        assert engine.sent[3:] == [Abort("b")]

    run(test)


def test_abort_of_one_choice_leaves_the_request_open() -> None:
    async def test(engine: FakeEngine) -> None:
        reader = Reader(engine, ask(n=2))
        await settle()
        engine.abort("a", 1)
        await settle()
        assert engine.sent[1:] == [Abort("a", 1)] and not reader.task.done()
        engine.deliver(tokens("a", index=1, finish="abort"), tokens("a", index=0, finish="stop"))
        await reader.task

    run(test)


def test_a_reader_that_is_too_slow_loses_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(engine: FakeEngine) -> None:
        reader = Reader(engine, ask())
        await settle()
        for _ in range(60):
            engine.deliver(tokens("a", 1))
        with pytest.raises(Overloaded, match="does not read the response"):
            await reader.task
        assert engine.sent[1:] == [Abort("a")]
        patient = Reader(engine, ask("b"))
        for _ in range(60):
            await settle()
            engine.deliver(tokens("b", 1))
        engine.deliver(tokens("b", finish="stop"))
        await patient.task

    monkeypatch.setattr(streams, "BUFFER", 100)
    run(test)


# Admission


class Marked:
    """An admission that admits one request at a time, with the salt "marked", and counts tokens."""

    def __init__(self) -> None:
        self.places, self.counted, self.request = 1, 0, ask()

    def check(self) -> None:
        if not self.places:
            raise Overloaded("no place")

    def admit(self, request: Any) -> Marked:
        self.check()
        self.places -= 1
        if isinstance(request, TokenRequest):
            request = structs.replace(request, salt="marked")
        self.request = request
        return self

    def count(self, output: Any) -> None:
        self.counted += len(output.tokens)

    def close(self) -> None:
        self.places += 1


@pytest.mark.parametrize("end", ["finished", "cancelled", "failed"])
def test_an_admission_sees_requests_from_begin_to_end(end: str) -> None:
    async def test(engine: FakeEngine) -> None:
        engine.admission = admission = Marked()
        reader = Reader(engine, ask("a"))
        await settle()
        assert [message.salt for message in engine.sent] == ["marked"]  # type: ignore[union-attr]
        with pytest.raises(Overloaded, match="no place"):
            engine.admit()
        with pytest.raises(Overloaded, match="no place"):
            await Reader(engine, ask("b")).task
        engine.deliver(tokens("a", 1, 2))
        await settle()
        assert (admission.places, admission.counted) == (0, 2)
        if end == "finished":
            engine.deliver(tokens("a", finish="stop"))
        elif end == "cancelled":
            reader.task.cancel()
        else:
            engine.deliver(Failed(kind="RequestError", message="no", id="a"))
        await asyncio.gather(reader.task, return_exceptions=True)
        engine.admit()
        assert admission.places == 1 and engine.requests == 0

    run(test)


def test_a_request_waits_no_longer_than_max_wait() -> None:
    async def test(engine: FakeEngine) -> None:
        engine.max_wait = 60
        await pass_time(0)
        waiting = Reader(engine, ask("a"))
        await settle()
        await pass_time(59)
        assert not waiting.task.done()
        await pass_time(2)
        with pytest.raises(Overloaded, match="waited 60 s"):
            await waiting.task
        assert engine.sent[-1] == Abort("a") and engine.requests == 0
        reader = Reader(engine, ask("b"))
        await settle()
        engine.deliver(tokens("b", 1))
        await settle()
        await pass_time(61)
        engine.deliver(tokens("b", 2, finish="stop"))  # a pause between tokens is no wait
        await reader.task

    run(test)


def test_requests_are_refused_before_the_engine_is_ready() -> None:
    async def main() -> None:
        engine = FakeEngine()
        engine.deliver(Progress(what="reading weights", done=1, total=2))
        engine.deliver(Progress(what="reading weights", done=3, total=9, model="m"))
        assert not engine.ready and engine.progress.done == 1 and engine.loading["m"].done == 3
        with pytest.raises(Overloaded, match="still loading"):
            await Reader(engine, ask()).task
        with pytest.raises(Overloaded, match="still loading"):
            await engine.stats()
        assert not engine.sent

    asyncio.run(main())


def test_draining_takes_no_request_and_waits_for_those_under_way() -> None:
    async def test(engine: FakeEngine) -> None:
        reader, other = Reader(engine, ask()), Reader(engine, ask("c"))
        await settle()
        drained = asyncio.ensure_future(engine.drain(60))
        await settle()
        await pass_time(59)
        assert not drained.done()
        await pass_time(2)
        assert not await drained
        engine.deliver(tokens("c", finish="stop"))
        await other.task
        assert not engine.ready
        with pytest.raises(Overloaded, match="shutting down"):
            await Reader(engine, ask("b")).task
        drained = asyncio.ensure_future(engine.drain(60))
        await settle()
        assert not drained.done()
        engine.deliver(tokens("a", finish="stop"))
        await reader.task
        assert await drained and await engine.drain(60), "there is nothing left"

    run(test)


def test_a_hung_engine_rejects_requests_until_it_responds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: now[0]))

    async def test(engine: FakeEngine) -> None:
        engine.patience = 30.0
        await settle()  # the engine was sent a heartbeat
        now[0] += 29
        assert engine.ready and engine.silence == 29
        now[0] += 2
        assert engine.hung and not engine.ready
        with pytest.raises(Overloaded, match="has not responded for 31 s"):
            await Reader(engine, ask()).task
        engine.deliver(Progress(what="capturing"))
        assert engine.ready and engine.silence == 0
        now[0] += 31
        engine.deliver(Stats())
        await settle()
        assert engine.ready and engine.silence == 0

    run(test)


@pytest.mark.parametrize("ends", ["refused", "read", "unread"])
def test_arrays_in_shared_memory_are_gone_after_their_request(ends: str) -> None:
    """Whether the engine has read them or, in another process, has not."""

    async def test(engine: FakeEngine) -> None:
        shared = Array.of(np.zeros(1 << 15, np.int64)).share()
        assert Path(shared.file).exists()
        engine.admission = admission = Marked()
        admission.places, engine.shares = int(ends != "refused"), ends == "unread"
        reader = Reader(engine, JobRequest(id="a", arrays={"x": shared}))
        await settle()
        reader.task.cancel()
        with pytest.raises(Overloaded if ends == "refused" else asyncio.CancelledError):
            await reader.task
        sent = [message for message in engine.sent if isinstance(message, JobRequest)]
        whole = [request.arrays["x"].data == bytes(1 << 18) for request in sent]
        assert whole == {"refused": [], "read": [True], "unread": [False]}[ends]
        assert not Path(shared.file).exists()

    run(test)


# The end of the engine


def test_everything_that_waits_fails_when_the_engine_dies() -> None:
    async def test(engine: FakeEngine) -> None:
        readers = [Reader(engine, ask("a")), Reader(engine, JobRequest(id="b"))]
        change = engine.change_models(RequantizeModel(quant="q4_0"))
        others = [engine.stats(), change, engine.adapt(ListAdapters())]
        tasks = [reader.task for reader in readers] + [asyncio.ensure_future(o) for o in others]
        gone = asyncio.ensure_future(engine.wait_gone())
        await settle()
        assert not gone.done()
        sent = list(engine.sent)
        engine.deliver(Failed(kind="EngineDied", message="killed by signal 9"))
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [EngineDied] * 5
        assert {str(result) for result in results} == {"killed by signal 9"}
        await gone
        assert engine.sent == sent, "a dead engine receives no messages"
        assert not engine.ready and not engine.hung and engine.requests == 0
        with pytest.raises(EngineDied, match="signal 9"):
            await Reader(engine, ask()).task

    run(test)


def test_the_first_fault_wins() -> None:
    async def test(engine: FakeEngine) -> None:
        engine.deliver(Failed(kind="InsufficientMemory", message="out of memory"))
        engine.deliver(Failed(kind="EngineDied", message="the process ended"))
        assert isinstance(engine.fault, InsufficientMemory)
        with pytest.raises(EngineDied, match="out of memory"):
            engine.check()

    run(test)


def test_start_raises_the_load_error() -> None:
    async def main() -> None:
        engine = FakeEngine()
        started = asyncio.ensure_future(engine.start())
        await settle()
        assert not started.done()
        engine.deliver(Failed(kind="InsufficientMemory", message="the cache does not fit"))
        with pytest.raises(InsufficientMemory, match="the cache does not fit"):
            await started

    asyncio.run(main())


# Questions and changes


def test_stats_requests_are_answered_in_order() -> None:
    async def test(engine: FakeEngine) -> None:
        await settle()
        engine.deliver(Stats())  # the reply to the first heartbeat
        asked = [asyncio.ensure_future(engine.stats()) for _ in range(3)]
        await settle()
        asked[1].cancel()
        engine.deliver(*[Stats(steps=steps) for steps in (1, 2, 3)])
        assert [(await each).steps for each in (asked[0], asked[2])] == [1, 3]

    run(test)


def test_changes_are_answered_by_their_id_in_any_order() -> None:
    async def test(engine: FakeEngine) -> None:
        quant, topology = RequantizeModel(model="m", quant="q4_0"), RequantizeModel(topology="t")
        load, unload = LoadAdapter(name="x", reference="r", inplace=True), UnloadAdapter(name="y")
        first = asyncio.ensure_future(engine.change_models(quant))
        second = asyncio.ensure_future(engine.adapt(load))
        third = asyncio.ensure_future(engine.change_models(topology))
        fourth = asyncio.ensure_future(engine.adapt(unload))
        await settle()
        ids = [message.id for message in engine.sent]  # type: ignore[union-attr]
        commands = zip((quant, load, topology, unload), ids, strict=True)
        assert len(set(ids)) == 4
        assert engine.sent == [structs.replace(command, id=id) for command, id in commands]
        known = [AdapterInfo(name="x", reference="r")]
        engine.deliver(AdapterResult(ids[1], known), ModelResult(ids[0], {}, ["q4_0: 3 of 4"]))
        engine.deliver(Failed.of(AdapterConflict("taken"), ids[3]))
        engine.deliver(Failed.of(UsageError("no such topology"), ids[2]))
        assert (await first).explain == ["q4_0: 3 of 4"] and await second == known
        with pytest.raises(UsageError, match="no such topology"):
            await third
        with pytest.raises(AdapterConflict, match="taken"):
            await fourth
        engine.deliver(AdapterResult(ids[1], known), Failed.of(UsageError("late"), ids[2]))
        assert engine.fault is None

    run(test)
