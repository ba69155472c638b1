"""Fixtures: tiny re-initialised models, each made once, and a second device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from ostro.architectures.gemma3 import TINY as GEMMA3
from ostro.architectures.llama import TINY as LLAMA
from ostro.architectures.mixtral import TINY as MIXTRAL
from ostro.architectures.qwen3_next import TINY as QWEN3_NEXT
from ostro.core.plugins.manager import PluginManager
from ostro.plugins.conformance.parity import Subject, subject
from ostro.plugins.conformance.second_device import SimulatedDevice, second_device

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "llama": {**LLAMA, "num_hidden_layers": 6},
    "tied": {**LLAMA, "num_hidden_layers": 2, "tie_word_embeddings": True},
    "gemma3": GEMMA3,
    "mixtral": MIXTRAL,
    "qwen3_next": QWEN3_NEXT,
}


@pytest.fixture(scope="module")
def made(plugins: PluginManager) -> Iterator[Callable[[str], Subject]]:
    """Subjects by name, each made once."""
    found: dict[str, tuple[Any, Subject]] = {}

    def get(name: str) -> Subject:
        if name not in found:
            arch = name if name != "tied" else "llama"
            context = subject(plugins, arch, config=SHAPES[name])
            found[name] = context, context.__enter__()
        return found[name][1]

    yield get
    for context, _ in found.values():
        context.__exit__(None, None, None)


@pytest.fixture
def device() -> Iterator[SimulatedDevice]:
    with second_device() as made:
        yield made
