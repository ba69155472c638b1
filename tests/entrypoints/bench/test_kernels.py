"""`ostro tune --kernels`: which calls are measured, the choice among candidates, and its use.

The kernels of CUDA run in Triton's interpreter, and a fake timer says which parameters are fast.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny.cuda_kernels import cuda_kernels

from ostro.core.engine.engine import Engine
from ostro.core.engine.startup import build
from ostro.core.messages.requests import Sampling, TokenRequest
from ostro.core.ops import launch
from ostro.core.ops.attention import triton as attention
from ostro.core.ops.attention.tiles import Tiles
from ostro.core.ops.grouped_matmul import triton as grouped_matmul
from ostro.core.ops.grouped_matmul.triton import GroupedTile
from ostro.core.plugins.manager import PluginManager
from ostro.entrypoints.bench import kernels
from ostro.entrypoints.bench.kernels import Call, KernelTuner, KernelTuning, Site
from ostro.plugins.conformance.parity import subject

FAST = (Tiles(16, 64, 4, 2), GroupedTile(16, 32, 64, 1, 4, 2))
"""Parameters of attention, and of products of experts."""


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """A tiny model with experts, the kernels for CUDA, and a small cache."""
    plugins = PluginManager()
    plugins.load()
    tiny = plugins.get("architectures", "qwen3_moe").conformance.tiny
    config = {**tiny, "max_position_embeddings": 64}
    with cuda_kernels(), subject(plugins, "qwen3_moe", config=config) as made:
        loaded = made.load(dtype="float16")
        engine = made.engine(loaded, rows=48, blocks=16, dtype="float16")
        build.make_ready(engine, loaded, lazily=True)
        yield engine


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps, and two candidates of each kind, one of them in FAST."""
    monkeypatch.setattr(kernels, "STREAMS", (1,))
    monkeypatch.setattr(kernels, "PROMPTS", (5,))
    monkeypatch.setattr(kernels, "DEPTH", 3)
    for module, fast in zip((attention, grouped_matmul), FAST, strict=True):
        sizes = [fast, fast._replace(warps=8)]
        monkeypatch.setattr(module, "candidate_tiles", lambda *_, sizes=sizes: sizes)


class FakeTuner(KernelTuner):
    """All calls of a site take a second together, and half of it with parameters of FAST."""

    def __init__(self, engine: Engine, seconds: float = 100, **options: Any) -> None:
        super().__init__(engine, seconds=seconds, progress=lambda *_: None, **options)
        self.timed = list[str]()

    def seconds(self, site: Site, parameters: tuple[Any, ...]) -> float:
        self.timed.append(site.op)
        return 0.5 if parameters in FAST else 1.0


def summary(found: KernelTuning) -> list[tuple[str, str, int, bool]]:
    """For each result its step, its operation, the number of its calls, and whether FAST won."""
    return [
        (name, each.site.op, len(each.site.calls), each.chosen in FAST)
        for name, results in found.steps.items()
        for each in results
    ]


@pytest.mark.usefixtures("few")
def test_the_fastest_parameters_are_chosen(engine: Engine) -> None:
    kernels_before = [op.kernel for op in kernels.operations(engine.runner.model)]
    found = FakeTuner(engine).run()
    assert found.complete
    # Three layers, two of them with experts and their two products.
    assert summary(found) == [
        ("decode, batch of 1", "attention", 3, True),
        ("decode, batch of 1", "grouped_matmul", 2, True),
        ("decode, batch of 1", "grouped_matmul", 2, True),
        ("prompt of 5", "attention", 3, True),
        ("prompt of 5", "grouped_matmul", 2, True),
        ("prompt of 5", "grouped_matmul", 2, True),
    ]
    result = found.steps["decode, batch of 1"][0]
    assert (result.default_seconds, result.seconds, result.tried) == (1.0, 0.5, 2)
    assert [op.kernel for op in kernels.operations(engine.runner.model)] == kernels_before
    assert all(group.pool.used == 0 for group in engine.runner.blocks.groups)


