"""The cores that this process may use, and their use by other processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

ROOT = Path("/")


def core_count(root: Path = ROOT) -> int:
    """The physical cores that this process may use, at most $OMP_NUM_THREADS; at least 1.

    Regards the CPU affinity and the CPU quotas of cgroups, version 1 and 2. root: the folder with
    `proc` and `sys`.
    """
    limits = [len({core_of(cpu, root) for cpu in usable_cpus()}), *map(int, quotas(root))]
    if (number := os.environ.get("OMP_NUM_THREADS", "")).isdecimal():
        limits.append(int(number))
    return max(1, min(limits))


def usable_cpus() -> set[int]:
    """The logical CPUs on which this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))  # macOS and Windows


def core_of(cpu: int, root: Path) -> str:
    """A name of the core of a logical CPU, the same for all CPUs of the core."""
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    return read(topology / "thread_siblings_list").strip() or str(cpu)


def quotas(root: Path) -> Iterator[float]:
    """The CPU quotas, in cores, of the cgroups that contain this process."""
    for line in read(root / "proc/self/cgroup").splitlines():
        controllers, path = line.split(":", 2)[1:]
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        group = PurePosixPath(path.lstrip("/"))
        for folder in (group, *group.parents):
            if controllers:  # version 1
                words = [read(mount / folder / f"cpu.cfs_{x}_us") for x in ("quota", "period")]
            else:
                words = read(mount / folder / "cpu.max").split()
            # "max" and -1 stand for no quota
            if len(words) == 2 and words[0].strip().isdecimal():
                yield int(words[0]) / int(words[1])


class CpuUsage(NamedTuple):
    """The use of all CPUs since the system's start, at `time` (`time.monotonic`).

    busy: seconds of all processes, own: seconds of this process. cpus: number of logical CPUs.
    """

    time: float
    cpus: int
    busy: float
    own: float

    def free_since(self, start: CpuUsage) -> float:
        """The CPUs, on average since `start`, that other processes did not use."""
        others = (self.busy - start.busy) - (self.own - start.own)
        return self.cpus - others / (self.time - start.time)


def read_usage(root: Path = ROOT) -> CpuUsage | None:
    """The current use of the CPUs; None on systems without /proc/stat."""
    rows = [line.split() for line in read(root / "proc/stat").splitlines()]
    cpus = [row for row in rows if row and row[0].startswith("cpu")]
    if not cpus:
        return None
    # In the order of proc(5); the fourth and the fifth are idle time.
    ticks = [int(word) for word in cpus[0][1:9]]
    busy = (sum(ticks) - sum(ticks[3:5])) / os.sysconf("SC_CLK_TCK")
    return CpuUsage(time.monotonic(), len(cpus) - 1, busy, time.process_time())


def read(path: Path) -> str:
    """The text of a file; empty if it cannot be read."""
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""
