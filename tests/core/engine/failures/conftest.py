"""A model with a logits processor that raises."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tiny.failing import FAULTY

from ostro.core.plugins.manager import PluginManager
from ostro.core.settings import Settings
from ostro.plugins.conformance.parity import Subject


@pytest.fixture(scope="module")
def faulty(llama: Subject) -> Subject:
    """The tiny llama, with a plugin whose logits processor raises as a request demands."""
    plugins = PluginManager()
    plugins.load(Settings(), [FAULTY])
    return replace(llama, plugins=plugins)
