"""The search on a tiny model: budgets are kept, with the model run in floats and without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import pytest

from ostro.core.engine.calibration import open_probe
from ostro.core.errors import UsageError
from ostro.core.load.model import load_model
from ostro.core.load.planning import OpenProbe
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Settings
from ostro.plugins.conformance.architecture import all_plugins
from ostro.plugins.conformance.formats import wide
from ostro.plugins.conformance.parity import Subject
from ostro.quant.mixed_precision.budget import Budget, is_budget, read_budget


@pytest.fixture(scope="module")
def plugins() -> PluginManager:
    return all_plugins()


@pytest.fixture(scope="module")
def llama(plugins: PluginManager) -> Iterator[Subject]:
    with wide(plugins, plugins.get("architectures", "llama")) as made:
        yield made


@contextmanager
def no_probe(*_: object) -> Iterator[None]:
    yield None


@pytest.mark.parametrize(
    ("probe", "basis"),
    [(open_probe, "estimated divergence"), (no_probe, "by the errors of weights only")],
)
def test_a_budget_is_spent_without_excess(
    llama: Subject, plugins: PluginManager, probe: OpenProbe, basis: str
) -> None:
    settings = Settings(dtype="float32", quant="5bpw")
    loaded = load_model(llama.folder, settings, plugins, open_probe=probe)
    modules: Any = loaded.model.modules()
    storages = {
        id(s): s for module in modules for s in getattr(module, "active_storages", [])
    }.values()
    bits = 8 * sum(s.nbytes for s in storages) / sum(prod(s.shape) for s in storages)
    assert 4.5 <= bits <= 5.0
    [outcome] = [line for line in loaded.explain if line.startswith("budget 5bpw:")]
    assert basis in outcome


def test_too_small_a_budget_is_refused_with_the_least_that_is_needed(
    llama: Subject, plugins: PluginManager
) -> None:
    with pytest.raises(UsageError, match=r"needs at least \d\.\d+bpw"):
        load_model(llama.folder, Settings(quant="0.5bpw"), plugins, open_probe=no_probe)


@pytest.mark.parametrize("text", ["6GB", " .5 gib ", "100b", "4.5bpw", "3 BPW"])
def test_budgets_are_claimed(text: str) -> None:
    assert is_budget(text)


@pytest.mark.parametrize("text", ["q4k", "4", "4.5", "bpw", "6G", "", "6GB and more"])
def test_formats_are_not_claimed(text: str) -> None:
    assert not is_budget(text)


def test_budgets_are_read() -> None:
    assert read_budget("6GB") == Budget("6GB", nbytes=6 * 10**9)
    assert read_budget(" 4.5bpw") == Budget("4.5bpw", bits=4.5)
    for text in ("0bpw", "65bpw"):
        with pytest.raises(UsageError, match=r"must be in 0\.\.64"):
            read_budget(text)
