"""Models are loaded, replaced and unloaded while others serve: tiny models in one engine."""

from __future__ import annotations

import gc
import os
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tiny.model import change_weights, make_model, make_weights

from ostro.core.device import return_memory
from ostro.core.engine.models.multi_model import MultiModelEngine
from ostro.core.engine.startup import start
from ostro.core.engine.startup.start import open_engine
from ostro.core.errors import (
    CheckpointError,
    InsufficientMemory,
    ModelNotFound,
    NotFound,
    OstroError,
    UsageError,
)
from ostro.core.messages.commands import (
    Failed,
    FromEngine,
    LoadModel,
    ModelCommand,
    ModelResult,
    ModelSpec,
    RequantizeModel,
    UnloadModel,
)
from ostro.core.messages.outputs import TokenOutput
from ostro.core.messages.requests import Sampling, TokenRequest
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings

CONTEXT, LONG = 1024, 400
"""Tokens; a long request takes longer than a load."""


def spec(folder: Path, name: str = "a", **fields: Any) -> ModelSpec:
    options = {"dtype": "float32", "threads": 1, "context": CONTEXT, "max_seqs": 4, **fields}
    return ModelSpec(Settings(reference=str(folder), name=name, **options))


class Driven:
    """An engine whose steps the test runs; `tokens` are the outputs by request."""

    def __init__(self, engine: MultiModelEngine) -> None:
        self.engine = engine
        self.tokens: dict[str, list[int]] = {}
        self.finished = dict[str, str | None]()
        self.results: dict[str, ModelResult | Failed] = {}
        self.events: list[FromEngine] = []

    def submit(self, id: str, model: str = "a", count: int = 12) -> None:
        rules = Sampling(temperature=0, max_tokens=count, ignore_eos=True)
        self.engine.submit(TokenRequest(id=id, tokens=[3, 4, 5], model=model, sampling=rules))

    def send(self, command: ModelCommand) -> str:
        id = f"{len(self.results)} {time.monotonic_ns()}"
        self.engine.change_models(replace(command, id=id))
        return id

    def step(self) -> None:
        for output in self.engine.step():
            assert isinstance(output, TokenOutput)
            self.tokens.setdefault(output.id, []).extend(output.tokens)
            if output.finish is not None:
                self.finished[output.id] = output.finish
        for event in self.engine.events():
            self.events.append(event)
            if isinstance(event, ModelResult | Failed) and event.id is not None:
                self.results[event.id] = event

    def until(self, done: Callable[[], bool], pause: float = 0) -> None:
        deadline = time.monotonic() + 60
        while not done():
            assert time.monotonic() < deadline
            self.step()
            time.sleep(pause)  # the loader thread needs the interpreter

    def result(self, id: str) -> ModelResult:
        """The result of a command, once it has ended. Raises its error."""
        self.until(lambda: id in self.results, pause=0.002)
        result = self.results[id]
        if isinstance(result, Failed):
            raise result.error()
        return result

    def answer(self, id: str, model: str = "a") -> list[int]:
        self.submit(id, model)
        self.until(lambda: id in self.finished)
        return self.tokens[id]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models with different weights."""
    folders = [make_model(tmp_path_factory.mktemp(name)) for name in ("one", "other")]
    change_weights(folders[1], lm_head__weight=make_weights()["lm_head.weight"].flip(0))
    return folders


@pytest.fixture
def driven(folders: list[Path], plugins: PluginManager) -> Iterator[Driven]:
    engine, _ = open_engine([spec(folders[0])], plugins, lambda *news: None, warm=False)
    found = Driven(engine)
    yield found
    engine.close()


def test_a_model_is_loaded_while_another_serves(driven: Driven, folders: list[Path]) -> None:
    alone = driven.answer("alone")
    driven.submit("during", count=LONG)
    driven.step()
    result = driven.result(driven.send(LoadModel(model="b", spec=spec(folders[1], "b"))))
    assert list(result.models) == ["a", "b"] and result.models["b"].context == CONTEXT
    assert any("linear" in line for line in result.explain)
    assert len(driven.tokens["during"]) > 1, "the first model went on"
    driven.until(lambda: "during" in driven.finished)
    assert driven.tokens["during"][:12] == alone
    assert len(driven.answer("b", "b")) == 12
    assert driven.answer("again") == alone
    stages = {getattr(event, "model", None) for event in driven.events} - {None}
    assert stages == {"b"}, "its progress names the model"


def test_a_replaced_model_ends_its_requests(driven: Driven, folders: list[Path]) -> None:
    old = driven.answer("old")
    driven.submit("long", count=LONG)
    driven.step()
    driven.result(driven.send(LoadModel(model="a", spec=spec(folders[1]))))
    assert "long" not in driven.finished and len(driven.engine.retiring) == 1
    new = driven.answer("new")
    driven.until(lambda: "long" in driven.finished and not driven.engine.busy)
    assert driven.tokens["long"][:12] == old and driven.finished["long"] == "length"
    assert not driven.engine.retiring and len(driven.engine.registries) == 1
    assert new == driven.answer("newer") != old and len(driven.engine.entries) == 1


def test_a_reload_reads_the_files_again(driven: Driven) -> None:
    before, entry = driven.answer("before"), driven.engine.first
    driven.result(driven.send(LoadModel(model="a")))
    assert driven.engine.first is not entry and driven.engine.first.spec == entry.spec
    assert driven.answer("after") == before


@pytest.mark.slow
def test_requantize_is_a_load_in_other_formats(driven: Driven) -> None:
    driven.submit("long", count=LONG)
    driven.step()
    explain = driven.result(driven.send(RequantizeModel(model="a", quant="q8_0"))).explain
    assert any("Q8_0" in line for line in explain)
    assert "long" not in driven.finished
    driven.until(lambda: "long" in driven.finished)
    with pytest.raises(UsageError, match="nonsense"):
        driven.result(driven.send(RequantizeModel(model="a", quant="nonsense")))
    assert len(driven.answer("after")) == 12


def test_an_unloaded_model_ends_its_requests_and_is_freed(
    driven: Driven, folders: list[Path]
) -> None:
    driven.result(driven.send(LoadModel(model="b", spec=spec(folders[1], "b"))))
    driven.submit("long", "b", count=LONG)
    driven.step()
    loaded = driven.engine.entries["b"].loaded
    assert loaded is not None
    weights, model = weakref.ref(next(loaded.model.parameters())), weakref.ref(loaded.model)
    del loaded
    unload = driven.send(UnloadModel(model="b"))
    with pytest.raises(NotFound, match=r"^the model 'b' is not loaded$"):
        driven.submit("late", "b")
    driven.step()
    assert unload not in driven.results, "a request still runs"
    assert list(driven.result(unload).models) == ["a"]
    assert driven.finished["long"] == "length" and len(driven.tokens["long"]) == LONG
    assert weights() is None and model() is None
    with pytest.raises(NotFound):
        driven.send(UnloadModel(model="b"))


@pytest.mark.slow
def test_an_abort_lets_an_unloaded_model_go(driven: Driven, folders: list[Path]) -> None:
    driven.result(driven.send(LoadModel(model="b", spec=spec(folders[1], "b"))))
    driven.submit("long", "b", count=LONG)
    driven.step()
    unload = driven.send(UnloadModel(model="b"))
    driven.engine.abort("long")
    assert driven.engine.runnable
    driven.result(unload)
    assert not driven.engine.busy


@pytest.mark.slow
def test_the_last_model_may_go_and_come_back(driven: Driven, folders: list[Path]) -> None:
    before = driven.answer("before")
    assert driven.result(driven.send(UnloadModel(model="default"))).models == {}
    with pytest.raises(NotFound, match="'default' is not loaded"):
        driven.submit("nothing", "default")
    assert driven.engine.stats().models == {}
    driven.result(driven.send(LoadModel(model="a", spec=spec(folders[0]))))
    assert driven.answer("after", "default") == before


def test_the_memory_of_a_first_model_returns_without_a_collection(
    folders: list[Path], plugins: PluginManager
) -> None:
    """The engine process freezes the objects of its first models, which no collection visits."""
    engine, _ = open_engine([spec(folders[0])], plugins, lambda *news: None)
    driven = Driven(engine)
    driven.answer("a")
    assert (
        driven.engine.first.tokens is not None
        and driven.engine.first.tokens.runner.decode_buckets.plain
    )
    cache = weakref.ref(driven.engine.first.groups[0].kind)
    loaded = driven.engine.first.loaded
    assert loaded is not None
    weights = weakref.ref(next(loaded.model.parameters()))
    del loaded
    gc.collect()
    gc.disable()
    gc.freeze()
    try:
        driven.result(driven.send(UnloadModel(model="a")))
        assert weights() is None and cache() is None
    finally:
        gc.unfreeze()
        gc.enable()
    engine.close()


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("damage", "kind", "text"),
    [
        (lambda folder: shutil.rmtree(folder), ModelNotFound, "the model 'b': "),
        (lambda folder: (folder / "config.json").write_text("{"), OstroError, "config.json"),
        (
            lambda folder: (folder / "model.safetensors").write_bytes(b"\0" * 9),
            CheckpointError,
            "model.safetensors",
        ),
    ],
)
def test_a_bad_model_fails_alone_then_a_good_one_loads(
    driven: Driven,
    folders: list[Path],
    tmp_path: Path,
    damage: Callable[[Path], Any],
    kind: type[OstroError],
    text: str,
) -> None:
    bad = shutil.copytree(folders[1], tmp_path / "bad")
    damage(bad)
    driven.submit("during", count=LONG)
    with pytest.raises(kind, match=text):
        driven.result(driven.send(LoadModel(model="b", spec=spec(bad, "b"))))
    assert list(driven.engine.entries) == ["a"]
    driven.result(driven.send(LoadModel(model="b", spec=spec(folders[1], "b"))))
    driven.until(lambda: "during" in driven.finished)
    assert len(driven.answer("b", "b")) == 12


def test_a_checkpoint_that_is_deleted_while_it_is_loaded(
    driven: Driven, folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, read = shutil.copytree(folders[1], tmp_path / "gone"), start.load_model

    def load_model(path: Path, *args: Any, **fields: Any) -> Any:
        shutil.rmtree(folder)
        return read(path, *args, **fields)

    monkeypatch.setattr(start, "load_model", load_model)
    with pytest.raises(OstroError, match="the model 'b'"):
        driven.result(driven.send(LoadModel(model="b", spec=spec(folder, "b"))))
    assert len(driven.answer("a")) == 12


def test_an_unexpected_error_of_a_load_fails_it_alone(
    driven: Driven, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> Any:
        raise ZeroDivisionError(str(folders[1]))

    monkeypatch.setattr(start, "build_entries", fail)
    with pytest.raises(CheckpointError, match=r"could not be loaded: ZeroDivisionError$"):
        driven.result(driven.send(LoadModel(model="b", spec=spec(folders[1], "b"))))
    assert len(driven.answer("a")) == 12


def test_a_model_that_does_not_fit_is_refused_before_its_weights_are_read(
    driven: Driven, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = driven.engine.first.weight_bytes
    reserved = driven.engine.first.unwritten_bytes
    assert needed > 0 < reserved
    free = [needed // 2 + reserved]
    monkeypatch.setattr(start, "free_bytes", lambda device: free[0])
    with monkeypatch.context() as inner:
        inner.setattr("ostro.core.load.model.read_weights", None)
        with pytest.raises(InsufficientMemory, match=rf"\({needed // 2} bytes\) are free on cpu"):
            driven.result(driven.send(LoadModel(model="b", spec=spec(folders[1], "b"))))
    free[0] = 10**10
    driven.result(driven.send(LoadModel(model="b", spec=spec(folders[1], "b"))))
    assert len(driven.answer("b", "b")) == 12


@pytest.mark.slow
def test_two_loads_of_one_name_follow_each_other(driven: Driven, folders: list[Path]) -> None:
    both = [driven.send(LoadModel(model="b", spec=spec(folders[1], "b"))) for _ in range(2)]
    for id in both:
        assert list(driven.result(id).models) == ["a", "b"]
    driven.until(lambda: not driven.engine.busy)
    assert len(driven.engine.registries) == 2


def test_figures_of_memory(driven: Driven, folders: list[Path]) -> None:
    driven.result(driven.send(LoadModel(model="b", spec=spec(folders[1], "b"))))
    stats = driven.engine.stats()
    one, other = stats.models["a"], stats.models["b"]
    assert one.weight_bytes == other.weight_bytes > 0
    assert one.cache_capacity_bytes == other.cache_capacity_bytes > 0
    assert stats.weight_bytes == 2 * one.weight_bytes
    assert driven.engine.first.unwritten_bytes <= one.cache_capacity_bytes


def test_closing_ends_a_load(folders: list[Path], plugins: PluginManager) -> None:
    engine, _ = open_engine([spec(folders[0])], plugins, lambda *news: None, warm=False)
    begun, closed = threading.Event(), threading.Event()

    def build(spec: Any, report: Any, between_steps: Any) -> Any:
        begun.set()
        closed.wait(20)
        report("reading weights", 1, 2)
        raise AssertionError("the load goes on")

    engine.loader.build = build
    engine.change_models(LoadModel(id="x", model="b", spec=spec(folders[1], "b")))
    begun.wait(20)
    engine.close()
    closed.set()
    engine.loader.thread.shutdown(wait=True)
    assert not engine.loader.has_finished


def test_a_call_between_steps_runs_in_the_thread_of_the_engine(
    driven: Driven, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    build, seen = driven.engine.loader.build, list[Any]()

    def calls(spec: Any, report: Any, between_steps: Any) -> Any:
        seen.append(between_steps(threading.get_ident))
        with pytest.raises(ZeroDivisionError):
            between_steps(lambda: 1 // 0)
        return build(spec, report, between_steps)

    monkeypatch.setattr(driven.engine.loader, "build", calls)
    driven.result(driven.send(LoadModel(model="b", spec=spec(folders[1], "b"))))
    assert seen == [threading.get_ident()]


def resident() -> int:
    """The resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_many_loads_and_unloads_leave_nothing(driven: Driven, folders: list[Path]) -> None:
    figures = list[tuple[int, int, int]]()
    for count in range(50):
        driven.result(driven.send(LoadModel(model="b", spec=spec(folders[1], "b"))))
        driven.submit(str(count), "b", 2)
        driven.result(driven.send(UnloadModel(model="b")))
        if count % 10 == 9:
            return_memory()
            descriptors = len(os.listdir("/proc/self/fd"))
            figures.append((resident(), descriptors, threading.active_count()))
    first, last = figures[0], figures[-1]
    assert last[0] <= 1.05 * first[0], figures
    assert last[1:] == first[1:], figures