@pytest.mark.usefixtures("few")
def test_later_runs_use_what_was_chosen(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = FakeTuner(engine).run()
    launch.write(tmp_path / "x1.json", "X1", found.chosen)
    monkeypatch.setattr(launch, "measured", lambda _: launch.read(tmp_path / "x1.json"))
    used, launched = list[Any](), grouped_matmul.launch

    def note(x: Any, weight: Any, experts: Any, tile: Any) -> Any:
        used.append(tile)
        return launched(x, weight, experts, tile)

    monkeypatch.setattr(grouped_matmul, "launch", note)
    engine.submit(TokenRequest(id="1", tokens=[3, 4, 5, 6, 7], sampling=Sampling(max_tokens=2)))
    engine.drain()
    assert used and set(used) == {FAST[1]}


@pytest.mark.usefixtures("few")
def test_no_call_is_measured_twice(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "PROMPTS", (1,))
    steps = FakeTuner(engine).run().steps
    assert steps["decode, batch of 1"] and not steps["prompt of 1"]


def test_decode_steps_have_tokens_before_them(engine: Engine) -> None:
    sites = FakeTuner(engine).record(3, 20, 1)
    [calls] = [site.calls for site in sites.values() if site.op == "attention"]
    batches = [each for call in calls for each in call.arguments if hasattr(each, "lengths")]
    assert len(batches) == 3 and all(batch.lengths.tolist() == [21] * 3 for batch in batches)


def test_a_call_may_look_up_several_parameters() -> None:
    """One of them is measured, with the defaults of the others."""

    def kernel() -> tuple[int, int]:
        return tuple(  # type: ignore[return-value]
            launch.launch_parameters(op, (), (1,), lambda: [])[0] for op in ("first", "second")
        )

    site = Site("second", (), (1,), lambda: [(5,)], [Call(kernel, (), {})] * 2)
    assert site.run((5,)) == [(1, 5)] * 2
    assert site.run((5,), site.calls[:1]) == [(1, 5)]


def test_candidates_are_compiled_without_garbage_collection() -> None:
    """Threads parse kernels meanwhile, see `collection_off`."""
    collects = list[bool]()
    call = Call(lambda: collects.append(gc.isenabled()), (), {})
    site = Site("op", (), (1,), lambda: [(1,), (5,)], [call])
    assert kernels.compile_candidates([site], torch.device("cpu")) == {site.place: [(5,)]}
    assert collects == [sys.version_info >= (3, 12)] and gc.isenabled()


def test_storages_have_operations_too() -> None:
    plugins = PluginManager()
    plugins.load()
    tiny = plugins.get("architectures", "llama").conformance.tiny
    with subject(plugins, "llama", config={**tiny, "tie_word_embeddings": True}) as made:
        ops = kernels.operations(made.load(quant="q8_0").model)
    assert {"attention", "rms_norm", "matmul", "dequantize"} <= {op.name for op in ops}
    assert len({id(op) for op in ops}) == len(ops), "the head is the embedding"


@pytest.mark.usefixtures("few")
def test_what_computes_something_else_is_not_chosen(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Site.run

    def wrong(site: Site, parameters: tuple[Any, ...], calls: Any = None) -> list[Any]:
        results = run(site, parameters, calls)
        factor = 1.1 if parameters in FAST else 1.001
        return [result * factor for result in results]

    monkeypatch.setattr(Site, "run", wrong)
    found = FakeTuner(engine).run()
    assert found.complete and not any(fast for *_, fast in summary(found))
    assert {each.tried for step in found.steps.values() for each in step} <= {0, 1}


@pytest.mark.usefixtures("few")
def test_what_does_not_compile_is_not_measured(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Site.run

    def refused(site: Site, parameters: tuple[Any, ...], calls: Any = None) -> list[Any]:
        if parameters in FAST:
            raise ValueError("out of resources")
        return run(site, parameters, calls)

    monkeypatch.setattr(Site, "run", refused)
    found = FakeTuner(engine).run()
    assert found.complete and not any(fast for *_, fast in summary(found))


@pytest.mark.usefixtures("few")
def test_small_gains_do_not_count(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "GAIN", 0.4)
    assert not any(fast for *_, fast in summary(FakeTuner(engine).run()))


@pytest.mark.usefixtures("few")
def test_a_gain_must_show_twice(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of two measurements of the same parameters is often slower."""
    measured = Counter[Any]()

    def slower_later(tuner: KernelTuner, site: Site, parameters: tuple[Any, ...]) -> float:
        measured[site.place, parameters] += 1
        return 0.5 if parameters in FAST and measured[site.place, parameters] == 1 else 1.0

    monkeypatch.setattr(FakeTuner, "seconds", slower_later)
    assert not any(fast for *_, fast in summary(FakeTuner(engine).run()))
    assert max(measured.values()) == 2


@pytest.mark.usefixtures("few")
def test_the_time_limit(engine: Engine) -> None:
    now = iter(range(1000))
    tuner = FakeTuner(engine, seconds=8, clock=lambda: next(now))
    found = tuner.run()
    assert not found.complete and list(found.steps) == ["decode, batch of 1"]
    assert 0 < len(tuner.timed) < 15, "three sites are timed five times each"


@pytest.mark.usefixtures("few")
def test_fewer_tokens_if_the_cache_is_small(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "STREAMS", (5,))
    monkeypatch.setattr(kernels, "PROMPTS", ())
    monkeypatch.setattr(kernels, "DEPTH", 60)
    monkeypatch.setattr(engine.scheduler, "max_seqs", 5)
    tuner, depths = FakeTuner(engine), list[int]()
    record = tuner.record
    monkeypatch.setattr(
        tuner, "record", lambda n, depth, rows: depths.append(depth) or record(n, depth, rows)
    )
    found = tuner.run()
    assert depths[:2] == [60, 15] and found.steps["decode, batch of 5"]


def test_steps_are_those_that_the_engine_can_run(engine: Engine) -> None:
    names = [name for name, *_ in FakeTuner(engine).steps()]
    assert names == [
        *(f"decode, batch of {n}" for n in (1, 2, 4, 8, 16, 32, 64) if n <= 32),
        *(f"prompt of {n}" for n in (16, 32)),
    ]
