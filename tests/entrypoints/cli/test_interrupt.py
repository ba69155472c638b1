"""Ctrl-C on a real `ostro serve`, with the engine in its own process, and its load at rest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from tiny.model import make_model

TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server of the model in a process group of its own, and its ready line."""
    command = [sys.executable, "-m", "ostro", "serve", "-m", str(folder), "--port", "0"]
    with subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stderr is not None
            yield process, next(line for line in process.stderr if "ready in" in line)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def group_ticks(group: int) -> int:
    """CPU time of all processes of a group, in clock ticks."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[2]) == group:
            total += int(fields[11]) + int(fields[12])
    return total


@pytest.mark.slow
def test_an_idle_server_is_at_rest_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    with serving(make_model(tmp_path / "m")) as (process, ready):
        url = ready.partition(" at ")[2].partition(",")[0]
        request = {"prompt": "hello", "max_tokens": 4}
        assert httpx.post(f"{url}/completions", json=request, timeout=120).status_code == 200
        time.sleep(1)
        before, seconds = group_ticks(process.pid), 10
        time.sleep(seconds)
        assert group_ticks(process.pid) - before < 0.01 * seconds * TICKS
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
        out, err = process.communicate(timeout=120)
        ended = "ostro: SIGINT: stopping; 0 requests are running\n"
        assert (process.returncode, out, err) == (0, "", ended)
