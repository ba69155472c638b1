"""Steps that run out of memory: their requests run again in smaller steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny.failing import LONG, Build, Fault, ask, error_of, idle, run, tokens_of

from ostro.core.step import Step
from ostro.plugins.conformance.parity import Subject, greedy

CPU = "[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory"


class SmallMemory:
    """Replaces `hidden` of a model: steps of more than `rows` rows raise."""

    def __init__(self, model: Any, rows: int, error: Exception) -> None:
        self.real, self.rows, self.error = model.hidden, rows, error
        self.seen = list[int]()
        model.hidden = self

    def __call__(self, step: Step) -> Any:
        self.seen.append(len(step.tokens))
        if len(step.tokens) > self.rows:
            raise self.error
        return self.real(step)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("no room"), MemoryError("no room"), RuntimeError(CPU)]
)
def test_requests_run_in_smaller_steps(llama: Subject, engine_of: Build, error: Exception) -> None:
    engine = engine_of(llama, rows=128)
    prompts = [llama.prompt[i : i + 40] for i in range(3)]
    wanted = greedy(engine_of(llama), prompts, LONG)
    memory = SmallMemory(engine.runner.model, 30, error)
    found = run(engine, *(ask(str(i), prompt) for i, prompt in enumerate(prompts)))
    assert [tokens_of(found[str(i)]) for i in range(3)] == wanted
    assert [rows for rows in memory.seen if rows > 30] == [120, 60]
    idle(engine)


def test_steps_grow_again(llama: Subject, engine_of: Build) -> None:
    engine = engine_of(llama, rows=64)
    Fault(engine.runner.model, "hidden", MemoryError("no room"))
    run(engine, ask("a", llama.prompt[:40]))
    assert 20 < engine.scheduler.step_rows < 22
    for _ in range(64 * 44 // LONG + 1):
        run(engine, ask("a", llama.prompt[:40]))
    assert engine.scheduler.step_rows == 64


def test_requests_fail_if_smaller_steps_do_not_help(llama: Subject, engine_of: Build) -> None:
    engine = engine_of(llama, rows=128)
    wanted = greedy(engine_of(llama), [llama.prompt[:40]], LONG)
    memory = SmallMemory(engine.runner.model, 0, MemoryError("no room"))
    found = run(engine, ask("a", llama.prompt[:40]), ask("b", llama.prompt[5:45]))
    assert all("ran out of memory" in error_of(found[id]) for id in "ab")
    idle(engine)
    memory.rows = 1000
    assert tokens_of(run(engine, ask("good", llama.prompt[:40]))["good"]) == wanted[0]
