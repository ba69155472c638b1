"""A tiny llama with honest weights, once, and engines over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from ostro.core.engine.engine import Engine
from ostro.core.plugins import PluginManager
from ostro.core.records import Settings
from ostro.core.testing.parity import Subject, subject


@pytest.fixture(scope="session")
def plugins() -> PluginManager:
    manager = PluginManager()
    manager.load(Settings())
    return manager


@pytest.fixture(scope="session")
def llama(plugins: PluginManager) -> Iterator[Subject]:
    with subject(plugins, "llama") as made:
        yield made


@pytest.fixture(scope="session")
def mistral(plugins: PluginManager) -> Iterator[Subject]:
    with subject(plugins, "mistral") as made:
        yield made


@pytest.fixture(params=["eager", "replay"])
def engine_of(request: pytest.FixtureRequest) -> Callable[..., Engine]:
    """Builds engines; every test that uses it runs in the eager loop and in the captured one."""

    def build(made: Subject, **options: object) -> Engine:
        engine = made.engine(replay=request.param == "replay", **options)  # type: ignore[arg-type]
        engine.runner.capture()
        return engine

    return build
