"""The child process behind chat templates and media: frames, deadlines, replacement, forks."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from ostro.core.worker import WorkerProcess

ECHO = """
import sys
requests, replies = sys.stdin.buffer, sys.stdout.buffer
while head := requests.read(8):
    replies.write(head + requests.read(int.from_bytes(head, "little"))[::-1])
    replies.flush()
"""


DEADLINE = 30.0


@pytest.fixture
def now() -> list[float]:
    """The time of the worker's clock, which a test sets."""
    return [0.0]


@pytest.fixture
def worker(now: list[float]) -> Iterator[WorkerProcess]:
    worker = WorkerProcess(clock=lambda: now[0])
    yield worker
    worker.stop()


def start(worker: WorkerProcess, code: str) -> None:
    worker.start([sys.executable, "-I", "-S", "-c", code], {})


def exchange(worker: WorkerProcess, data: bytes) -> bytes:
    worker.send(data, DEADLINE)
    return worker.receive(DEADLINE)


@pytest.mark.parametrize("size", [0, 1, 65_537, 3_000_001])
def test_frames_of_every_size(worker: WorkerProcess, size: int) -> None:
    start(worker, ECHO)
    data = os.urandom(size)
    assert exchange(worker, data) == data[::-1]


def test_a_process_that_does_not_answer_in_time(worker: WorkerProcess, now: list[float]) -> None:
    start(worker, "import signal; signal.pause()")
    now[0] = DEADLINE
    with pytest.raises(TimeoutError):
        worker.receive(DEADLINE)
    with pytest.raises(TimeoutError):  # more than a pipe holds
        worker.send(bytes(10_000_000), DEADLINE)


def test_a_wait_that_ends_before_the_deadline_is_repeated(worker: WorkerProcess) -> None:
    start(worker, ECHO)
    times = iter([DEADLINE - 1e-6] * 5 + [DEADLINE])
    worker.clock = lambda: next(times)
    with pytest.raises(TimeoutError):
        worker.receive(DEADLINE)
    assert next(times, None) is None


def test_a_process_that_ends_early(worker: WorkerProcess) -> None:
    start(worker, "import sys; sys.stdout.buffer.write(b'abc'); sys.exit(7)")
    with pytest.raises(EOFError):
        worker.receive(DEADLINE)
    assert worker.wait() == 7
    assert not worker.running


def test_a_new_process_takes_the_place_of_the_last(worker: WorkerProcess) -> None:
    start(worker, ECHO)
    first = worker.pid
    start(worker, ECHO)
    assert worker.pid != first and exchange(worker, b"ab") == b"ba"
    assert first is not None
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


def test_the_end_of_a_process_is_reported_once() -> None:
    ended: list[int] = []
    worker = WorkerProcess(ended.append)
    start(worker, ECHO)
    pid = worker.pid
    worker.stop()
    worker.stop()
    assert ended == [pid] and worker.pid is None


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of a process with threads
def test_a_fork_leaves_the_process_to_its_parent(worker: WorkerProcess) -> None:
    start(worker, ECHO)
    child = os.fork()
    if child == 0:
        running = worker.running
        worker.stop()
        os._exit(1 if running else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert exchange(worker, b"ab") == b"ba"
