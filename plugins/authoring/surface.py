"""The public API: the names that plugins may import, and replacements for other names.

Sources are parsed, not executed, and this module does not import torch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from ostro.core.plugins.trunks import trunks

MODULES = (
    "caches",
    "checkpoints",
    "config",
    "errors",
    "http",
    "nn",
    "ops",
    "pipelines",
    "testing",
)
"""The public modules besides `ostro` and `ostro.trunks`; their public names are in `__all__`."""

PROVISIONAL = (
    "caches",
    "checkpoints",
    "http",
    "ops",
    "pipelines",
    "trunks",
    "Alias",
    "BlobWriter",
    "Document",
    "DocumentStore",
    "FormatPlanner",
    "HubReference",
    "Parser",
    "Planner",
    "Store",
    "StoreOpener",
    "StoreUsage",
    "TokenizerFormat",
    "TokenizerLoader",
    "TokenizerSource",
    "multi_token_names",
    "new_id",
    "nn.AssistantModel",
    "nn.MultiTokenHead",
    "nn.RecurrentLayer",
)
"""Public modules and names that may change in a minor version; all others are stable."""

RENAMED = {
    "nn.Packed": "trunks.planes.Packed",
    "nn.Ragged": "nn.Dequantized",
    "nn.Remembers": "nn.CachedLayer",
}
"""Names of public modules in API (0, 1), and their names in this one."""

PAGE = "docs/api.md lists the public names"


class Import(NamedTuple):
    """`from module import name`, or `import module` if `name` is empty, with its line."""

    line: int
    module: str
    name: str

    @property
    def full(self) -> str:
        """The imported module or object as a dotted name."""
        return f"{self.module}.{self.name}".rstrip(".")


def imports(nodes: Iterable[ast.AST], package: Sequence[str]) -> Iterator[Import]:
    """The imports among AST nodes, with relative ones resolved against `package`."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *filter(None, [node.module])])
            yield from (Import(node.lineno, module, alias.name) for alias in node.names)


def breach(imported: Import, plugin: str = "") -> tuple[str, str] | None:
    """(reason, replacement) if a plugin may not import a name of ostro, else None.

    Public names are the exports of `ostro`, those in `__all__` of its public `MODULES`, and the
    trunks. `plugin` is the module of the importing plugin if it is built in.
    """
    room, *rest = imported.full.split(".")
    if room != "ostro" or (plugin and f"{imported.full}.".startswith(f"{plugin}.")):
        return None
    if imported.module == "ostro":
        known = not imported.name or imported.name in exported() or imported.name == "trunks"
        return None if known else (f"ostro exports no {imported.name!r}", PAGE)
    if rest[0] in MODULES:
        names = public_names(rest[0])
        known = len(rest) == 1 or (len(rest) == 2 and rest[1] in names)
        name = ".".join(rest[1:])
        return None if known else (f"ostro.{rest[0]} exports no {name!r}", renamed(rest[0], name))
    if rest[0] in ("trunks", "architectures", "quant") and len(rest) > 1:
        todo = f"build on one of {', '.join(sorted(trunks()))}, or on ostro.nn"
        return None if rest[1] in trunks() else (f"{rest[1]} is not a trunk", todo)
    return (
        f"{imported.full} is not part of ostro's public API and may change at any time",
        replacement(imported.name or rest[-1]) or PAGE,
    )


def renamed(module: str, name: str) -> str:
    """What to write in the place of a name that a public module does not export."""
    new = RENAMED.get(f"{module}.{name}")
    return PAGE if new is None else f"write ostro.{new}"


def replacement(name: str) -> str | None:
    """The import statement of a public name, or None if no public module exports it."""
    if name in exported():
        return f"write `from ostro import {name}`"
    found = next((module for module in MODULES if name in public_names(module)), None)
    return None if found is None else f"write `from ostro.{found} import {name}`"


def exported() -> frozenset[str]:
    """The names that `ostro` exports, including deprecated ones."""
    ostro = import_module("ostro")
    return frozenset({*ostro.__all__, *ostro.DEPRECATED, "__version__"})


LISTS = {"nn": "ostro.core.nn", "testing": "ostro.plugins.conformance"}
"""The modules with the real `__all__`, for public modules that re-export all of it."""


@cache
def public_names(module: str) -> frozenset[str]:
    """`__all__` of one of `MODULES`, read from its source, without importing torch."""
    source = LISTS.get(module, f"ostro.{module}")
    spec = find_spec(source)
    assert spec is not None and spec.origin is not None, f"{source} does not exist"
    for node in ast.parse(Path(spec.origin).read_bytes()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return frozenset(ast.literal_eval(node.value))
    raise AssertionError(f"{source} has no __all__")
