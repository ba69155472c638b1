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

from ostro.plugins.conformance.kernels import DEVICE, interpret  # reads the environment

interpret()
THREADS = torch.get_num_threads()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options of the suite."""
    parser.addoption(
        "--soak-minutes", type=float, default=60.0, help="duration of the soak in tests/load"
    )


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Restore the number of threads, since a model of an earlier test may have raised it."""
    torch.set_num_threads(THREADS)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Exclude modules and tests from garbage collections, which take half a second with them."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On a GPU, skip the tests of native kernels among those that make tensors on `DEVICE`."""
    if DEVICE.type == "cpu":
        return
    skip = pytest.mark.skip(reason="a native kernel takes tensors of the CPU, not of the GPU")
    for item in items:
        if hasattr(getattr(item, "module", None), "DEVICE") and "native" in item.name:
            item.add_marker(skip)
