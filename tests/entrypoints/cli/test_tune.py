"""`ostro tune`: candidates, the choice among them, the time limit, and the file that it writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ostro.core.errors import InsufficientMemory
from ostro.core.ops import launch
from ostro.core.ops.attention.tiles import Tiles
from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.entrypoints.bench import tune
from ostro.entrypoints.bench.kernels import KernelTuner, Result, Site
from ostro.entrypoints.bench.tune import Tuner, Tuning

SPEED = {None: 10.0, "q8_0": 20.0, "q4k": 15.0}
SETTINGS = Settings(reference="m")


class FakeEngine:
    """An engine whose speed depends on its settings alone."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.closed = settings, False
        device = SimpleNamespace(type="cpu")
        self.first = SimpleNamespace(tokens=self, loaded=SimpleNamespace(device=device))

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tuner]:
    """Make a tuner of fake engines; each measurement takes a second, and "huge" does not fit."""
    now, threads, engines = [0.0], [1], list[FakeEngine]()

    def open_engine(models: Sequence[Any], *_: Any) -> tuple[FakeEngine, list[str]]:
        assert all(engine.closed for engine in engines), "two engines at once"
        if models[0].settings.quant == "huge":
            raise InsufficientMemory("huge needs 9 GiB, 1 GiB is free")
        engines.append(FakeEngine(models[0].settings))
        return engines[-1], []

    def measure(engine: FakeEngine, *, concurrency: int, **_: Any) -> Any:
        now[0] += 1
        assert concurrency <= engine.settings.max_seqs
        decode = SPEED[engine.settings.quant] * threads[0] ** 0.5
        total = decode * min(concurrency, 5)
        return SimpleNamespace(prefill=1.0, decode=decode, total=total)

    monkeypatch.setattr(tune, "open_engine", open_engine)
    monkeypatch.setattr(tune, "measure", measure)
    monkeypatch.setattr(tune, "core_count", lambda: 4)
    monkeypatch.setattr(tune.THREADS, "set", lambda number: threads.__setitem__(0, number or 4))

    def make(settings: Settings = SETTINGS, seconds: float = 100) -> Tuner:
        return Tuner(
            settings,
            PluginManager(),
            seconds=seconds,
            progress=lambda *_: None,
            clock=lambda: now[0],
        )

    return make


def test_the_fastest_candidates_are_chosen(tuner: Callable[..., Tuner]) -> None:
    found = tuner().run([None, "q8_0", "huge", "q4k"], ["auto"], [4, 8, 16])
    best = found.best
    assert (best.quant, best.threads, best.max_seqs) == ("q8_0", 4, 8)
    assert found.complete and len(found.trials) == 3 * 3 + 3
    assert found.skipped == ["huge, KV cache auto: huge needs 9 GiB, 1 GiB is free"]


def test_given_threads_are_kept(tuner: Callable[..., Tuner]) -> None:
    found = tuner(Settings(reference="m", threads=2)).run([None], ["auto"], [])
    assert [trial.settings.threads for trial in found.trials] == [2]
    assert found.best.max_seqs == Settings.max_seqs


def test_time_limit(tuner: Callable[..., Tuner]) -> None:
    found = tuner(seconds=4).run([None, "q8_0", "q4k"], ["auto"], [4])
    assert not found.complete and len(found.trials) == 4
    assert (found.best.quant, found.best.threads) == (None, 4)


def test_nothing_measured() -> None:
    with pytest.raises(Exception, match="nothing was measured: a, KV cache b: too large"):
        _ = Tuning(settings=SETTINGS, skipped=["a, KV cache b: too large"]).best


