"""Profiles of `ostro bench --profile`: the time of each kernel in a step.

On a GPU the kernels are those that it runs, as torch's profiler reports them. On a CPU they are the
operations of the model, timed by call.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from ostro.core.device import current_device
from ostro.core.engine.engine import Engine
from ostro.core.engine.scheduler import Chunk
from ostro.entrypoints.bench.figures import KernelTime, StepProfile
from ostro.entrypoints.bench.steps import (
    operations,
    prepared_step,
    run_step,
    storages,
    wrapped_methods,
)

STEPS = 5
"""The profiled steps, after one that is not."""
OTHERS = "other operations of torch, and Python"


def profile_prompt(engine: Engine, *, prompt: int, depth: int) -> StepProfile | None:
    """The profile of the last step of a prompt after `depth` tokens in the cache.

    None if the cache has no room for it.
    """
    rows = min(prompt, engine.scheduler.max_rows)
    before = depth + prompt - rows
    return profile_step(engine, f"prompt of {rows} tokens, {before} in the cache", 1, before, rows)


def profile_decode(engine: Engine, *, sequences: int, depth: int) -> StepProfile | None:
    """The profile of a decode step of sequences with `depth` tokens each; None as above."""
    name = f"decode, batch of {sequences}, {depth} tokens each in the cache"
    return profile_step(engine, name, sequences, depth, 1)


@torch.inference_mode()
def profile_step(
    engine: Engine, name: str, sequences: int, depth: int, rows: int
) -> StepProfile | None:
    """The profile of a step up to its logits; see `prepared_step`."""
    with (
        current_device(engine.runner.device),
        prepared_step(engine, sequences, depth, rows) as chunks,
    ):
        return StepProfile(step=name, kernels=kernel_times(engine, chunks)) if chunks else None


def kernel_times(engine: Engine, chunks: Sequence[Chunk]) -> list[KernelTime]:
    """The kernels of a step of these chunks, the slowest first."""
    run_step(engine.runner, chunks)
    times = gpu_times if engine.runner.device.type == "cuda" else cpu_times
    kernels = [
        KernelTime(name=name, calls=calls / STEPS, microseconds=1e6 * seconds / STEPS)
        for name, calls, seconds in times(engine, chunks)
        if seconds > 0
    ]
    return sorted(kernels, key=lambda kernel: -kernel.microseconds)


def gpu_times(engine: Engine, chunks: Sequence[Chunk]) -> list[tuple[str, int, float]]:
    """The name, the launches and the seconds of each kernel in all steps."""
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(STEPS):
            run_step(engine.runner, chunks)
        torch.cuda.synchronize()
    averages = recorded.key_averages()
    return [(each.key, each.count, 1e-6 * each.self_device_time_total) for each in averages]


def cpu_times(engine: Engine, chunks: Sequence[Chunk]) -> list[tuple[str, int, float]]:
    """The name, the calls and the seconds of each operation in all steps, and of all else."""
    model, watch = engine.runner.model, Stopwatch()
    # Storages of weights that are not quantized multiply without an operation.
    targets = [(op, "kernel") for op in operations(model)]
    targets += [(storage, "matmul") for storage in storages(model)]
    with wrapped_methods(targets, watch.timed):
        begin = perf_counter()
        for _ in range(STEPS):
            run_step(engine.runner, chunks)
        total = perf_counter() - begin
    times = [(name, watch.calls[name], seconds) for name, seconds in watch.seconds.items()]
    return [*times, (OTHERS, STEPS, total - sum(watch.seconds.values()))]


class Stopwatch:
    """The calls of functions and their seconds, without those of other timed functions in them."""

    def __init__(self) -> None:
        self.calls, self.seconds = Counter[str](), defaultdict[str, float](float)
        self.nested = 0.0

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The function; its calls are counted under its module and name."""
        name = f"{call.__module__}:{call.__qualname__}".removeprefix("ostro.")

        def run(*arguments: Any, **options: Any) -> Any:
            outer, self.nested = self.nested, 0.0
            begin = perf_counter()
            try:
                return call(*arguments, **options)
            finally:
                elapsed = perf_counter() - begin
                self.calls[name] += 1
                self.seconds[name] += elapsed - self.nested
                self.nested = outer + elapsed

        return run
