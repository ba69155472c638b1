"""Run all tests, or one of several shards; a run that was interrupted continues.

    python tests/shards.py SHARD/SHARDS [--workers N]
    python tests/shards.py --record

Shards take about the same time, by the recorded seconds of tests in `seconds.json`. A shard runs
tests in parallel, then those marked `process` one at a time. The outcome of each test is appended
to a file in `build/test-all` when it ends: a run of the same source repeats only failed tests.
At the end, a summary lists the shards and every failed test. `--record` updates `seconds.json`.

The module is also the pytest plugin of `--shard`, `--results` and `--passed`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SECONDS = Path(__file__).with_name("seconds.json")
RESULTS = ROOT / "build" / "test-all"

BRIEF = 0.05
"""Seconds of a test whose seconds are not recorded."""

PARTS: Mapping[str, tuple[str, Sequence[str]]] = {
    "parallel": ("not process and not peer", ["--dist", "worksteal"]),
    "process": ("process and not peer", []),
}
"""The mark expression and arguments of each call of pytest."""


# The plugin


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options of a shard."""
    parser.addoption("--shard", metavar="SHARD/SHARDS", help="run one share of the tests")
    parser.addoption("--results", metavar="FILE", help="append the outcome of each test as JSON")
    parser.addoption("--passed", metavar="FILE", help="skip the tests that this file lists")


def pytest_configure(config: pytest.Config) -> None:
    """Write results in the main process: the workers of pytest-xdist send it their reports."""
    file = config.getoption("results")
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Results(Path(file)))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of other shards, and those that have passed."""
    chosen = {item.nodeid for item in items}
    if config.getoption("shard"):
        number, count = parse(config.getoption("shard"))
        chosen = split(sorted(chosen), count, recorded())[number - 1]
    if config.getoption("passed"):
        chosen -= set(Path(config.getoption("passed")).read_text("utf-8").splitlines())
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in chosen])
    items[:] = [item for item in items if item.nodeid in chosen]


class Results:
    """Appends a line of JSON for each test: its id, its outcome, and its seconds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reports = defaultdict[str, list[pytest.TestReport]](list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports[report.nodeid].append(report)
        if report.when != "teardown":
            return
        reports = self._reports.pop(report.nodeid)
        outcomes = {each.outcome for each in reports}
        line = {
            "test": report.nodeid,
            "outcome": next(o for o in ("failed", "skipped", "passed") if o in outcomes),
            "seconds": round(sum(each.duration for each in reports), 3),
        }
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


# Shards


def parse(shard: str) -> tuple[int, int]:
    """The number of a shard, from 1, and the number of shards. Raises UsageError."""
    number, _, count = shard.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise pytest.UsageError(f"{shard}: expected SHARD/SHARDS, such as 1/8")
    return int(number), int(count)


def recorded() -> Mapping[str, float]:
    """The mean seconds of a test by its function, where they are recorded."""
    return json.loads(SECONDS.read_text("utf-8")) if SECONDS.exists() else {}


def function_of(test: str) -> str:
    """The id of a test without its parameters."""
    return test.partition("[")[0]


def split(tests: Iterable[str], count: int, seconds: Mapping[str, float]) -> list[set[str]]:
    """Split tests into sets of about the same time: each test, the longest first, goes to the set
    with the least time so far.
    """

    def cost(test: str) -> float:
        return seconds.get(function_of(test), BRIEF)

    sets, totals = [set[str]() for _ in range(count)], [0.0] * count
    for test in sorted(tests, key=lambda test: (-cost(test), test)):
        least = totals.index(min(totals))
        sets[least].add(test)
        totals[least] += cost(test)
    return sets


# The command


def source() -> str:
    """A name of the current source: the commit, and a digest of what differs from it."""
    commit = git("rev-parse", "--short", "HEAD").strip()
    others = git("ls-files", "--others", "--exclude-standard").splitlines()
    files = "".join((ROOT / name).read_bytes().hex() for name in others)
    difference = git("diff", "HEAD") + files
    if not difference:
        return commit
    return f"{commit}-{hashlib.sha256(difference.encode()).hexdigest()[:8]}"


def git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def read(file: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file of results, the last outcome of each test."""
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    yield from {line["test"]: line for line in map(json.loads, lines)}.values()


def run(shard: str, workers: int, folder: Path) -> list[int]:
    """Run the parts of a shard. Returns the exit codes of pytest."""
    codes = []
    for part, (marks, arguments) in PARTS.items():
        results = folder / f"{shard.replace('/', '-of-')}.{part}.jsonl"
        passed = results.with_suffix(".passed")
        ended = [line["test"] for line in read(results) if line["outcome"] != "failed"]
        passed.write_text("\n".join(ended), "utf-8")
        processes = workers if part == "parallel" else 0
        command = [sys.executable, "-m", "pytest", "-m", marks, *arguments, "-n", str(processes)]
        # One word each: pytest would take a file as the place of conftest.py.
        command += [f"--shard={shard}", f"--results={results}", f"--passed={passed}"]
        codes.append(subprocess.run(command, cwd=ROOT, check=False).returncode)
    return codes


def summary(folder: Path) -> str:
    """A line per file of results, and a line per failed test."""
    lines, failed = list[str](), list[str]()
    for file in sorted(folder.glob("*.jsonl")):
        results = list(read(file))
        outcomes = Counter(line["outcome"] for line in results)
        counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
        seconds = sum(line["seconds"] for line in results)
        lines.append(f"{file.stem:24} {seconds:7.0f} s of tests  {counts}")
        failed += [f"FAILED {line['test']}" for line in results if line["outcome"] == "failed"]
    return "\n".join([f"all tests of {folder.name}:", *lines, *failed])


def record(folder: Path) -> None:
    """Replace the recorded seconds of the functions that have results."""
    seconds = defaultdict[str, list[float]](list)
    for file in folder.glob("*.jsonl"):
        for line in read(file):
            seconds[function_of(line["test"])].append(line["seconds"])
    means = {function: round(sum(each) / len(each), 2) for function, each in seconds.items()}
    means = {**recorded(), **means}
    kept = {function: mean for function, mean in sorted(means.items()) if mean > 2 * BRIEF}
    SECONDS.write_text(json.dumps(kept, indent=0) + "\n", "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description="Run all tests, or a shard of them.")
    parser.add_argument("shard", nargs="?", default="1/1", metavar="SHARD/SHARDS")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--record", action="store_true", help="update seconds.json, run nothing")
    arguments = parser.parse_args()
    folder = RESULTS / source()
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.record:
        record(folder)
        return 0
    codes = run(arguments.shard, arguments.workers, folder)
    print(summary(folder))
    return max((code for code in codes if code != pytest.ExitCode.NO_TESTS_COLLECTED), default=0)


if __name__ == "__main__":
    sys.exit(main())
