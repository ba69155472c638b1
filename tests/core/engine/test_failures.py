"""Errors in a step end the requests that caused them; others and the engine go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tiny.adapters import adapter
from tiny.model import make_model

from ostro.core.engine.engine import Engine
from ostro.core.engine.jobs import JobEngine, Slice
from ostro.core.engine.multi_model import ModelEntry, MultiModelEngine
from ostro.core.engine.pooling import PoolingEngine
from ostro.core.engine.request import (
    AdapterRef,
    JobOutput,
    JobRequest,
    Output,
    PoolingRequest,
    Sampling,
    TokenOutput,
    TokenRequest,
)
from ostro.core.errors import OstroError, RequestError
from ostro.core.ipc.process import ProcessEngine
from ostro.core.load.pooling import Pooling
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Settings
from ostro.plugins.conformance.parity import Subject, greedy

Build = Callable[..., Engine]
MEAN = Pooling("mean")
FAULTY = Path(__file__).parents[2] / "tiny" / "faulty.py"
LONG = 60


@pytest.fixture(scope="module")
def faulty(llama: Subject) -> Subject:
    """The tiny llama, with a plugin whose logits processor raises as a request demands."""
    plugins = PluginManager()
    plugins.load(Settings(), [FAULTY])
    return replace(llama, plugins=plugins)


def ask(id: str, tokens: list[int], count: int = LONG, **rules: Any) -> TokenRequest:
    sampling = Sampling(temperature=0, max_tokens=count, ignore_eos=True, **rules)
    return TokenRequest(id=id, tokens=tokens, sampling=sampling)


def processed(id: str, tokens: list[int], fault: str, count: int = LONG) -> TokenRequest:
    return ask(id, tokens, count, processors={"faulty": fault})


def run(engine: Engine, *requests: TokenRequest) -> dict[str, list[TokenOutput]]:
    for request in requests:
        engine.submit(request)
    return outputs_of(engine)


def outputs_of(engine: Engine) -> dict[str, list[TokenOutput]]:
    found: dict[str, list[TokenOutput]] = {}
    while engine.busy:
        for output in engine.step():
            found.setdefault(output.id, []).append(output)
    for outputs in found.values():
        ends = {output.index for output in outputs if output.finish}
        assert len([o for o in outputs if o.finish]) == len(ends), "each choice ends once"
    return found


def tokens_of(outputs: list[TokenOutput]) -> list[int]:
    return [token for output in outputs for token in output.tokens]


def error_of(outputs: list[TokenOutput]) -> str:
    assert outputs[-1].finish == "error" and outputs[-1].error is not None
    return outputs[-1].error


def idle(engine: Engine) -> None:
    """Assert that no request has left anything behind."""
    scheduler = engine.scheduler
    assert not engine.busy and not engine.live
    assert not scheduler.running and not scheduler.waiting
    assert engine.stats().blocks_used == 0
    assert sorted(scheduler.rows) == list(range(scheduler.max_seqs))
    if engine.registry is not None and engine.runner.adapter_pool is not None:
        assert not engine.registry.store.use_counts and not engine.runner.adapter_pool.rows
        assert not any(each.users for each in engine.runner.adapter_pool.adapters.values())


class Fault:
    """Replaces a method: call number `at` (from 0) raises, all others work as before."""

    def __init__(self, owner: Any, name: str, error: Exception, *at: int) -> None:
        self.real, self.error, self.at, self.calls = getattr(owner, name), error, at or (0,), 0
        setattr(owner, name, self)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.calls += 1
        if self.calls - 1 in self.at:
            raise self.error
        return self.real(*arguments, **named)


# Logits processors


def test_a_processor_that_raises_in_check_refuses_its_request(
    faulty: Subject, engine_of: Build
) -> None:
    engine, prompt = engine_of(faulty), faulty.prompt[:20]
    wanted = greedy(engine, [prompt], LONG)[0]
    engine.submit(ask("good", prompt))
    first = tokens_of(engine.step())
    with pytest.raises(OstroError) as refused:
        engine.submit(processed("bad", prompt, "check"))
    text = str(refused.value)
    assert not isinstance(refused.value, RequestError)
    assert "KeyError: 'no such key' in check of the logits processor 'faulty'" in text
    assert "plugin faulty" in text and "faulty.py:" in text
    assert [*first, *tokens_of(outputs_of(engine)["good"])] == wanted
    idle(engine)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("apply", "ValueError: no such value in apply of the logits processor 'faulty'"),
        ("third apply", "ValueError: no third value in apply of the logits processor 'faulty'"),
        ("update", "IndexError: no such row in update of the logits processor 'faulty'"),
        ("memory", "MemoryError: no such room in apply of the logits processor 'faulty'"),
    ],
)
def test_a_processor_that_raises_ends_its_request_alone(
    faulty: Subject, engine_of: Build, fault: str, message: str
) -> None:
    engine, prompts = engine_of(faulty), [faulty.prompt[:n] for n in (20, 25)]
    wanted = greedy(engine, prompts, LONG)
    found = run(engine, ask("good", prompts[0]), processed("bad", prompts[1], fault))
    error = error_of(found["bad"])
    assert message in error and "plugin faulty" in error
    assert tokens_of(found["good"]) == wanted[0]
    count = len(tokens_of(found["bad"]))
    assert tokens_of(found["bad"]) == wanted[1][:count]
    assert count in ((1, 2) if fault == "third apply" else (0,)), "a token may still be unread"
    idle(engine)
    assert tokens_of(run(engine, processed("b", prompts[1], "nothing"))["b"]) == wanted[1]


def test_a_processor_error_in_update_ends_one_request_only(
    faulty: Subject, engine_of: Build
) -> None:
    engine, prompts = engine_of(faulty), [faulty.prompt[:n] for n in (20, 25)]
    wanted = greedy(engine, prompts, LONG)
    engine.submit(processed("good", prompts[0], "nothing"))
    found = run(engine, processed("bad", prompts[1], "update"))
    assert "IndexError" in error_of(found["bad"]) and tokens_of(found["good"]) == wanted[0]
    idle(engine)


def test_a_processor_is_created_again_after_it_raised(faulty: Subject, engine_of: Build) -> None:
    """Its state of the other rows may be invalid: their requests end as well."""
    engine, prompt = engine_of(faulty), faulty.prompt[:20]
    found = run(
        engine,
        ask("free", prompt),
        processed("beside", prompt, "nothing"),
        processed("bad", prompt, "third apply"),
    )
    assert "ValueError" in error_of(found["beside"]) and "ValueError" in error_of(found["bad"])
    assert len(tokens_of(found["free"])) == LONG
    made = engine.runner.sampler.processors.created
    assert "faulty" not in made
    assert len(tokens_of(run(engine, processed("next", prompt, "nothing"))["next"])) == LONG
    assert "faulty" in made
    idle(engine)


def test_all_choices_of_a_request_end_with_it(faulty: Subject, engine_of: Build) -> None:
    engine = engine_of(faulty)
    found = run(engine, ask("bad", faulty.prompt, n=3, processors={"faulty": "third apply"}))
    ends = [output for output in found["bad"] if output.finish]
    assert sorted(output.index for output in ends) == [0, 1, 2]
    assert {output.finish for output in ends} == {"error"}
    idle(engine)


# Steps that raise


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("boom"), "could not compute this request: RuntimeError: boom"),
        (torch.OutOfMemoryError("no room"), "ran out of memory .*no room.*--memory"),
        (MemoryError("no room"), "ran out of memory .*no room.*--memory"),
    ],
)
def test_a_step_that_raises_ends_its_requests_alone(
    llama: Subject, engine_of: Build, error: Exception, message: str
) -> None:
    """The first step has only rows of "bad"; "good" waits in the queue."""
    engine, prompts = engine_of(llama, rows=32), [llama.prompt[:40], llama.prompt[5:45]]
    wanted = greedy(engine_of(llama), prompts, LONG)
    Fault(engine.runner.model, "hidden", error)
    found = run(engine, ask("bad", prompts[0]), ask("good", prompts[1]))
    with pytest.raises(OstroError, match=message):
        raise OstroError(error_of(found["bad"]))
    assert tokens_of(found["good"]) == wanted[1]
    idle(engine)
    again = run(engine, ask("bad", prompts[0]))["bad"]
    assert again[0].cached == 0, "a partly written block is never reused"
    assert tokens_of(again) == wanted[0]


def test_a_step_may_raise_while_another_is_in_flight(llama: Subject) -> None:
    """A token of "running" is in flight when the step with the prompt of "bad" raises."""
    engine, prompts = llama.engine(replay=True, rows=24), [llama.prompt[:20], llama.prompt[5:45]]
    engine.runner.capture()
    wanted = greedy(llama.engine(), prompts, LONG)
    engine.submit(ask("running", prompts[0]))
    first = [token for _ in range(4) for output in engine.step() for token in output.tokens]
    assert engine.in_flight and 0 < len(first) < LONG
    Fault(engine.runner.model, "hidden", RuntimeError("boom"))
    engine.submit(ask("bad", prompts[1]))
    engine.submit(ask("waiting", prompts[1]))
    found = outputs_of(engine)
    assert "boom" in error_of(found["running"]) and "boom" in error_of(found["bad"])
    assert [*first, *tokens_of(found["running"])] == wanted[0][: len(first)]
    assert tokens_of(found["waiting"]) == wanted[1]
    idle(engine)
    assert tokens_of(run(engine, ask("again", prompts[0]))["again"]) == wanted[0]


def test_consecutive_steps_may_raise(llama: Subject, engine_of: Build) -> None:
    engine, prompts = engine_of(llama, rows=16), [llama.prompt[i : i + 30] for i in range(6)]
    wanted = greedy(engine_of(llama), prompts, 8)
    Fault(engine.runner.model, "hidden", RuntimeError("boom"), 0, 1, 2, 3)
    found = run(engine, *(ask(str(i), prompt, 8) for i, prompt in enumerate(prompts)))
    ends = [outputs[-1].finish for outputs in (found[str(i)] for i in range(6))]
    assert ends == ["error"] * 4 + ["length"] * 2
    assert [tokens_of(found[str(i)]) for i in (4, 5)] == wanted[4:]
    idle(engine)


def test_a_shared_prefix_survives_a_step_that_raises(llama: Subject, engine_of: Build) -> None:
    engine, prompt = engine_of(llama), llama.prompt
    wanted = tokens_of(run(engine, ask("a", prompt, 8))["a"])
    Fault(engine.runner.model, "hidden", RuntimeError("boom"))
    assert "boom" in error_of(run(engine, ask("bad", [*prompt, 5, 6], 8))["bad"])
    again = run(engine, ask("b", prompt, 8))["b"]
    assert again[0].cached == 48 and tokens_of(again) == wanted
    idle(engine)


def test_a_sequence_started_in_a_failed_step_keeps_its_sampling(
    llama: Subject, engine_of: Build
) -> None:
    """One row per step, which "first" gets: "next" has none in the step that raises."""
    engine, prompt = engine_of(llama, max_seqs=2, rows=1), llama.prompt[:6]
    banned = greedy(engine_of(llama), [prompt], 1)[0][0]
    rules = {"logit_bias": {banned: -100.0}}
    wanted = tokens_of(run(engine_of(llama), ask("next", prompt, 8, **rules))["next"])
    engine.submit(msgspec.structs.replace(ask("first", prompt), priority=5))
    for _ in range(12):
        engine.step()
    Fault(engine.runner.sampler, "add", MemoryError("no room"))
    found = run(engine, ask("next", prompt, 8, **rules))
    assert "no room" in error_of(found["first"])
    assert tokens_of(found["next"]) == wanted
    idle(engine)


def test_a_sequence_started_in_a_step_without_rows_keeps_its_sampling(
    llama: Subject, engine_of: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for blocks, and there is no other sequence."""
    engine, prompt = engine_of(llama), llama.prompt[:20]
    banned = greedy(engine_of(llama), [prompt], 1)[0][0]
    rules = {"logit_bias": {banned: -100.0}}
    wanted = tokens_of(run(engine_of(llama), ask("a", prompt, 8, **rules))["a"])
    grow, calls = engine.blocks.grow, list[int]()

    def full(*arguments: Any) -> bool:
        calls.append(1)
        return len(calls) > 1 and grow(*arguments)

    monkeypatch.setattr(engine.blocks, "grow", full)
    assert tokens_of(run(engine, ask("a", prompt, 8, **rules))["a"]) == wanted
    idle(engine)


