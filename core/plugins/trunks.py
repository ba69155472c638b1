"""Trunks: built-in plugins that other plugins may build on, imported from `ostro.trunks`."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

from ostro.core.plugins.discovery import built_in


@cache
def trunks() -> frozenset[str]:
    """The built-in plugins that others may build on, by the names of their folders."""
    plugins = (each for each in built_in() if each.name.startswith(("architectures.", "quant.")))
    return frozenset(
        plugin.name.partition(".")[2]
        for plugin in plugins
        if trunk_module(import_module(f"ostro.{plugin.name}"))
    )


def trunk_module(plugin: ModuleType) -> str | None:
    """The module of a built-in plugin that others may build on, or None.

    A plugin names it in a constant `TRUNK`; that of an architecture whose record says `trunk` is
    its model's.
    """
    for record in getattr(plugin, "ostro_architectures", tuple)():
        if record.trunk:
            return record.model.partition(":")[0]
    return getattr(plugin, "TRUNK", None)
