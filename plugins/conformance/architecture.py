"""`ArchitectureTests`: a pytest class that runs every check of an architecture.

class TestLlama(ArchitectureTests):
    name = "llama"

Each check that applies to the record is a test. A class without a `name` tests the architectures
of `--ostro-arch`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from typing import ClassVar

import pytest

from ostro.core.errors import OstroError
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Architecture
from ostro.core.settings import Settings
from ostro.plugins.conformance.checks import CHECKS, checks_of
from ostro.plugins.conformance.decoder import RAGGED as RAGGED
from ostro.plugins.conformance.outputs import NonzeroDelta as NonzeroDelta
from ostro.plugins.conformance.outputs import unfuse as unfuse
from ostro.plugins.conformance.parity import Subject, subject
from ostro.plugins.conformance.references import NoReference


@cache
def all_plugins(paths: tuple[str, ...] = ()) -> PluginManager:
    """All built-in and installed plugins, and those in `paths`; loaded once per process."""
    manager = PluginManager()
    manager.load(Settings(), paths)
    return manager


def loaded_plugins(config: pytest.Config) -> PluginManager:
    """The plugins of a test run: the installed ones and those of `--ostro-plugin`."""
    return all_plugins(tuple(config.getoption("ostro_plugin", [])))


class Case:
    """Fixtures: the plugins, and the subject of the architecture `name`."""

    name: ClassVar[str]

    @pytest.fixture(scope="class")
    @classmethod
    def plugins(cls, pytestconfig: pytest.Config) -> PluginManager:
        return loaded_plugins(pytestconfig)

    @pytest.fixture(scope="class")
    @classmethod
    def tiny(cls, plugins: PluginManager, request: pytest.FixtureRequest) -> Iterator[Subject]:
        with ExitStack() as stack:
            made = subject(plugins, getattr(request, "param", None) or cls.name)
            try:
                tested = stack.enter_context(made)
            except NoReference as error:
                pytest.skip(str(error))
            yield tested


class ArchitectureTests(Case):
    """One test per check that applies to the architecture `name`."""

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
            raise pytest.UsageError("no architecture is named; add --ostro-arch NAME")

    def test_conforms(self, tiny: Subject, check: str) -> None:
        CHECKS[check].run(tiny)


def checks(name: str, config: pytest.Config) -> list[str]:
    """The names of the checks that apply to an architecture."""
    try:
        record: Architecture = loaded_plugins(config).get("architectures", name)
    except OstroError as error:
        raise pytest.UsageError(str(error)) from None
    return [check.name for check in checks_of(record)]
