"""Which checks of the kit are slow: those that repeat what a family of the same kind shows."""

from __future__ import annotations

import pytest
from tiny.families import REPRESENTATIVES

from ostro.plugins.conformance.architecture import ArchitectureTests

REPEATED = (
    "quantized models match dequantized weights",
    "adapters match merged weights",
    "adapters on quantized weights match merged floats",
    "batch rows use only their own adapters",
    "captured loop matches eager",
    "preemption does not change outputs",
    "prefix cache hits do not change outputs",
    "ragged batches match single sequences",
)
"""Quick for `REPRESENTATIVES` only: the others have the same linears, adapters and caches."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        family, callspec = getattr(item, "cls", None), getattr(item, "callspec", None)
        if callspec is None or family is None or not issubclass(family, ArchitectureTests):
            continue
        represented = getattr(family, "name", "") not in REPRESENTATIVES
        if represented and callspec.params.get("check") in REPEATED:
            item.add_marker("slow")
