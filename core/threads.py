"""The number of threads of CPU kernels: fixed, or as many as other processes leave cores free."""

from __future__ import annotations

from time import monotonic

from ostro.core.cpu import CpuUsage, core_count, read_usage
from ostro.core.errors import UsageError

MAX_THREADS = 1024
"""A limit against typing errors: torch would start that many threads."""

INTERVAL = 0.25
"""Seconds between two measurements of the load: the kernel counts in hundredths."""

STALE = 2.0
"""Seconds after which a measurement is too old."""

TOLERANCE = 0.35
"""The part of a core that other processes may use before the number of threads falls by one. A
process that needs a whole core gets at least half of it beside the threads of this one."""


class ThreadCount:
    """The number of threads of this process's kernels.

    limit: threads while other processes leave all cores free; 0 before `set`.
    """

    def __init__(self) -> None:
        self.limit = 0
        self.last: CpuUsage | None = None

    def set(self, threads: int | None) -> None:
        """Use `threads`, or with None as many as the free cores, up to `core_count()`.

        Raises UsageError for a number outside 1..MAX_THREADS.
        """
        import torch  # in the functions: the API process imports this module without torch

        if threads is not None and not 1 <= threads <= MAX_THREADS:
            raise UsageError(f"--threads {threads} is not within 1..{MAX_THREADS}")
        self.limit = threads or core_count()
        self.last = read_usage() if threads is None and self.limit > 1 else None
        torch.set_num_threads(self.limit)

    def follow_load(self) -> None:
        """Set the number of threads by the load of the last moments; called before each step.

        Threads that other processes interrupt make each other wait: fewer threads are faster, down
        to half of the limit. Results do not depend on the number.
        """
        if self.last is None or (now := monotonic()) < self.last.time + INTERVAL:
            return
        import torch

        usage = read_usage()
        if usage is not None and now < self.last.time + STALE:
            free = int(usage.free_since(self.last) + TOLERANCE)
            threads = min(self.limit, max(free, (self.limit + 1) // 2))
            if threads != torch.get_num_threads():
                torch.set_num_threads(threads)
        self.last = usage


THREADS = ThreadCount()
"""Of this process: PyTorch and OpenMP have one number for all models."""
