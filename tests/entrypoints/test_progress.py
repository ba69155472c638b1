"""The line that names the stages of loading, and the pause of garbage collection."""

from __future__ import annotations

import gc
import io
import os

import pytest

from ostro.entrypoints.cli import main
from ostro.entrypoints.progress import LoadingLine, loading


@pytest.fixture
def line() -> LoadingLine:
    """A line that is not drawn."""
    made = LoadingLine.__new__(LoadingLine)
    made.stage, made.done, made.total = "importing torch", 0, 0
    return made


def test_a_short_stage_is_named_without_a_bar(line: LoadingLine) -> None:
    assert line.text(0.9) == "importing torch"
    line.stage, line.done, line.total = "reading weights", 49_000_000, 98_000_000
    assert line.text(0.9) == "reading weights 49 of 98 MB"
    line.stage, line.done, line.total = "compiling kernels", 3, 4
    assert line.text(0.9) == "compiling kernels 3 of 4"


def test_a_long_stage_has_a_bar_that_moves(line: LoadingLine) -> None:
    assert line.text(1.0) != line.text(1.2), "the end of the stage is unknown"
    line.stage, line.done, line.total = "reading weights", 49_000_000, 98_000_000
    assert line.text(1.0) == f"reading weights [{'#' * 12}{' ' * 12}] 49 of 98 MB"


def test_stages_are_drawn_on_a_terminal_and_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = os.openpty()
    drawn = b""
    with open(theirs, "w") as terminal, loading(terminal) as report:
        while b"importing torch" not in drawn:
            drawn += os.read(ours, 1 << 16)
        report("reading weights", 1_000_000, 2_000_000)
        while b"reading weights 1 of 2 MB" not in drawn:
            drawn += os.read(ours, 1 << 16)
    while not drawn.endswith(b"\r\x1b[K"):
        drawn += os.read(ours, 1 << 16)
    os.close(ours)


def test_nothing_is_drawn_without_a_terminal() -> None:
    stream = io.StringIO()
    with loading(stream) as report:
        report("reading weights", 1, 2)
    assert not stream.getvalue()


def test_garbage_is_not_collected_meanwhile() -> None:
    with pytest.raises(KeyError), loading(io.StringIO()):
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled() and gc.get_freeze_count()


def test_a_command_ends_without_frozen_objects() -> None:
    """Triton would report them at the exit of the process as leaked."""
    with loading(io.StringIO()):
        pass
    assert main(["inspect", "/nowhere"]) != 0
    assert not gc.get_freeze_count()
