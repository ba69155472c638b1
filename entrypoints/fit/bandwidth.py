"""How fast a device reads its memory: what bounds the tokens that one sequence draws."""

from __future__ import annotations

from time import perf_counter

import torch

SIZE = {"cpu": 2**28, "cuda": 2**30}
"""Bytes that are read: far more than caches hold."""

PASSES = 8
"""The fastest of so many counts: others are those in which the machine did something else."""


def measure_bandwidth(device: torch.device) -> float:
    """Bytes per second, read by as many threads as torch has; takes a fraction of a second."""
    # Pages that nothing was written to would all be one.
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
