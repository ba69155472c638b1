"""The memory of steps: the largest ones run, and what they take is kept from the caches.

The counters of CUDA's allocator are replaced; the CPU stands for the GPU.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from ostro.core.device import free_bytes
from ostro.core.engine.buckets import Buckets
from ostro.core.engine.runner import ModelRunner
from ostro.core.engine.startup import profile, start
from ostro.core.engine.startup.build import reserve_adapters
from ostro.core.errors import InsufficientMemory
from ostro.core.messages.commands import ModelSpec
from ostro.core.settings import Settings
from ostro.plugins.conformance.parity import Subject

CPU = torch.device("cpu")


class Gpu:
    """A stand-in for a GPU: the counters of its allocator, and the steps that run."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.steps, self.captured, self.peak = list[tuple[int, int]](), list[int](), 0
        patch.setattr(profile, "gpus_of", lambda loaded: [CPU])
        patch.setattr(profile, "ROWS", {"cpu": 48})
        patch.setattr(torch.cuda, "memory_reserved", lambda device: 1000)
        patch.setattr(torch.cuda, "max_memory_reserved", lambda device: self.peak)
        patch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
        run, capture = ModelRunner.forward, Buckets.capture_sizes

        def note_step(runner: ModelRunner, plan: Any) -> Any:
            draws = sum(chunk.draws for chunk in plan.chunks)
            self.steps.append((sum(chunk.count for chunk in plan.chunks), draws))
            self.peak = 5000 + sum(g.kind.bytes(g.pool.size) for g in runner.blocks.all)
            return run(runner, plan)

        def note_capture(buckets: Any, runner: ModelRunner, sizes: Any, **options: Any) -> Any:
            self.captured += sizes
            return capture(buckets, runner, sizes, **options)

        patch.setattr(ModelRunner, "forward", note_step)
        patch.setattr(Buckets, "capture_sizes", note_capture)


def test_the_largest_steps_run(llama: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, settings = Gpu(monkeypatch), Settings(max_seqs=4, replay=True)
    loaded = llama.load()
    context, explain = loaded.context, list(loaded.explain)
    pool = reserve_adapters(loaded, settings, 48)
    assert profile.step_bytes(loaded, settings, llama.plugins, pool) == Counter({CPU: 4000})
    assert gpu.steps == [(48, 4)] and gpu.captured == [64, 4]
    assert loaded.context == context
    assert loaded.explain == [*explain, "memory: steps take up to 4.00 KB on cpu"]


def test_a_step_that_does_not_fit_refuses_the_model(
    llama: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    Gpu(monkeypatch)
    loaded, settings = llama.load(), Settings(max_seqs=4)

    def fail(*arguments: Any, **options: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")

    monkeypatch.setattr(profile, "build_engine", fail)
    with pytest.raises(InsufficientMemory, match=r"Tried to allocate 2 GiB.*--quant"):
        profile.step_bytes(loaded, settings, llama.plugins, reserve_adapters(loaded, settings, 48))


def test_caches_leave_room_for_steps(llama: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = list[int]()
    for taken in (0, 1 << 20):
        monkeypatch.setattr(start, "step_bytes", lambda *given, n=taken: Counter({CPU: n}))
        loaded = llama.load()
        [entry] = start.build_entries(
            [loaded], [ModelSpec(Settings(memory="0.5"))], llama.plugins, lambda device: 3 << 20
        )
        assert entry.tokens is not None
        groups = entry.tokens.blocks.all
        sizes.append(sum(group.kind.bytes(group.pool.size) for group in groups))
        entry.close()
    assert sizes[1] <= 1 << 20 < sizes[0] <= 3 << 19


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_steps_of_a_gpu_are_measured(llama: Subject) -> None:
    loaded, spec = llama.load(device="cuda"), ModelSpec(Settings(max_seqs=8, memory="1GB"))
    [entry] = start.build_entries([loaded], [spec], llama.plugins, free_bytes)
    start.make_entry_ready(entry)
    assert entry.tokens is not None and [*entry.tokens.runner.decode_buckets.plain] == [8, 4, 2, 1]
    assert any(line.startswith("memory: steps take up to") for line in loaded.explain)
    entry.close()
