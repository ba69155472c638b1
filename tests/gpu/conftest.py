"""Tests of this folder need a CUDA device, and draw new inputs in each run."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from gpu.comparison import ON_GPU, TINY

HERE = Path(__file__).parent

CASES = 2
"""Cases of each test that a run with tiny shapes keeps."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    cases = Counter[str]()
    for item in items:
        if item.path.parent != HERE:
            continue
        item.add_marker("gpu")
        name = item.nodeid.partition("[")[0]
        cases[name] += 1
        if not (ON_GPU or TINY):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
        elif TINY and cases[name] > CASES:
            item.add_marker(pytest.mark.skip(reason="one of many cases"))


@pytest.fixture(autouse=True)
def seed() -> int:
    """Seed torch with a number that a failure prints; GPU_SEED repeats it."""
    number = int(os.environ.get("GPU_SEED") or torch.seed() % 2**31)
    torch.manual_seed(number)
    print(f"GPU_SEED={number}")
    return number


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    """Compute float32 without TF32, and leave memory to the tests of other processes.

    After an invalid access no call of the process succeeds: a worker ends then, and pytest-xdist
    starts another one for the remaining tests.
    """
    torch.backends.cudnn.allow_tf32 = False
    yield
    if not ON_GPU:
        return
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError as error:
        print(f"the device failed: {error}", file=sys.stderr, flush=True)
        if "PYTEST_XDIST_WORKER" in os.environ:
            os._exit(1)
        raise
