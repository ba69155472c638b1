"""Settings of all tests: quiet libraries, one thread, and Triton's interpreter without a GPU."""

from __future__ import annotations

import gc
import os

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # spinning would slow down parallel workers

# imported after the environment is set, which these libraries read on import
import pytest
import torch

from ostro.plugins.conformance.kernels import interpret  # reads the environment

interpret()
THREADS = torch.get_num_threads()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Restore the number of threads, since a model of an earlier test may have raised it."""
    torch.set_num_threads(THREADS)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Exclude modules and tests from garbage collections, which take half a second with them."""
    gc.collect()
    gc.freeze()
