"""Settings and plugins of all tests: quiet libraries, one thread, Triton's interpreter on CPUs."""

from __future__ import annotations

import functools
import gc
import os
import ssl
from collections.abc import Generator
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Triton stores what it compiles in the home folder, which may not be writable.
os.environ.setdefault("TRITON_HOME", str(Path(__file__).parents[1] / "build"))
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # spinning would slow down parallel workers

# imported after the environment is set, which these libraries read on import
import matrices
import pytest
import torch

from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.plugins.conformance.kernels import DEVICE, interpret  # reads the environment

interpret()

# Each client of httpx would read the certificates of the machine again, which takes 60 ms.
ssl.create_default_context = functools.cache(ssl.create_default_context)

THREADS = torch.get_num_threads()

pytest_plugins = ["shards"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options of the suite."""
    parser.addoption(
        "--soak-minutes", type=float, default=60.0, help="duration of the soak in tests/load"
    )
    parser.addoption(
        "--changed", metavar="REF", help="mark the tests of the plugins that differ from REF"
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while tests are collected, which takes a third longer with it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(scope="session")
def plugins() -> PluginManager:
    """All installed plugins. A test that registers another one has a manager of its own."""
    manager = PluginManager()
    manager.load(Settings())
    return manager


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Restore the number of threads, since a model of an earlier test may have raised it."""
    torch.set_num_threads(THREADS)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Exclude modules and tests from garbage collections, which take half a second with them."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark slow cases, and the tests that a change asks for. On a GPU, skip the tests of native
    kernels among those that make tensors on `DEVICE`.
    """
    matrices.mark(items)
    if ref := config.getoption("changed"):
        from changes import changed_files, changes

        from ostro.plugins.conformance.architecture import loaded_plugins

        selected = changes(changed_files(ref), loaded_plugins(config))
        for item in filter(selected.ask_for, items):
            item.add_marker("changed")
    if DEVICE.type == "cpu":
        return
    skip = pytest.mark.skip(reason="a native kernel takes tensors of the CPU, not of the GPU")
    for item in items:
        if hasattr(getattr(item, "module", None), "DEVICE") and "native" in item.name:
            item.add_marker(skip)
