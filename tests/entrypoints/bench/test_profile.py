"""`ostro bench --profile`: the kernels of a step, their calls and their time."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ostro.core.engine.blocks import BlockManager
from ostro.entrypoints.bench import local, profile
from ostro.entrypoints.bench.figures import KernelTime, StepProfile, Trace, summarize
from ostro.entrypoints.bench.profile import OTHERS, STEPS, Stopwatch, gpu_times
from ostro.entrypoints.bench.steps import wrapped_methods
from ostro.entrypoints.cli.bench import show_profile

SMALL = ("-p", "70", "-n", "4", "-r", "1", "--profile")
LAYERS = 2


def test_the_kernels_of_steps(bench: Callable[..., Any], tiny: str) -> None:
    code, out, _ = bench("-m", tiny, *SMALL, "--concurrency", "1,2", "-d", "64", "--json")
    assert code == 0
    rows = json.loads(out)
    assert [[each["step"] for each in row["profiles"]] for row in rows] == [
        [
            "prompt of 70 tokens, 64 in the cache",
            f"decode, batch of {count}, 134 tokens each in the cache",
        ]
        for count in (1, 2)
    ]
    for step in (each for row in rows for each in row["profiles"]):
        calls = {kernel["name"]: kernel["calls"] for kernel in step["kernels"]}
        # One call of the operation, in each of the steps that are measured.
        assert calls["core.ops.attention.native:attention"] == LAYERS
        assert calls["quant.dense.storage:Dense.matmul"] == 4 * LAYERS + 1
        assert calls[OTHERS] == 1
        times = [kernel["microseconds"] for kernel in step["kernels"]]
        assert times == sorted(times, reverse=True) and times[-1] > 0


def test_tables(bench: Callable[..., Any], tiny: str) -> None:
    code, out, _ = bench("-m", tiny, *SMALL)
    assert code == 0
    assert "prompt of 70 tokens, 0 in the cache" in out
    assert "core.ops.attention.native:attention" in out and "share" in out


def test_steps_without_room_have_no_profile(
    bench: Callable[..., Any], tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache for 70 tokens holds the prompt, and not one more."""
    room = BlockManager.grow
    monkeypatch.setattr(
        BlockManager, "grow", lambda blocks, tables, n: n < 71 and room(blocks, tables, n)
    )
    monkeypatch.setattr(local, "measure", lambda *_, **__: summarize("test", [[Trace(0, 1, [1])]]))
    code, out, _ = bench("-m", tiny, *SMALL, "--json")
    assert code == 0
    [row] = json.loads(out)
    assert [each["step"] for each in row["profiles"]] == ["prompt of 70 tokens, 0 in the cache"]


@pytest.mark.parametrize("words", [["--url", "http://localhost:1"], ["--with-adapters", "2"]])
def test_profiles_of_other_measurements_are_refused(
    bench: Callable[..., Any], words: list[str]
) -> None:
    code, _, err = bench(*SMALL, *words)
    assert code == 2 and "--profile excludes" in err


def test_a_nested_call_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 1.0, 4.0, 5.0, 7.0, 10.0])
    monkeypatch.setattr(profile, "perf_counter", lambda: next(now))
    watch = Stopwatch()

    def inner() -> None:
        """Two calls take three and two seconds."""

    def outer() -> None:
        timed()
        timed()

    timed = watch.timed(inner)
    watch.timed(outer)()
    assert sorted(watch.seconds.values()) == [5.0, 5.0]
    assert sorted(watch.calls.values()) == [1, 2]


def test_methods_are_restored() -> None:
    class Owner:
        def method(self) -> str:
            return "method"

    bound, plain = SimpleNamespace(call=str), Owner()
    with wrapped_methods([(bound, "call"), (plain, "method")], lambda call: lambda *_: "wrapped"):
        assert bound.call(1) == plain.method() == "wrapped"
    assert bound.call is str and plain.method() == "method" and not vars(plain)


def test_kernels_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch's profiler reports of all steps, in microseconds."""
    steps = list[object]()
    event = SimpleNamespace(key="attend", count=10, self_device_time_total=50.0)

    class Recorded:
        def __init__(self, activities: object) -> None: ...
        def __enter__(self) -> Recorded:
            return self

        def __exit__(self, *_: object) -> None: ...
        def key_averages(self) -> list[Any]:
            return [event, SimpleNamespace(key="idle", count=1, self_device_time_total=0.0)]

    monkeypatch.setattr(profile, "profile", Recorded)
    monkeypatch.setattr(profile, "run_step", lambda *_: steps.append(None))
    monkeypatch.setattr(profile.torch.cuda, "synchronize", lambda: None)
    engine = SimpleNamespace(runner=SimpleNamespace(device=SimpleNamespace(type="cuda")))
    assert gpu_times(engine, [])[0] == ("attend", 10, pytest.approx(5e-5))  # type: ignore[arg-type]
    assert len(steps) == STEPS
    assert profile.kernel_times(engine, []) == [  # type: ignore[arg-type]
        KernelTime(name="attend", calls=2, microseconds=pytest.approx(10.0))
    ]


def test_many_kernels_are_summed(capsys: pytest.CaptureFixture[str]) -> None:
    kernels = [KernelTime(name=f"kernel {i}", calls=1, microseconds=10.0) for i in range(25)]
    show_profile(StepProfile(step="decode", kernels=kernels))
    out = capsys.readouterr().out
    assert "kernel 19" in out and "kernel 20" not in out
    row = next(line for line in out.splitlines() if "5 more" in line)
    assert "50.0" in row and "20%" in row and "250.0" in out
