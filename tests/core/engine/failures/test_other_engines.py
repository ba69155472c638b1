"""Errors of pooling requests, of jobs, and of an engine in its own process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from tiny.failing import (
    FAULTY,
    LONG,
    MEAN,
    Fault,
    ask,
    processed,
    tokens_of,
)
from tiny.model import make_model

from ostro.core.adapters.adapter import LoadedAdapter, Mixture, WeightedAdapter
from ostro.core.engine.jobs import JobEngine
from ostro.core.engine.models.model_engines import ModelEngines
from ostro.core.engine.models.multi_model import MultiModelEngine
from ostro.core.engine.pooling import PoolingEngine
from ostro.core.errors import OstroError, RequestError, Unsupported
from ostro.core.ipc.process import ProcessEngine
from ostro.core.messages.outputs import JobOutput, Output, TokenOutput
from ostro.core.messages.requests import JobRequest, PoolingRequest, TokenRequest
from ostro.core.settings import Settings
from ostro.core.step import Slice
from ostro.plugins.conformance.parity import Subject, greedy


@pytest.fixture
def reader(llama: Subject) -> Iterator[PoolingEngine]:
    engine = llama.engine()
    yield PoolingEngine(
        engine.runner, MEAN, vocab=engine.vocab, context=engine.context, max_rows=40
    )
    assert engine.stats().blocks_used == 0


def results(part: PoolingEngine | JobEngine) -> dict[str, JobOutput]:
    found: dict[str, JobOutput] = {}
    while part.busy:
        found |= {output.id: output for output in part.step() if output.finish}
    return found


def test_a_pooling_step_that_raises_ends_its_requests_alone(
    llama: Subject, reader: PoolingEngine
) -> None:
    inputs = {"bad": llama.prompt[:30], "good": llama.prompt[5:35]}
    Fault(reader.runner.model, "hidden", RuntimeError("boom"))
    for id, tokens in inputs.items():
        reader.submit(PoolingRequest(id=id, inputs=[tokens]))
    found = results(reader)
    assert found["bad"].finish == "error" and "boom" in (found["bad"].error or "")
    expected = reader.read([inputs["good"]], None, "vectors").numpy()
    assert found["good"].arrays["rows"].numpy() == pytest.approx(expected)
    assert not reader.live
    reader.submit(PoolingRequest(id="bad", inputs=[inputs["bad"]]))
    assert results(reader)["bad"].finish == "stop"


def test_a_pooling_request_of_many_steps_ends_once(llama: Subject, reader: PoolingEngine) -> None:
    Fault(reader.runner.model, "hidden", RuntimeError("boom"), 1)
    reader.submit(PoolingRequest(id="bad", inputs=[llama.prompt[:30]] * 3))
    assert results(reader)["bad"].finish == "error"
    assert not reader.live and not reader.queue


def test_a_request_that_has_no_room_in_the_cache_ends_alone(llama: Subject) -> None:
    engine = llama.engine(blocks=3)
    reader = PoolingEngine(engine.runner, MEAN, vocab=engine.vocab, context=200, max_rows=40)
    reader.submit(PoolingRequest(id="short", inputs=[llama.prompt[:20]]))
    with pytest.raises(RequestError, match="no room in the cache") as refused:
        reader.submit(PoolingRequest(id="long", inputs=[llama.prompt[:60]]))
    assert refused.value.param == "input"
    assert results(reader)["short"].finish == "stop"


class Worker:
    """Counts to three; raises if the request demands it."""

    def work(self, request: JobRequest, step: Any) -> Iterator[Slice]:
        if request.values.get("raise") == "at once":
            raise KeyError("no such job")
        return self.slices(request.values)

    def slices(self, values: Mapping[str, Any]) -> Iterator[Slice]:
        for i in range(3):
            if values.get("raise") == i:
                raise ZeroDivisionError("boom")
            yield Slice(done=i + 1, total=3, arrays={"x": torch.ones(1)} if i == 2 else {})


def test_inputs_are_computed_in_the_order_of_priority(
    llama: Subject, reader: PoolingEngine
) -> None:
    """Each input fills a batch, so that there is one per step."""
    for id, priority in (("batch", 5), ("first", 0), ("second", 0), ("middle", 1)):
        inputs = [llama.prompt[:40]] * 2
        reader.submit(PoolingRequest(id=id, inputs=inputs, priority=priority))
    assert list(results(reader)) == ["first", "second", "middle", "batch"]


def test_jobs_of_the_best_priority_alternate() -> None:
    jobs = JobEngine(Worker())
    jobs.submit(JobRequest(id="batch", priority=5))
    assert [output.id for output in jobs.step()] == ["batch"]
    for id in ("a", "b"):
        jobs.submit(JobRequest(id=id))
    order = [output.id for _ in range(8) for output in jobs.step()]
    assert order == ["a", "b"] * 3 + ["batch"] * 2 and not jobs.busy


def test_a_job_that_raises_ends_alone() -> None:
    jobs = JobEngine(Worker())
    jobs.submit(JobRequest(id="bad", values={"raise": 1}))
    jobs.submit(JobRequest(id="good"))
    with pytest.raises(OstroError, match="KeyError: 'no such job'"):
        jobs.submit(JobRequest(id="refused", values={"raise": "at once"}))
    found = results(jobs)
    assert found["bad"].finish == "error" and "ZeroDivisionError" in (found["bad"].error or "")
    assert found["good"].finish == "stop"


WRONG_SLICES: dict[str, tuple[Any, str]] = {
    "none": (None, "returned None, expected a Slice"),
    "a dict": ({}, "returned a value of type dict, expected a Slice"),
    "bfloat16": ({"x": torch.ones(2).bfloat16()}, "returned [2] bfloat16, expected a tensor"),
    "a list": ({"x": [1.0]}, "returned a value of type list, expected a tensor"),
}


@pytest.mark.parametrize("fault", WRONG_SLICES)
def test_a_wrong_slice_names_the_class(fault: str) -> None:
    value, message = WRONG_SLICES[fault]

    class Wrong(Worker):
        def slices(self, values: Mapping[str, Any]) -> Iterator[Any]:
            if values:
                yield value if fault in ("none", "a dict") else Slice(done=1, total=2, arrays=value)
            else:
                yield from super().slices(values)

    jobs = JobEngine(Wrong())  # type: ignore[arg-type]
    jobs.submit(JobRequest(id="bad", values={"wrong": 1}))
    jobs.submit(JobRequest(id="good"))
    found = results(jobs)
    error = found["bad"].error or ""
    assert f"Wrong.work {message}" in error and found["good"].finish == "stop"


def test_a_job_that_ends_early_or_exits_ends_alone() -> None:
    class Ends(Worker):
        def slices(self, values: Mapping[str, Any]) -> Iterator[Slice]:
            yield Slice(done=1, total=3)
            if values.get("exit"):
                raise SystemExit(3)

    jobs = JobEngine(Ends())  # type: ignore[arg-type]
    jobs.submit(JobRequest(id="early"))
    jobs.submit(JobRequest(id="exits", values={"exit": True}))
    found = results(jobs)
    assert "Ends.work returned None, expected a Slice, the last" in (found["early"].error or "")
    assert "sys.exit" in (found["exits"].error or "")


def test_a_job_with_an_xlora_adapter_is_refused() -> None:
    jobs, adapter = JobEngine(Worker()), cast(LoadedAdapter, SimpleNamespace(mixer=object()))
    with pytest.raises(Unsupported, match="X-LoRA"):
        jobs.submit(JobRequest(id="bad"), Mixture((WeightedAdapter(adapter, 1.0),)))
    assert not jobs.busy
    jobs.submit(JobRequest(id="good"))
    assert results(jobs)["good"].finish == "stop"


def test_failures_of_one_sub_engine_leave_the_others_running(llama: Subject) -> None:
    engine = llama.engine()
    reader = PoolingEngine(
        engine.runner, MEAN, vocab=engine.vocab, context=engine.context, max_rows=40
    )
    multi = MultiModelEngine(
        {"m": ModelEngines(tokens=engine, reader=reader, jobs=JobEngine(Worker()))}
    )
    wanted = greedy(engine, [llama.prompt[:20]], LONG)[0]
    multi.submit(ask("good", llama.prompt[:20]))
    multi.submit(JobRequest(id="job", values={"raise": 2}))
    Fault(reader, "read", RuntimeError("boom"))
    multi.submit(PoolingRequest(id="pooling", inputs=[[5, 6]]))
    outputs = list[Output]()
    while multi.busy:
        outputs += multi.step()
    ends = {output.id: output.finish for output in outputs if output.finish}
    assert ends == {"good": "length", "job": "error", "pooling": "error"}
    tokens = [output for output in outputs if isinstance(output, TokenOutput)]
    assert tokens_of(tokens) == wanted


@pytest.mark.process
def test_an_engine_process_survives_errors_of_plugins(tmp_path: Path) -> None:
    make_model(tmp_path)
    settings = Settings(reference=str(tmp_path), threads=1)

    async def tokens(engine: ProcessEngine, request: TokenRequest) -> list[int]:
        return [token async for output in engine.generate(request) for token in output.tokens]

    async def test(engine: ProcessEngine) -> None:
        await engine.start()
        prompt = [5, 6, 7, 8]
        alone = await tokens(engine, ask("alone", prompt, 900))
        good = asyncio.ensure_future(tokens(engine, ask("good", prompt, 900)))
        for number, (fault, error) in enumerate((("check", "KeyError"), ("apply", "ValueError"))):
            with pytest.raises(OstroError, match=f"{error}.*plugin faulty"):
                await tokens(engine, processed(f"bad {number}", prompt, fault))
        assert not good.done()
        assert await good == alone and len(alone) == 900
        assert (await engine.stats()).blocks_used == 0
        assert await tokens(engine, processed("later", prompt, "nothing", 9)) == alone[:9]

    async def main() -> None:
        engine = ProcessEngine(settings, plugin_paths=[str(FAULTY)])
        try:
            await asyncio.wait_for(test(engine), 120)
        finally:
            await engine.close()

    asyncio.run(main())
