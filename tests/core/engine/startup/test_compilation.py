"""Kernels for CUDA: the warm-up compiles all that requests launch, and all steps are captured.
Before it, threads compile all that it launches.

Run as a script, this file prints the new kernels of one model, the kernels of a decode step, why
steps are not captured, or the kernels that threads compile.
The tests run it in a process of its own, where triton does not interpret kernels.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
import triton
from tiny.cuda_kernels import cuda_kernels, run_compiled
from tiny.empty_driver import empty_driver

from ostro.core.engine.engine import Engine
from ostro.core.engine.startup import build, compilation, profile, start, warm_up
from ostro.core.engine.startup.kernel_compiler import compile_launched
from ostro.core.load.model import LoadedModel
from ostro.core.messages.commands import ModelSpec
from ostro.core.messages.requests import Sampling, TokenRequest
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.entrypoints.bench.steps import prepared_step, run_step
from ostro.plugins.conformance.kernels import fill_memory, record_launches
from ostro.plugins.conformance.parity import subject

ROWS = 600
"""Rows of a step: fewer than some prompts have."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "quant"), [("llama", "q8_0"), ("qwen3_moe", ""), ("mamba2", ""), ("deepseek_v2", "")]
)
@pytest.mark.parametrize("loop", ["eager", "buckets"])
def test_requests_compile_nothing(name: str, quant: str, loop: str) -> None:
    launched, *new = run_compiled(__file__, "new_kernels", name, quant, loop, "30")
    assert int(launched) > 5
    assert not new


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "quant"),
    [("llama", "q4k"), ("gpt_oss", ""), ("qwen3_5_moe", ""), ("gemma4_moe", ""), ("bamba", "")],
)
def test_steps_with_prompts_can_be_captured(name: str, quant: str) -> None:
    """No kernel for CUDA and no module reads numbers on the host."""
    assert run_compiled(__file__, "refused", name, quant) == ["", ""]


@pytest.mark.slow
def test_parts_of_two_formats_take_two_launches() -> None:
    """Those of q, k and v of each layer; other products take two launches as well."""
    launched = Counter(run_compiled(__file__, "decode_launches", "llama", "q4k", "v_proj = q8_0"))
    layers = launched["attend"]
    assert launched["parts_kernel"] == layers == 2
    assert launched["integers_kernel"] == 3 * layers + 1
    assert launched["quantize_kernel"] == 4 * layers + 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "quant", "task", "speculate"),
    [
        ("llama", "q4k", "text", ""),
        ("llama", "", "text", "draft"),
        ("qwen3_moe", "", "text", ""),
        ("bamba", "", "", ""),
        ("bert", "", "embed", ""),
        ("qwen3", "", "embed", ""),
    ],
)
def test_threads_compile_all_kernels_of_a_start(
    name: str, quant: str, task: str, speculate: str
) -> None:
    """No step of the start waits for one; a second start has only the dry run of a small step."""
    threads, first, dry_runs, second = run_compiled(
        __file__, "start_kernels", name, quant, task, speculate
    )
    assert int(threads) > 0 and first == second == "0"
    assert dry_runs == ("1" if task else "2")  # of each engine


def start_kernels(name: str, quant: str, task: str, speculate: str) -> list[int]:
    """The number of kernels that threads compile for the start of a model, and of those that its
    steps compile themselves; the dry runs of a second start, and the kernels of its steps.
    """
    plugins = PluginManager()
    plugins.load()
    tiny = plugins.get("architectures", name).conformance.tiny
    config = {**tiny, "max_position_embeddings": 1024}
    options: dict[str, Any] = {"dtype": "bfloat16", "quant": quant or None, "replay": True}
    settings = Settings(**options, max_seqs=8, memory="0.2", task=task or None)
    settings = replace(settings, speculate=speculate or None)
    dry_runs, counts = list[int](), list[int]()

    def compile_kernels(steps: Callable[[], object], device: torch.device) -> bool:
        dry_runs.append(compile_launched(steps))
        return dry_runs[-1] > 0

    with (
        empty_driver(),
        fill_memory(0),
        cuda_kernels(),
        mock.patch.object(compilation, "compile_kernels", compile_kernels),
        subject(plugins, name, config=config) as made,
    ):
        loaded = made.load(**options)
        loaded.draft = made.load(**options) if speculate else None
        pool = build.reserve_adapters(loaded, settings, 64)
        with profile.small_engine(loaded, settings, plugins, pool) as engine:
            compile_kernels(lambda: profile.run_uncaptured(engine), loaded.device)
        for _ in range(2):
            before = len(dry_runs)
            [entry] = start.build_entries(
                [loaded], [ModelSpec(settings)], plugins, lambda device: 1 << 30
            )
            compilation.compile_entry(entry, warm=True)
            with mock.patch.object(start, "compile_entry"), new_kernels_of_triton() as new:
                start.make_entry_ready(entry)
            counts.append(len(new))
    return [sum(dry_runs), counts[0], len(dry_runs) - before, counts[1]]


