"""`ostro tune`: candidates, the choice among them, the time limit, and the file that it writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ostro.core.errors import InsufficientMemory
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Settings
from ostro.entrypoints.bench import tune
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
