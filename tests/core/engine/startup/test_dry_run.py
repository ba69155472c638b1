"""Dry runs of a model's first steps, which compile its kernels: when they run and what they leave.

What threads compile is in `test_kernel_compiler.py` and `test_compilation.py`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tiny.bert import make_bert
from tiny.model import make_model

from ostro.core.engine.draft_length import StepCosts
from ostro.core.engine.engine import Engine
from ostro.core.engine.graphs import DryGraphs
from ostro.core.engine.startup import compilation, profile, start
from ostro.core.engine.startup.compilation import compile_kernels, run_all, run_smallest
from ostro.core.engine.startup.warm_up import make_ready, warm_up
from ostro.core.load.model import LoadedModel
from ostro.core.messages.commands import ModelSpec
from ostro.core.messages.requests import Sampling, TokenRequest
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.plugins.conformance.parity import Subject

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
DECODES = (8, 4, 2, 1)
COMPILER = "ostro.core.engine.startup.kernel_compiler"

Steps = Callable[[], object]


class FakeCompiler(ModuleType):
    """In place of the compiler: notes the number of steps' calls; `count` kernels are new."""

    def __init__(self, count: int = 1) -> None:
        super().__init__(COMPILER)
        self.count, self.calls = count, 0

    def compile_launched(self, steps: Steps) -> int:
        self.calls += 1
        steps()
        return self.count


def never() -> None:
    raise AssertionError("a dry run")


@pytest.mark.parametrize("count", [0, 3])
def test_kernels_of_a_gpu_are_compiled(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = list[int]()
    monkeypatch.setitem(sys.modules, COMPILER, FakeCompiler(count))
    assert compile_kernels(lambda: ran.append(1), GPU) == (count > 0)
    assert ran == [1]


def test_nothing_runs_without_a_gpu_or_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, COMPILER, FakeCompiler())
    assert not compile_kernels(never, CPU)
    monkeypatch.setitem(sys.modules, COMPILER, None)  # its import raises ImportError
    assert not compile_kernels(never, GPU)


def test_a_dry_run_that_fails_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Steps may fail with zeros only; if they fail with other numbers too, they raise again."""
    monkeypatch.setitem(sys.modules, COMPILER, FakeCompiler())
    with caplog.at_level(logging.WARNING):
        assert not compile_kernels(lambda: 1 // 0, GPU)
    assert "kernels are compiled one after the other: ZeroDivisionError" in caplog.text


def tokens_of(engine: Engine, **options: Any) -> list[int]:
    rules = Sampling(temperature=0, max_tokens=12, ignore_eos=True)
    engine.submit(TokenRequest(id="a", tokens=[3, 4, 5, 3, 4, 5, 3, 4], sampling=rules))
    return [token for output in engine.drain() for token in output.tokens]


@pytest.mark.parametrize("replay", [False, True])
def test_a_dry_run_leaves_nothing(llama: Subject, replay: bool) -> None:
    loaded = llama.load()
    loaded.draft = llama.load()
    options = {"rows": 40, "blocks": 64, "max_seqs": 4, "replay": replay}
    wanted = tokens_of(llama.engine(llama.load(), **options))
    engine = llama.engine(loaded, speculate="draft", **options)
    speculation, runners = engine.scheduler.speculation, engine.runners
    assert speculation is not None and len(runners) == 2
    graphs = [runner.graphs for runner in runners]
    free = [group.pool.available for group in engine.blocks.all]
    for run in (lambda: run_smallest(engine, loaded), lambda: run_all(engine, warm=True)):
        run()
        assert [runner.graphs for runner in runners] == graphs
        assert not any(b.plain or b.mixed for runner in runners for b in runner.buckets)
        assert speculation.costs.curve == StepCosts().curve and not speculation.costs.draft.begun
        assert [group.pool.available for group in engine.blocks.all] == free
        assert not engine.busy and not engine.counters.steps
    make_ready(engine, loaded)
    warm_up(engine)
    assert tokens_of(engine) == wanted
    assert bool(engine.runner.prompt_buckets.plain) == replay


@pytest.mark.parametrize(
    ("run", "before", "wanted", "after"),
    [
        (lambda engine, loaded: run_all(engine, warm=False), ([], []), [64, 32, 16, *DECODES], []),
        # Prompts of 2 and 17 tokens, and two draws.
        (
            lambda engine, loaded: run_all(engine, warm=True),
            ([], []),
            [64, 32, 16, *DECODES],
            [16, 1, 32, 1],
        ),
        # The probe of the target is BOS and a token.
        (run_smallest, ([2], [1]), [1], []),
    ],
    ids=["all", "warm", "smallest"],
)
def test_steps_of_a_dry_run(
    run: Callable[[Engine, LoadedModel], None],
    before: tuple[list[int], list[int]],
    wanted: list[int],
    after: list[int],
    llama: Subject,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows of steps: those that are captured later, each once, the largest first; also those of a
    draft model. Then the warm-up.
    """
    loaded = llama.load()
    loaded.draft = llama.load()
    engine = llama.engine(loaded, speculate="draft", rows=40, blocks=64, max_seqs=4, replay=True)
    sizes = dict[str, list[int]]()
    for name, runner in zip(("target", "draft"), engine.runners, strict=True):
        model = runner.model

        def note(step: Any, name: str = name, hidden: Any = model.hidden) -> Any:
            sizes.setdefault(name, []).append(len(step.tokens))
            return hidden(step)

        monkeypatch.setattr(model, "hidden", note)
    run(engine, loaded)
    first, second = before
    assert sizes == {"target": [*first, *wanted, *after], "draft": [*second, *wanted]}


