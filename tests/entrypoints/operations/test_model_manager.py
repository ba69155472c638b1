"""Which model is unloaded for another one."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from ostro.core.records import Settings
from ostro.entrypoints.operations.model_manager import ModelManager
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