def test_a_failed_copy_of_tokens_ends_their_requests(llama: Subject, engine_of: Build) -> None:
    engine, prompts = engine_of(llama, rows=20), [llama.prompt[:20], llama.prompt[5:25]]
    wanted = greedy(engine_of(llama), prompts, 8)
    engine.submit(ask("bad", prompts[0], 8))
    engine.submit(ask("good", prompts[1], 8))
    run_ = engine.runner.run

    def lose(plan: Any) -> Any:
        launched = run_(plan)
        Fault(launched.drawn, "wait", MemoryError("no room"))
        engine.runner.run = run_  # type: ignore[method-assign]
        return launched

    engine.runner.run = lose  # type: ignore[method-assign]
    found = outputs_of(engine)
    assert "no room" in error_of(found["bad"])
    assert tokens_of(found["good"]) == wanted[1]
    idle(engine)


def test_prompt_logprobs_that_do_not_fit_end_their_request_alone(
    llama: Subject, engine_of: Build
) -> None:
    engine, prompts = engine_of(llama), [llama.prompt[:20], llama.prompt[5:25]]
    wanted = greedy(engine_of(llama), prompts, 8)
    Fault(engine, "add_prompt_logprobs", MemoryError("no room"))
    found = run(engine, ask("bad", prompts[0], 8, prompt_logprobs=2), ask("good", prompts[1], 8))
    assert "no room" in error_of(found["bad"]) and tokens_of(found["good"]) == wanted[1]
    idle(engine)


