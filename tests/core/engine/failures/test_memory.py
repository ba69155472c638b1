"""Steps that run out of memory: their requests run again in smaller steps."""

from __future__ import annotations

from typing import Any
from weakref import ref

import pytest
import torch
from tiny.failing import LONG, Build, Fault, ask, error_of, idle, run, tokens_of

from ostro.core.failure import is_out_of_memory
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


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("no room"), MemoryError("no room"), RuntimeError(CPU)]
)
def test_requests_run_in_smaller_steps(llama: Subject, engine_of: Build, error: Exception) -> None:
    engine = engine_of(llama, rows=128)
    prompts = [llama.prompt[i : i + 40] for i in range(3)]
    wanted = greedy(engine_of(llama), prompts, LONG)
    memory = SmallMemory(engine.runner.model, 32, error)
    found = run(engine, *(ask(str(i), prompt) for i, prompt in enumerate(prompts)))
    assert [tokens_of(found[str(i)]) for i in range(3)] == wanted
    # The bucket of 60 rows computes 64, that of the next step 32.
    bucket = 64 if engine.runner.poisons else 60
    assert [rows for rows in memory.seen if rows > 32] == [120, bucket]
    idle(engine)


def test_the_tensors_of_a_failed_step_are_freed(llama: Subject, engine_of: Build) -> None:
    engine, tensors, alive = engine_of(llama, rows=32), list["ref[torch.Tensor]"](), list[bool]()
    real, free = engine.runner.model.hidden, engine.runner.free_memory

    def fail(step: Step) -> Any:
        large = torch.zeros(9)
        tensors.append(ref(large))
        engine.runner.model.hidden = real  # type: ignore[method-assign]
        raise torch.OutOfMemoryError("no room")

    def note() -> None:
        free()
        alive.extend(tensor() is not None for tensor in tensors)

    engine.runner.model.hidden = fail  # type: ignore[method-assign]
    engine.runner.free_memory = note  # type: ignore[method-assign]
    run(engine, ask("a", llama.prompt[:20]))
    assert alive == [False]
    idle(engine)


@pytest.mark.parametrize(
    ("text", "is_memory"),
    [
        ("CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`", True),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("CUDA error: an illegal memory access was encountered", False),
    ],
)
def test_errors_of_cuda_for_want_of_memory_are_known(text: str, is_memory: bool) -> None:
    assert is_out_of_memory(RuntimeError(text)) == is_memory


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 1])
def test_a_small_step_is_tried_once_more(llama: Subject, engine_of: Build, at: int) -> None:
    """After one error no request fails. What is only cached has been freed by then."""
    engine, prompts = engine_of(llama, rows=32), [llama.prompt[:20], llama.prompt[5:25]]
    wanted = greedy(engine_of(llama), prompts, LONG)
    engine.runner.features.put(b"image", (torch.zeros(8, 4),))
    Fault(engine.runner.model, "hidden", torch.OutOfMemoryError("no room"), at)
    found = run(engine, ask("a", prompts[0]), ask("b", prompts[1]))
    assert [tokens_of(found[id]) for id in "ab"] == wanted
    assert engine.scheduler.step_rows == 32 and not engine.scheduler.retried
    assert not engine.runner.features.entries and not engine.runner.features.nbytes
    idle(engine)


@pytest.mark.slow
def test_steps_grow_again(llama: Subject, engine_of: Build) -> None:
    engine, prompt = engine_of(llama, rows=34), llama.prompt[:34]
    Fault(engine.runner.model, "hidden", MemoryError("no room"))
    run(engine, ask("a", prompt))
    assert 17 < engine.scheduler.step_rows < 19
    for _ in range(64 * 17 // LONG + 1):
        run(engine, ask("a", prompt))
    assert engine.scheduler.step_rows == 34


@pytest.mark.slow
def test_requests_fail_if_smaller_steps_do_not_help(llama: Subject, engine_of: Build) -> None:
    engine = engine_of(llama, rows=128)
    wanted = greedy(engine_of(llama), [llama.prompt[:40]], LONG)
    memory = SmallMemory(engine.runner.model, 0, MemoryError("no room"))
    found = run(engine, ask("a", llama.prompt[:40]), ask("b", llama.prompt[5:45]))
    assert all("ran out of memory" in error_of(found[id]) for id in "ab")
    idle(engine)
    memory.rows = 1000
    assert tokens_of(run(engine, ask("good", llama.prompt[:40]))["good"]) == wanted[0]