def test_dry_graphs_run_a_call_once() -> None:
    calls, graphs = list[int](), DryGraphs()
    launch = graphs.capture(lambda: calls.append(1), CPU)
    assert calls == [1] and not graphs.refused
    launch()
    assert calls == [1, 1]


class Order:
    """The order of the dry runs and of the steps of a start."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, new: bool) -> None:
        self.events = list[str]()
        for module in (compilation, start, profile):
            monkeypatch.setattr(module, "compile_kernels", self.compile)
        for name in ("make_ready", "make_pooling_ready", "refresh"):
            monkeypatch.setattr(start, name, self.noted(name, getattr(start, name)))
        self.new = new

    def compile(self, steps: Steps, device: torch.device) -> bool:
        self.events.append("dry run")
        steps()
        return self.new

    def noted(self, name: str, function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            self.events.append(name)
            return function(*arguments, **options)

        return call


@pytest.mark.parametrize(
    ("task", "new", "wanted"),
    [
        ("text", True, ["dry run", "dry run", "make_ready"]),
        ("text", False, ["dry run", "make_ready"]),
        ("embed", True, ["dry run", "dry run", "make_pooling_ready"]),
        ("embed", False, ["dry run", "make_pooling_ready"]),
    ],
)
def test_dry_runs_come_first(
    task: str,
    new: bool,
    wanted: list[str],
    tmp_path: Path,
    plugins: PluginManager,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second one, of all steps, is left out if the small step needs no new kernel."""
    make_model(tmp_path) if task == "text" else make_bert(tmp_path)
    order = Order(monkeypatch, new)
    spec = ModelSpec(Settings(reference=str(tmp_path), task=task, dtype="float32", threads=1))
    engine, _ = start.open_engine([spec], plugins, lambda *_: None)
    assert order.events == wanted
    engine.close()


def test_new_formats_are_compiled_first(llama: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, spec = (
        llama.load(),
        ModelSpec(Settings(task="text", dtype="float32", memory="0.2", max_seqs=2)),
    )
    [entry] = start.build_entries([loaded], [spec], llama.plugins, lambda device: 1 << 28)
    order = Order(monkeypatch, new=False)
    start.change_formats(entry, llama.plugins, "q8_0", None, lambda *_: None)
    assert order.events == ["dry run", "refresh"]
    entry.close()


@pytest.mark.parametrize("task", ["text", "embed"])
def test_the_check_of_float16_compiles_first(
    task: str, llama: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, loaded = Order(monkeypatch, new=False), llama.load(dtype="float16")
    assert not start.overflows(loaded, Settings(task=task, memory="0.2"), llama.plugins)
    assert order.events == ["dry run"]


def test_the_largest_steps_are_compiled_before_they_are_measured(
    llama: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = list[str]()
    monkeypatch.setattr(profile, "gpus_of", lambda loaded: [CPU])
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 1 << 40)
    monkeypatch.setattr(
        torch.cuda, "reset_peak_memory_stats", lambda device: events.append("reset")
    )

    def compile(steps: Steps, device: torch.device) -> bool:
        events.append("dry run")
        steps()
        return True

    run = profile.run_largest_steps

    def note(engine: Engine) -> None:
        dry = isinstance(engine.runner.graphs, DryGraphs)
        events.append("steps without captures" if dry else "steps")
        run(engine)

    monkeypatch.setattr(profile, "compile_kernels", compile)
    monkeypatch.setattr(profile, "run_largest_steps", note)
    loaded, settings = llama.load(), Settings(max_seqs=2, replay=True)
    pool = start.reserve_adapters(loaded, settings)
    assert isinstance(loaded, LoadedModel)
    profile.step_bytes(loaded, settings, llama.plugins, pool)
    assert events == ["dry run", "steps without captures", "reset", "steps"]
