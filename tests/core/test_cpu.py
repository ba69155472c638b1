"""The cores that a process may use, from fake files; the use of CPUs by others."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from ostro.core import cpu
from ostro.core.cpu import CpuUsage, core_count, read_usage

V1, V2 = "sys/fs/cgroup/cpu", "sys/fs/cgroup"


def quota_v1(quota: int, period: int = 100_000, group: str = "") -> dict[str, str]:
    folder = f"{V1}{group}"
    return {
        f"{folder}/cpu.cfs_quota_us": f"{quota}\n",
        f"{folder}/cpu.cfs_period_us": f"{period}\n",
    }


def siblings(*cores: str) -> dict[str, str]:
    """Topology files: cores as lists of CPUs, such as "0,4" or "0-1"."""
    files = {}
    for core in cores:
        for one in core.replace("-", ",").split(","):
            files[f"sys/devices/system/cpu/cpu{one}/topology/thread_siblings_list"] = f"{core}\n"
    return files


def machine(tmp_path: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture(autouse=True)
def eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


CGROUP = "proc/self/cgroup"
CASES: dict[str, tuple[Mapping[str, str], int]] = {
    "no files": ({}, 8),
    "two threads per core": (siblings("0,4", "1,5", "2,6", "3,7"), 4),
    "v2, in a container": ({CGROUP: "0::/\n", f"{V2}/cpu.max": "300000 100000\n"}, 3),
    "v2, no quota": ({CGROUP: "0::/a\n", f"{V2}/a/cpu.max": "max 100000\n"}, 8),
    "v2, half a core": ({CGROUP: "0::/\n", f"{V2}/cpu.max": "50000 100000\n"}, 1),
    "v2, the parent is narrower": (
        {
            CGROUP: "0::/slice/unit\n",
            f"{V2}/slice/cpu.max": "250000 100000\n",
            f"{V2}/slice/unit/cpu.max": "400000 100000\n",
        },
        2,
    ),
    "v1": ({CGROUP: "3:cpu,cpuacct:/a\n1:memory:/b\n", **quota_v1(500_000, group="/a")}, 5),
    "v1, no quota": ({CGROUP: "3:cpu,cpuacct:/\n0::/\n", **quota_v1(-1)}, 8),
    "v1, the host's path in a container": ({CGROUP: "3:cpu:/host/id\n", **quota_v1(200_000)}, 2),
    "a quota above the cores": ({CGROUP: "0::/\n", f"{V2}/cpu.max": "6400000 100000\n"}, 8),
}


@pytest.mark.parametrize("name", CASES)
def test_core_count(name: str, tmp_path: Path) -> None:
    files, expected = CASES[name]
    assert core_count(machine(tmp_path, files)) == expected


def test_the_affinity_and_omp_num_threads_limit_the_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = machine(tmp_path, siblings("0,4", "1,5", "2,6", "3,7"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 4})
    assert core_count(root) == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert core_count(root) == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "16")
    assert core_count(root) == 2


def test_usage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tick = os.sysconf("SC_CLK_TCK")
    # The fourth number is idle time, the fifth is waiting for disks; the last two are in the first.
    ticks = [10 * tick, tick, 2 * tick, 99 * tick, 5 * tick, tick, tick, tick, 9 * tick, tick]
    row = " ".join(map(str, ticks))
    root = machine(tmp_path, {"proc/stat": f"cpu  {row}\ncpu0 {row}\ncpu1 {row}\nintr 5 0 1\n"})
    monkeypatch.setattr(cpu.time, "process_time", lambda: 7.0)
    usage = read_usage(root)
    assert usage is not None
    assert (usage.cpus, usage.busy, usage.own) == (2, 16.0, 7.0)
    assert read_usage(tmp_path / "elsewhere") is None


def test_free_cpus_are_those_that_others_do_not_use() -> None:
    start = CpuUsage(time=10.0, cpus=4, busy=100.0, own=50.0)
    later = CpuUsage(time=12.0, cpus=4, busy=107.0, own=54.0)
    assert later.free_since(start) == 2.5  # others: 3 CPU seconds in 2 seconds
