"""The second run of failed tests, which `make test` relies on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import retry

FLAKY = """
import pathlib, pytest

@pytest.mark.parametrize("name", {names})
def test_flaky(name):
    marker = pathlib.Path(__file__).with_name(f"{{name[0]}}.ran")
    print("the output of", name)
    if not marker.exists():
        marker.touch()
        pytest.fail("the first run of " + name)
"""
BROKEN = """
def test_broken():
    raise ValueError("broken for good")
"""
GOOD = """
def test_good():
    pass
"""


def outcome(folder: Path, *sources: str) -> tuple[int, str]:
    """Write test files, and run them in two processes. Returns the exit code and the output."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    for number, source in enumerate(sources):
        (folder / f"test_{number}.py").write_text(source)
    command = [sys.executable, retry.__file__, "-p", "xdist", "-n", "2"]
    bare = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # starts in a tenth of the time
    done = subprocess.run(
        command, cwd=folder, env=bare, capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout


def flaky(count: int) -> str:
    """Tests that fail the first time, with ids that a shell or pytest may take apart."""
    return FLAKY.format(names=[f"{number} a::b [{number}]" for number in range(count)])


def test_flaky_tests_are_named(tmp_path: Path) -> None:
    code, output = outcome(tmp_path, flaky(3), GOOD)
    assert code == 0, output
    lines = output.splitlines()[-3:]
    assert [line.partition(":")[0] for line in lines] == ["FLAKY, passed the second time"] * 3
    assert "0 a::b [0]" in lines[0] and "2 a::b [2]" in lines[2]
    assert "the first run of 0" in output and output.count("the output of 0") == 2


@pytest.mark.process
@pytest.mark.parametrize(
    ("sources", "words", "ran"),
    [
        ((BROKEN, flaky(1)), ["FAILED twice: test_0.py::test_broken", "FLAKY"], True),
        ((flaky(4), GOOD), ["4 failed, 1 passed"], False),
        (("import nothing_of_this_name",), ["ModuleNotFoundError"], False),
    ],
    ids=["broken", "too many", "no import"],
)
def test_red(tmp_path: Path, sources: tuple[str, ...], words: list[str], ran: bool) -> None:
    code, output = outcome(tmp_path, *sources)
    assert code != 0 and all(word in output for word in words), output
    assert ("run once more" in output) is ran


def test_green(tmp_path: Path) -> None:
    code, output = outcome(tmp_path, GOOD)
    assert code == 0 and "1 passed" in output and "run once more" not in output


def test_an_error_without_a_failed_test_is_red(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "run", lambda *_: 1)
    assert retry.main([]) == 1


@pytest.mark.process
def test_a_crash_is_a_failure(tmp_path: Path) -> None:
    code, output = outcome(tmp_path, "def test_exit():\n    import os\n    os._exit(3)\n", GOOD)
    assert code != 0 and "FAILED twice: test_0.py::test_exit" in output, output
