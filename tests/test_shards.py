"""Shards, their results, and their continuation."""

from __future__ import annotations

import json
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


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose tests are `TESTS`, with the plugin in `tests/conftest.py`."""
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\nmarkers = process\n peer\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "conftest.py").write_text('pytest_plugins = ["shards"]')
    (tmp_path / "tests" / "test_x.py").write_text(TESTS)
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(shards, "ROOT", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(shards.__file__).parent))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p xdist")
    return tmp_path


@pytest.mark.process
def test_a_run_continues(root: Path) -> None:
    results = root / "results" / "1-of-1.parallel.jsonl"
    assert shards.run("1/1", 2, root / "results") == [1, pytest.ExitCode.NO_TESTS_COLLECTED]
    outcomes = {line["test"]: line["outcome"] for line in shards.read(results)}
    assert outcomes == {
        "tests/test_x.py::test_good[0]": "passed",
        "tests/test_x.py::test_good[1]": "passed",
        "tests/test_x.py::test_good[2]": "passed",
        "tests/test_x.py::test_good[3]": "passed",
        "tests/test_x.py::test_bad": "failed",
        "tests/test_x.py::test_skipped": "skipped",
    }
    summary = shards.summary(root / "results").splitlines()
    assert summary[1].endswith("1 failed, 4 passed, 1 skipped")
    assert summary[2:] == ["FAILED tests/test_x.py::test_bad"]

    (root / "tests" / "mended").touch()
    ran = len(results.read_text().splitlines())
    assert shards.run("1/1", 2, root / "results")[0] == 0
    assert len(results.read_text().splitlines()) == ran + 1, "only the failed test is repeated"
    assert "FAILED" not in shards.summary(root / "results")


@pytest.mark.process
def test_each_test_is_in_one_shard(root: Path) -> None:
    names = []
    for shard in ("1/2", "2/2"):
        shards.run(shard, 0, root / "results")
        results = root / "results" / f"{shard.replace('/', '-of-')}.parallel.jsonl"
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
