"""Which model is unloaded for another one."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from ostro.core.errors import CheckpointError
from ostro.core.settings import Settings
from ostro.entrypoints.operations.models.model_manager import ModelManager
from ostro.entrypoints.serve_config import Load, ModelOptions


def options(load: Load) -> ModelOptions:
    return ModelOptions(settings=Settings(), load=load)


def test_the_least_recently_used_idle_model_on_demand_is_unloaded() -> None:
    names = ("kept", "old", "new", "unloaded")
    service: Any = SimpleNamespace(
        names=names, aliases={}, models=dict.fromkeys(names[:3]), held=Counter[str]()
    )
    unused: Any = None
    models = [options("start"), *(options("on demand") for _ in names[1:])]
    manager = ModelManager(service, models, unused, unused, ())
    for name, used in zip(names, (1.0, 2.0, 3.0, 0.0), strict=True):
        manager.models[name].used = used

    def chosen(besides: str = "unloaded") -> str | None:
        found = manager.least_recently_used(besides)
        return None if found is None else found.name

    assert chosen() == "old" and chosen(besides="old") == "new"
    service.held["old"] = 1  # a request uses it
    assert chosen() == "new"
    service.held["new"] = 1
    assert chosen() is None


def test_a_change_that_has_ended_is_not_joined() -> None:
    """Its callbacks run in the next pass of the event loop: to wait for it again would spin."""
    service: Any = SimpleNamespace(names=("a",), aliases={}, models={}, held=Counter[str]())

    async def find(settings: Settings) -> Any:
        await found.wait()
        raise CheckpointError("damaged")

    async def end() -> list[str]:
        return []

    found = asyncio.Event()

    async def check() -> None:
        unused: Any = None
        manager = ModelManager(service, [options("on demand")], find, unused, ())
        managed = manager.models["a"]
        ended = manager.run(managed, end())
        await asyncio.sleep(0)
        assert ended.done() and managed.change is ended
        load = manager.begin(managed)
        assert load is not ended
        await asyncio.sleep(0)  # the callbacks of the change that has ended
        assert manager.begin(managed) is load
        found.set()
        with pytest.raises(CheckpointError):
            await load

    asyncio.run(check())