def test_an_error_of_the_scheduler_ends_the_engine(llama: Subject) -> None:
    """It is unknown then which blocks and rows are free."""
    engine = llama.engine()
    Fault(engine.scheduler, "mark_launched", KeyError("bookkeeping"))
    engine.submit(ask("a", llama.prompt))
    with pytest.raises(KeyError, match="bookkeeping"):
        engine.step()


def test_a_step_that_cannot_be_captured_leaves_no_outdated_capture(llama: Subject) -> None:
    """The second adapter adds tables to other modules; the next capture runs out of memory."""
    engine, prompt = llama.engine(replay=True), llama.prompt[:20]
    engine.runner.capture()
    registry = engine.registry
    assert registry is not None
    registry.add("a", adapter(llama, 1))

    def mixture() -> Any:
        return registry.mixture([AdapterRef(name="a")])

    wanted = greedy(engine, [prompt], 8, [mixture()])
    assert engine.runner.adapter_pool is not None
    engine.runner.adapter_pool.changes += 1
    Fault(engine.runner, "capture_all", MemoryError("no room"))
    engine.submit(ask("bad", prompt, 8), mixture())
    assert "no room" in error_of(outputs_of(engine)["bad"])
    assert greedy(engine, [prompt], 8, [mixture()]) == wanted
    idle(engine)
    engine.close()


