"""The number of threads follows the load of other processes, if the user gave none."""

from __future__ import annotations

import pytest
import torch

from ostro.core import threads
from ostro.core.cpu import CpuUsage
from ostro.core.errors import UsageError
from ostro.core.threads import INTERVAL, MAX_THREADS, STALE, ThreadCount


class Machine:
    """A clock and CPUs that other processes use at a rate, in CPUs."""

    def __init__(self, cpus: int, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.cpus, self.busy, self.reads, self.applied = 0.0, cpus, 0.0, 0, 0
        monkeypatch.setattr(threads, "core_count", lambda: limit)
        monkeypatch.setattr(threads, "monotonic", lambda: self.now)
        monkeypatch.setattr(threads, "read_usage", self.read)
        monkeypatch.setattr(torch, "set_num_threads", lambda n: setattr(self, "applied", n))
        monkeypatch.setattr(torch, "get_num_threads", lambda: self.applied)

    def read(self) -> CpuUsage:
        self.reads += 1
        return CpuUsage(self.now, self.cpus, self.busy, 0.0)

    def follow(self, count: ThreadCount, others: float, seconds: float = INTERVAL) -> int:
        """The number of threads after a time in which others used so many CPUs."""
        self.now += seconds
        self.busy += others * seconds
        count.follow_load()
        return self.applied


def test_threads_give_way_to_others_and_return(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, count = Machine(2, 2, monkeypatch), ThreadCount()
    count.set(None)
    assert machine.applied == count.limit == 2
    found = [machine.follow(count, others) for others in (0.0, 0.3, 0.5, 1.0, 1.9, 0.5, 0.1)]
    assert found == [2, 2, 1, 1, 1, 1, 2]
    assert count.limit == 2


def test_at_least_half_of_the_threads_run(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, count = Machine(8, 7, monkeypatch), ThreadCount()
    count.set(None)
    assert [machine.follow(count, others) for others in (1, 2, 3, 8)] == [7, 6, 5, 4]


def test_cpus_of_the_host_beyond_the_limit_are_free_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine, count = Machine(64, 4, monkeypatch), ThreadCount()
    count.set(None)
    assert [machine.follow(count, others) for others in (58, 61)] == [4, 3]


def test_measurements_are_rare_and_recent(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, count = Machine(2, 2, monkeypatch), ThreadCount()
    count.set(None)
    reads = machine.reads
    assert machine.follow(count, 2.0, INTERVAL / 2) == 2
    assert machine.reads == reads
    # An average over a long idle time says nothing about the present.
    assert machine.follow(count, 2.0, 2 * STALE) == 2
    assert machine.follow(count, 2.0) == 1


def test_a_number_of_the_user_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, count = Machine(2, 2, monkeypatch), ThreadCount()
    count.set(2)
    assert machine.follow(count, 2.0) == 2 and machine.reads == 0


@pytest.mark.parametrize("number", [0, -1, MAX_THREADS + 1])
def test_invalid_numbers(number: int) -> None:
    with pytest.raises(UsageError, match=f"--threads {number}"):
        ThreadCount().set(number)
