"""The public surface: what of ostro a plugin may import, and what to write instead of the rest.

Sources are parsed and never run, and nothing here imports torch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import NamedTuple

from ostro.core.plugins.discovery import built_in

MODULES = ("config", "errors", "native", "nn", "ops", "testing")
"""The modules of the core that ostro exports as they are."""

PAGE = "docs/hooks.md lists what it does"


class Import(NamedTuple):
    """`from module import name`, or `import module` where `name` is empty, on that line."""

    line: int
    module: str
    name: str

    @property
    def full(self) -> str:
        """What is imported, as one dotted name."""
        return f"{self.module}.{self.name}".rstrip(".")


def imports(nodes: Iterable[ast.AST], package: Sequence[str]) -> Iterator[Import]:
    """The imports among the nodes of a source, relative ones seen from the package it lies in."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *filter(None, [node.module])])
            yield from (Import(node.lineno, module, alias.name) for alias in node.names)


def breach(imported: Import, plugin: str = "") -> tuple[str, str] | None:
    """Why an import by a plugin may break any day, and what to write; None if it may not.

    Public are ostro's own names, the modules of the core that it exports, and trunks. `plugin` is
    the name of the plugin's module, where that is one of ours.
    """
    room, *rest = imported.full.split(".")
    if room != "ostro" or (plugin and f"{imported.full}.".startswith(f"{plugin}.")):
        return None
    names = exported()
    if imported.module == "ostro":
        known = not imported.name or imported.name in names
        return None if known else (f"ostro exports no {imported.name!r}", PAGE)
    match rest:
        case ["testing", *_]:
            return None
        case ["core", module, *_] if module in MODULES:
            return None
        case ["trunks" | "architectures" | "quant", trunk, *_]:
            todo = f"build on one of {', '.join(sorted(trunks()))}, or on ostro.nn"
            return None if trunk in trunks() else (f"{trunk} is no trunk", todo)
    instead = next((part for part in (imported.name, rest[0]) if part in names), None)
    return (
        f"{imported.full} is not part of ostro's public surface and may change any day",
        f"write `from ostro import {instead}`" if instead else PAGE,
    )


def exported() -> frozenset[str]:
    """The names that `from ostro import` finds, deprecated ones included."""
    ostro = import_module("ostro")
    return frozenset({*ostro.__all__, *ostro.DEPRECATED, "__version__"})


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
