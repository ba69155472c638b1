"""Which checks of the kit are slow: those that the format grid repeats with all formats."""

from __future__ import annotations

import pytest

from ostro.plugins.conformance.architecture import ArchitectureTests, all_plugins

REPEATED = (
    "quantized models match dequantized weights",
    "adapters on quantized weights match merged floats",
)
"""Quick for trunks only: families on a trunk multiply by the same linears."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    records = all_plugins().collect("architectures")
    for item in items:
        family, callspec = getattr(item, "cls", None), getattr(item, "callspec", None)
        if callspec is None or family is None or not issubclass(family, ArchitectureTests):
            continue
        record = records.get(getattr(family, "name", ""))
        if callspec.params.get("check") in REPEATED and record is not None and not record.trunk:
            item.add_marker("slow")
