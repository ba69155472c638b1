"""The tests of an architecture, from its record alone.

class TestLlama(ArchitectureTests):
    name = "llama"

Each check that is meant for the record is a test (`checks`). Without a `name` the class tests what
`--ostro-arch` names.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import ClassVar

import pytest

from ostro.core.errors import OstroError
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Architecture, Settings
from ostro.plugins.conformance.checks import CHECKS, checks_of
from ostro.plugins.conformance.decoder import RAGGED as RAGGED
from ostro.plugins.conformance.outputs import Nudge as Nudge
from ostro.plugins.conformance.outputs import unfuse as unfuse
from ostro.plugins.conformance.parity import Subject, subject


@cache
def all_plugins(paths: tuple[str, ...] = ()) -> PluginManager:
    """Every plugin in reach, and those in `paths`; found once."""
    manager = PluginManager()
    manager.load(Settings(), paths)
    return manager


def given(config: pytest.Config) -> PluginManager:
    """The plugins of a test run: `--ostro-plugin` adds to those that are installed."""
    return all_plugins(tuple(config.getoption("ostro_plugin", [])))


class Case:
    """The architecture called `name`, and its reference with re-initialised weights."""

    name: ClassVar[str]

    @pytest.fixture(scope="class")
    @classmethod
    def plugins(cls, pytestconfig: pytest.Config) -> PluginManager:
        return given(pytestconfig)

    @pytest.fixture(scope="class")
    @classmethod
    def tiny(cls, plugins: PluginManager, request: pytest.FixtureRequest) -> Iterator[Subject]:
        with subject(plugins, getattr(request, "param", None) or cls.name) as made:
            yield made


class ArchitectureTests(Case):
    """Every check that is meant for the architecture called `name`."""

    @classmethod
    def pytest_generate_tests(cls, metafunc: pytest.Metafunc) -> None:
        if "check" not in metafunc.fixturenames:
            return
        config = metafunc.config
        if hasattr(cls, "name"):
            metafunc.parametrize("check", checks(cls.name, config))
        elif names := config.getoption("ostro_arch", []):
            found = [(name, check) for name in names for check in checks(name, config)]
            ids = [f"{name}: {check}" for name, check in found]
            metafunc.parametrize(("tiny", "check"), found, ids=ids, indirect=["tiny"])
        else:
            raise pytest.UsageError("which architecture? name it: --ostro-arch NAME")

    def test_conforms(self, tiny: Subject, check: str) -> None:
        CHECKS[check].run(tiny)


def checks(name: str, config: pytest.Config) -> list[str]:
    """The names of the checks that are meant for an architecture."""
    try:
        record: Architecture = given(config).get("architectures", name)
    except OstroError as error:
        raise pytest.UsageError(str(error)) from None
    return [check.name for check in checks_of(record)]