# Adapters


@pytest.mark.parametrize("where", ["fill", "write"])
def test_an_adapter_that_cannot_be_brought_to_the_device_ends_its_request_alone(
    llama: Subject, engine_of: Build, where: str
) -> None:
    engine, prompt = engine_of(llama, adapter_slots=2), llama.prompt[:20]
    registry, adapter_pool = engine.registry, engine.runner.adapter_pool
    assert registry is not None and adapter_pool is not None
    registry.add("a", adapter(llama, 1))
    mixture = lambda: registry.mixture([AdapterRef(name="a")])  # noqa: E731
    base, changed = greedy(engine, [prompt] * 2, 8, [registry.mixture([]), mixture()])
    adapter_pool.evict_unused(next(iter(adapter_pool.adapters)))
    free = sorted(adapter_pool.free_pages)
    delta = list(adapter_pool.deltas.values())[3]
    Fault(delta if where == "delta" else adapter_pool.mixtures, "write", MemoryError("no room"))
    engine.submit(ask("bad", prompt, 8), mixture())
    engine.submit(ask("good", prompt, 8))
    found = outputs_of(engine)
    assert "loading adapters to the device" in error_of(found["bad"])
    assert tokens_of(found["good"]) == base
    idle(engine)
    used = [page for each in adapter_pool.adapters.values() for page in each.pages]
    assert sorted([*adapter_pool.free_pages, *used]) == free
    engine.submit(ask("again", prompt, 8), mixture())
    assert tokens_of(outputs_of(engine)["again"]) == changed
    engine.close()


