"""Check a plugin's imports: only ostro's public API, and no heavy packages at discovery."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from ostro.core.plugins.kinds import KINDS
from ostro.plugins.authoring.finding import Finding, error
from ostro.plugins.authoring.package import Package
from ostro.plugins.authoring.surface import breach, imports

HEAVY = frozenset("torch transformers triton numpy diffusers safetensors scipy sklearn".split())
LIGHT = frozenset(
    [
        *"hookimpl errors config Record __version__".split(),
        *"Files Format TensorInfo TokenizerSource Conformance Mutant Settings".split(),
        *(record.__name__ for record in KINDS.values()),
    ]
)
"""Names of `ostro` that can be imported without importing torch."""


def outside(file: str, tree: ast.Module) -> Iterator[Finding]:
    """Findings for imports outside of ostro's public API."""
    for imported in imports(ast.walk(tree), package_of(file)):
        if why := breach(imported):
            yield error(f"{file}:{imported.line}", *why)


def heavy(package: Package, file: str, trees: Mapping[str, ast.Module]) -> Iterator[Finding]:
    """Findings for heavy imports at discovery, directly or through the plugin's own modules."""
    waiting, seen = [file], {file}
    while waiting:
        file = waiting.pop()
        for line, module, name in imports(at_import(trees[file].body), package_of(file)):
            if weighs(module, name):
                statement = f"from {module} import {name}" if name else f"import {module}"
                yield error(
                    f"{file}:{line}",
                    f"`{statement}` runs whenever ostro lists its plugins",
                    "move it to the module that an import string of the record names",
                )
            for own in map(package.file_of, (f"{module}.{name}", module)):
                if own is not None and own in trees and own not in seen:
                    seen.add(own)
                    waiting.append(own)


def package_of(file: str) -> tuple[str, ...]:
    """The package against which a file's relative imports are resolved."""
    return PurePosixPath(file).parent.parts


def weighs(module: str, name: str) -> bool:
    """Whether an import loads torch or another heavy package."""
    top, *rest = module.split(".")
    if top != "ostro":
        return top in HEAVY
    if not rest:
        return name not in {"", *LIGHT}
    a_record = rest[0] == "architectures" and len(rest) == 2 and name != "model"
    return not (a_record or module in ("ostro.core.errors", "ostro.core.config"))


def at_import(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """The statements that run when a module is imported, nested ones included.

    Bodies of functions and of `if TYPE_CHECKING` do not run.
    """
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from at_import(node.orelse)
            continue
        yield node
        for field in ("body", "orelse", "finalbody"):
            yield from at_import(getattr(node, field, []))
        for handler in getattr(node, "handlers", []):
            yield from at_import(handler.body)
