"""Which checks of the kit are slow: those that repeat what a family of the same kind shows."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest
from tiny.families import REPRESENTATIVES

from ostro.plugins.conformance.architecture import ArchitectureTests

REPEATED = (
    "adapter deltas reach every linear",
    "adapters match merged weights",
    "adapters on quantized weights match merged floats",
    "batch rows use only their own adapters",
    "captured loop matches eager",
    "chunked prefill matches full prefill",
    "every mutant fails parity",
    "plugin is listed without importing torch",
    "preemption does not change outputs",
    "prefix cache hits do not change outputs",
    "quantized models match dequantized weights",
    "ragged batches match single sequences",
)
"""Quick for `REPRESENTATIVES` only: the others have the same linears, adapters and caches."""

LONG: Mapping[str, Collection[str]] = {
    "quantized models match dequantized weights": ("llama", "mixtral"),
    "adapters on quantized weights match merged floats": ("llama",),
    "adapters match merged weights": ("deepseek_v2", "llama", "mixtral", "whisper"),
    "batch rows use only their own adapters": ("llama", "whisper"),
    "captured loop matches eager": ("llama", "mamba2", "qwen3_next", "whisper"),
    "every mutant fails parity": ("bert", "llama", "mamba2"),
    "preemption does not change outputs": ("llama", "mamba2", "qwen2_5_vl", "whisper"),
}
"""Checks of a second and more, and the representatives for which they are quick."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        family, callspec = getattr(item, "cls", None), getattr(item, "callspec", None)
        if callspec is None or family is None or not issubclass(family, ArchitectureTests):
            continue
        check = callspec.params.get("check")
        if check in REPEATED and getattr(family, "name", "") not in LONG.get(
            check, REPRESENTATIVES
        ):
            item.add_marker("slow")
