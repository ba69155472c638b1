"""Shards, their results, and their continuation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import shards

TESTS = """
import pathlib, pytest

@pytest.mark.parametrize("number", range(4))
def test_good(number):
    pass

def test_bad():
    assert pathlib.Path(__file__).with_name("mended").exists()

def test_skipped():
    pytest.skip("not here")
"""


def test_shards_take_about_the_same_time() -> None:
    seconds = {"a": 8.0, "b": 2.0, "c": 1.0}
    tests = ["a[1]", *(f"b[{i}]" for i in range(6)), *(f"c[{i}]" for i in range(4)), "unknown"]
    sets = shards.split(tests, 3, seconds)
    assert sorted(test for each in sets for test in each) == sorted(tests)
    totals = [sum(seconds.get(shards.function_of(t), 0.0) for t in each) for each in sets]
    assert totals == [8.0, 8.0, 8.0]
    assert shards.split(tests[::-1], 3, seconds) == sets, "depends on the order of tests"


@pytest.mark.parametrize("shard", ["", "1", "0/2", "3/2", "a/b", "1/2/3", "-1/2"])
def test_invalid_shards(shard: str) -> None:
    with pytest.raises(pytest.UsageError, match="expected SHARD/SHARDS, such as 1/8"):
        shards.parse(shard)


def pytest_run(folder: Path, *arguments: str) -> str:
    """Run pytest with the plugin, in two processes. Returns the last line of the output."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "shards", "-p", "xdist", "-n", "2"]
    paths = {"PYTHONPATH": str(Path(shards.__file__).parent), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [*command, *arguments],
        cwd=folder,
        env={**os.environ, **paths},
        capture_output=True,
        text=True,
        timeout=120,
    ).stdout.splitlines()[-1]


@pytest.mark.process
def test_a_run_continues(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_x.py").write_text(TESTS)
    results, passed = tmp_path / "1-of-1.parallel.jsonl", tmp_path / "passed"
    options = ("--results", str(results), "--passed", str(passed))
    passed.write_text("test_x.py::test_good[2]\n")
    assert "1 failed, 3 passed, 1 skipped" in pytest_run(tmp_path, *options)
    outcomes = {line["test"]: line["outcome"] for line in shards.read(results)}
    assert outcomes == {
        "test_x.py::test_good[0]": "passed",
        "test_x.py::test_good[1]": "passed",
        "test_x.py::test_good[3]": "passed",
        "test_x.py::test_bad": "failed",
        "test_x.py::test_skipped": "skipped",
    }
    summary = shards.summary(tmp_path).splitlines()
    assert summary[1].endswith("1 failed, 3 passed, 1 skipped")
    assert summary[2:] == ["FAILED test_x.py::test_bad"]

    (tmp_path / "mended").touch()
    passed.write_text("\n".join(test for test, outcome in outcomes.items() if outcome == "passed"))
    pytest_run(tmp_path, *options)
    assert all(line["outcome"] != "failed" for line in shards.read(results))
    assert "FAILED" not in shards.summary(tmp_path)


def test_each_test_is_in_one_shard(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_x.py").write_text(TESTS)
    names = []
    for number in (1, 2):
        results = tmp_path / f"{number}.jsonl"
        pytest_run(tmp_path, "--shard", f"{number}/2", "--results", str(results))
        names += [line["test"] for line in shards.read(results)]
    assert len(names) == len(set(names)) == 6


def test_recorded_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SECONDS", tmp_path / "seconds.json")
    (tmp_path / "seconds.json").write_text('{"x::kept": 3.0, "x::slow": 9.0}')
    lines = [("x::slow[1]", 1.0), ("x::slow[2]", 2.0), ("x::brief", 0.01)]
    text = [json.dumps({"test": t, "outcome": "passed", "seconds": s}) for t, s in lines]
    (tmp_path / "1-of-1.parallel.jsonl").write_text("\n".join(text))
    shards.record(tmp_path)
    assert shards.recorded() == {"x::kept": 3.0, "x::slow": 1.5}