def test_an_adapter_that_raises_leaves_the_queue(llama: Subject, engine_of: Build) -> None:
    engine, prompt = engine_of(llama, max_seqs=1), llama.prompt[:20]
    registry, adapter_pool = engine.registry, engine.runner.adapter_pool
    assert registry is not None and adapter_pool is not None
    registry.add("a", adapter(llama, 1))
    engine.submit(ask("running", prompt, 8))
    engine.step()
    Fault(adapter_pool, "acquire", MemoryError())
    bad = TokenRequest(id="bad", tokens=prompt, priority=-1)
    engine.submit(bad, registry.mixture([AdapterRef(name="a")]))
    found = outputs_of(engine)
    assert found["running"][-1].finish == "length"
    assert found["bad"][-1].finish == "error"
    idle(engine)
    engine.close()


# Pooling and jobs


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


def test_a_batch_that_has_no_room_in_the_cache_ends_its_requests_alone(llama: Subject) -> None:
    engine = llama.engine(blocks=3)
    reader = PoolingEngine(engine.runner, MEAN, vocab=engine.vocab, context=200, max_rows=40)
    for id, count in {"long": 60, "short": 20}.items():
        reader.submit(PoolingRequest(id=id, inputs=[llama.prompt[:count]]))
    found = results(reader)
    assert found["long"].param == "input" and "no room" in (found["long"].error or "")
    assert found["short"].finish == "stop"


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


def test_a_job_that_raises_ends_alone() -> None:
    jobs = JobEngine(Worker())
    jobs.submit(JobRequest(id="bad", values={"raise": 1}))
    jobs.submit(JobRequest(id="good"))
    with pytest.raises(OstroError, match="KeyError: 'no such job'"):
        jobs.submit(JobRequest(id="refused", values={"raise": "at once"}))
    found = results(jobs)
    assert found["bad"].finish == "error" and "ZeroDivisionError" in (found["bad"].error or "")
    assert found["good"].finish == "stop"


def test_failures_of_one_sub_engine_leave_the_others_running(llama: Subject) -> None:
    engine = llama.engine()
    reader = PoolingEngine(
        engine.runner, MEAN, vocab=engine.vocab, context=engine.context, max_rows=40
    )
    multi = MultiModelEngine(
        {"m": ModelEntry(tokens=engine, reader=reader, jobs=JobEngine(Worker()))}
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


# In a process of its own


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
