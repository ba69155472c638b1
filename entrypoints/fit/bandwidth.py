"""Measurement of a device's memory bandwidth, which bounds the decode speed of one sequence."""

from __future__ import annotations

from time import perf_counter

import torch

SIZE = {"cpu": 2**28, "cuda": 2**30}
"""Bytes to read: much more than the processor's caches."""

PASSES = 8
"""Repetitions. The fastest one counts: other work on the machine slows the others down."""


def measure_bandwidth(device: torch.device) -> float:
    """Return bytes per second, read by torch's threads. Takes a fraction of a second."""
    # Without a write the kernel would map all pages to one zero page.
    buffer = torch.ones(SIZE[device.type] // 8, dtype=torch.int64, device=device)
    return buffer.nbytes / min(seconds(buffer) for _ in range(PASSES))


def seconds(buffer: torch.Tensor) -> float:
    wait(buffer.device)
    start = perf_counter()
    buffer.sum()
    wait(buffer.device)
    return perf_counter() - start


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