def test_tune(ostro: Any, tiny: str, tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    words = ["--formats", "stored,nonsense", "--streams", "2", "--threads", "1", "--write"]
    ran = ostro("tune", tiny, *words, str(file), "--context", "128")
    assert ran.code == 0 and "fastest: stored" in ran.out
    assert "skipped: nonsense" in ran.out
    printed = ostro("serve", "--config", str(file), "--print-config").out
    assert f'model = "{tiny}"' in printed and "threads = 1" in printed
    assert "context = 128" in printed
    again = ostro("tune", tiny, *words, str(file))
    assert again.code == 2 and "the file exists" in again.err


def test_interrupt_prints_what_is_known(
    ostro: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tuner: Callable[..., Tuner]
) -> None:
    file, measure = tmp_path / "server.toml", tune.measure

    def interrupted(engine: Any, **options: Any) -> Any:
        if engine.settings.quant == "q4k":
            raise KeyboardInterrupt
        return measure(engine, **options)

    monkeypatch.setattr(tune, "measure", interrupted)
    ran = ostro("tune", "--formats", "q8_0,q4k", "--write", str(file))
    assert ran.code == 0 and "interrupted" in ran.err and "fastest: q8_0" in ran.out
    assert "Not all candidates were measured" in ran.out
    assert 'quant = "q8_0"' in file.read_text()


@pytest.mark.parametrize(
    "words",
    [
        *("--formats a,,b", "--kv-dtypes ,", "--streams 0", "--streams x", "--streams 99999"),
        *("--seconds 0", "--quant q4k", "--kv-dtype int8", "--write /nowhere/x"),
    ],
)
def test_bad_options(ostro: Any, tuner: Callable[..., Tuner], words: str) -> None:
    ran = ostro("tune", *words.split())
    assert ran.code == 2 and words.split()[0] in ran.err


@pytest.mark.parametrize(
    "words",
    [["--formats", "q8_0"], ["--kv-dtypes", "int8"], ["--streams", "2"], ["--write", "x.toml"]],
    ids=lambda words: words[0],
)
def test_kernels_are_measured_alone(ostro: Any, tiny: str, words: list[str]) -> None:
    ran = ostro("tune", tiny, "--kernels", *words)
    assert ran.code == 2 and f"{words[0]}: --kernels measures one model" in ran.err


def test_kernels_of_a_cpu_have_no_launch_parameters(ostro: Any, tiny: str) -> None:
    ran = ostro("tune", tiny, "--kernels", "--device", "cpu")
    assert ran.code == 2 and "--kernels measures kernels of a GPU" in ran.err


def test_kernels(ostro: Any, tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what an engine on a GPU would have measured."""
    monkeypatch.setenv("OSTRO_CACHE", str(tmp_path))
    monkeypatch.setattr("ostro.entrypoints.cli.tune.gpu_name", lambda settings: "NVIDIA X1")
    words = ["tune", tiny, "--kernels", "--device", "cpu", "--context", "64"]
    ran = ostro(*words)
    assert ran.code == 2 and "no kernel of this model has launch parameters" in ran.err

    site = Site("product", ("bf16", 1), Tiles(16, 32, 4, 2), lambda: [])
    results = [Result(site, Tiles(16, 64, 4, 2), 2e-3, 1e-3, tried=3)]

    def run(tuner: KernelTuner) -> None:
        tuner.found.steps["prompt of 16"] = results
        raise KeyboardInterrupt

    monkeypatch.setattr(KernelTuner, "run", run)
    ran = ostro(*words)
    file = tmp_path / "kernels" / "nvidia_x1.json"
    assert ran.code == 0 and str(file) in ran.out.replace("\n", "")
    assert "interrupted" in ran.err and "Not all steps were measured" in ran.out
    row = next(line for line in ran.out.splitlines() if "prompt of 16" in line)
    assert [word for word in row.split() if word[0].isdigit()] == [
        "16",
        "1",
        "1",
        "2000",
        "1000",
        "0.50",
    ]
    assert launch.read(file) == {("product", ("bf16", 1)): ["Tiles", 16, 64, 4, 2]}


def test_kernels_with_fixed_parameters_are_not_measured(
    ostro: Any, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ostro.entrypoints.cli.tune.gpu_name", lambda settings: "NVIDIA X1")
    ran = ostro("tune", tiny, "--kernels", "--device", "cpu", "--deterministic")
    assert ran.code == 2 and "--deterministic have fixed launch parameters" in ran.err