@contextmanager
def new_kernels_of_triton() -> Iterator[list[str]]:
    """The names of the kernels that Triton compiles, or reads from files, in the context."""
    names = list[str]()
    triton.knobs.compilation.listener = lambda *, src, **_: names.append(src.name)
    try:
        yield names
    finally:
        triton.knobs.compilation.listener = None


def decode_launches(name: str, quant: str, topology: str) -> list[str]:
    """The Triton kernels that a decode step of a tiny model launches, in order."""
    with (
        record_launches("sm_90") as launches,
        opened(name, quant, "eager", topology) as (engine, _),
        prepared_step(engine, 1, 8, 1) as chunks,
        torch.inference_mode(),
    ):
        launches.clear()
        run_step(engine.runner, chunks)
    return [launch.split()[0].rpartition(":")[2] for launch in launches]


def refused(name: str, quant: str) -> list[str]:
    """Why steps with prompts and decode steps of a tiny model are not captured; "" if they are."""
    with record_launches("sm_90"), opened(name, quant, "buckets") as (engine, _):
        engine.runner.capture()
        return [buckets.refused for buckets in engine.runner.buckets]


def new_kernels(name: str, quant: str, loop: str, requests: str) -> list[str]:
    """The number of kernels that the warm-up of a tiny model compiles, and those that random
    requests compile afterwards.
    """
    with record_launches("sm_90") as launches, opened(name, quant, loop) as (engine, loaded):
        warm_up.make_ready(engine, loaded)
        warm_up.warm_up(engine)
        warm = set(launches)
        draw(engine, int(requests))
    return [str(len(warm)), *sorted(set(launches) - warm)]


@contextmanager
def opened(
    name: str, quant: str, loop: str, topology: str | None = None
) -> Iterator[tuple[Engine, LoadedModel]]:
    """An engine of a tiny model with the kernels for CUDA, and the model."""
    plugins = PluginManager()
    plugins.load()
    tiny = plugins.get("architectures", name).conformance.tiny
    config = {**tiny, "max_position_embeddings": 1024}
    with cuda_kernels(), subject(plugins, name, config=config) as made:
        settings: dict[str, Any] = {"dtype": "bfloat16", "quant": quant or None}
        settings |= {"replay": loop == "buckets", "topology": topology}
        loaded = made.load(**settings)
        yield made.engine(loaded, rows=ROWS, blocks=256, **settings), loaded


def draw(engine: Engine, requests: int) -> None:
    """Run random requests, some of them in one batch."""
    chance = random.Random(requests)
    for i in range(requests):
        rules = Sampling(
            temperature=chance.choice([0, 0, 1]),
            top_p=chance.choice([1, 0.9]),
            repetition_penalty=chance.choice([1, 1, 1.1]),
            logit_bias=chance.choice([{}, {}, {1: 2.0, 2: 1.0}]),
            max_tokens=chance.randrange(1, 4),
            ignore_eos=True,
        )
        length = chance.randrange(1, chance.choice([40, 700]))
        tokens = [chance.randrange(engine.vocab) for _ in range(length)]
        engine.submit(TokenRequest(id=str(i), tokens=tokens, sampling=rules))
        if chance.random() < 0.4:
            engine.drain()
    engine.drain()


SCRIPTS = new_kernels, refused, decode_launches, start_kernels

if __name__ == "__main__":
    called: Any = {each.__name__: each for each in SCRIPTS}
    print(*called[sys.argv[1]](*sys.argv[2:]), sep="\n")
