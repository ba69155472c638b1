"""Steps that raise end their requests; others and the engine go on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from tiny.adapters import adapter
from tiny.failing import (
    LONG,
    Build,
    Fault,
    ask,
    error_of,
    idle,
    outputs_of,
    run,
    tokens_of,
)

from ostro.core.engine.engine import Engine
from ostro.core.errors import OstroError
from ostro.core.failure import Failures
from ostro.core.messages.requests import AdapterRef
from ostro.plugins.conformance.parity import Subject, greedy


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("error", "calls", "message"),
    [
        (RuntimeError("boom"), 1, "could not compute this request: RuntimeError: boom"),
        (SystemExit("boom"), 1, "could not compute this request: RuntimeError: .*sys.exit.boom"),
        (torch.OutOfMemoryError("no room"), 2, "ran out of memory .*no room.*--memory"),
        (MemoryError("no room"), 2, "ran out of memory .*no room.*--memory"),
    ],
)
def test_a_step_that_raises_ends_its_requests_alone(
    llama: Subject, engine_of: Build, error: BaseException, calls: int, message: str
) -> None:
    """The first step has only rows of "bad"; "good" waits in the queue."""
    engine, prompts = engine_of(llama, rows=32), [llama.prompt[:40], llama.prompt[5:45]]
    wanted = greedy(engine_of(llama), prompts, LONG)
    Fault(engine.runner.model, "hidden", error, *range(calls))
    found = run(engine, ask("bad", prompts[0]), ask("good", prompts[1]))
    assert found["bad"][-1].kind in ("StepFailed", "Overloaded")
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
    Fault(engine.runner.sampler, "add", RuntimeError("no room"))
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
    sample = engine.runner.sample

    def lose(launched: Any) -> None:
        sample(launched)
        Fault(launched.drawn, "wait", MemoryError("no room"))
        engine.runner.sample = sample  # type: ignore[method-assign]

    engine.runner.sample = lose  # type: ignore[method-assign]
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


def spots(engine: Engine) -> dict[str, tuple[Any, str]]:
    """Methods by name: of the sampler, of a cache kind, and of what plans and counts."""
    return {
        "draw": (engine.runner.sampler, "draw"),
        "view": (engine.blocks.groups[0].kind, "view"),
        "needs_block": (engine.blocks.groups[0].kind, "needs_block"),
        "grow": (engine.blocks, "grow"),
        "plan": (engine.scheduler, "plan"),
        "launched": (engine.scheduler, "mark_launched"),
        "publish": (engine.scheduler, "publish"),
        "remove": (engine.scheduler, "remove"),
    }


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "spot", ["draw", "view", "needs_block", "grow", "plan", "launched", "publish", "remove"]
)
@pytest.mark.parametrize("at", [0, 5])
def test_no_error_of_a_step_ends_the_engine(
    llama: Subject, engine_of: Build, spot: str, at: int
) -> None:
    """Requests end once, with tokens or with an error; those after them get their tokens."""
    engine, prompts = engine_of(llama, rows=32), [llama.prompt[i : i + 40] for i in range(3)]
    wanted = greedy(engine_of(llama), prompts, 8)
    fault = Fault(*spots(engine)[spot], RuntimeError("boom"), at)
    found = run(engine, *(ask(str(i), prompt, 8) for i, prompt in enumerate(prompts)))
    rest = found
    while fault.calls <= at:
        rest = run(engine, ask("more", prompts[0], 8))
    outputs = [*found.values(), *rest.values()]
    failed = [each[-1] for each in outputs if each[-1].finish == "error"]
    assert failed and {each.kind for each in failed} == {"StepFailed"}
    for i in range(3):
        assert found[str(i)][-1].finish == "error" or tokens_of(found[str(i)]) == wanted[i]
    idle(engine)
    assert tokens_of(run(engine, ask("good", prompts[0], 8))["good"]) == wanted[0]
    idle(engine)


def test_an_error_of_the_device_ends_the_engine(
    llama: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that fails to synchronize after an error computes nothing more."""
    engine = llama.engine()
    engine.failures = Failures(device=torch.device("cuda"))

    def lost(device: object) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    Fault(engine.runner.model, "hidden", RuntimeError("boom"))
    engine.submit(ask("a", llama.prompt))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        engine.step()


def test_a_step_that_cannot_be_captured_leaves_no_outdated_capture(llama: Subject) -> None:
    """The second adapter adds tables to other modules; the next capture raises."""
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
    Fault(engine.runner.decode_buckets, "capture_sizes", RuntimeError("no room"))
    engine.submit(ask("bad", prompt, 8), mixture())
    assert "no room" in error_of(outputs_of(engine)["bad"])
    assert greedy(engine, [prompt], 8, [mixture()]) == wanted
    idle(engine)
    engine.close()
