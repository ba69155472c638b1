"""Fixtures: the parsers of all notations."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Parser


@pytest.fixture(scope="session")
def parsers() -> Mapping[str, Parser]:
    plugins = PluginManager()
    plugins.load()
    return plugins.collect("parsers")
