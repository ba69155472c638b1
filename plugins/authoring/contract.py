"""Check the hooks and records in a plugin's source against this version of ostro."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from importlib.util import find_spec
from typing import TypeGuard

from ostro.core import hooks
from ostro.core.commands import COMMANDS
from ostro.core.plugins.kinds import KINDS
from ostro.core.plugins.manager import HOOKS
from ostro.core.plugins.validation import CHECKS, is_compatible
from ostro.core.records import API, Architecture, Command, Conformance, Record
from ostro.errors import nearest
from ostro.plugins.authoring.finding import Finding, error, warning
from ostro.plugins.authoring.package import Package

RECORDS: Mapping[str, type[Record | Conformance]] = {
    record.__name__: record for record in (*KINDS.values(), Conformance)
}
PAGE = "docs/hooks.md lists them"
UNKNOWN = object()
"""The value of an expression that is not a literal."""


@dataclass(frozen=True)
class Source:
    """The module of an entry point, with the parsed files of its plugin."""

    package: Package
    file: str
    trees: Mapping[str, ast.Module]

    @property
    def tree(self) -> ast.Module:
        return self.trees[self.file]

    def at(self, node: ast.stmt | ast.expr) -> str:
        return f"{self.file}:{node.lineno}"


def check_module(source: Source) -> Iterator[Finding]:
    """Check the hooks of a module and all records that it creates."""
    named = [name for name in defined(source.tree) if name.startswith(hooks.PREFIX)]
    if not named:
        yield error(source.file, "it implements no hook", PAGE)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in named:
            yield from check_hook(source.at(node), node)
        elif isinstance(node, ast.Call):
            kind = RECORDS.get(ast.unparse(node.func).rpartition(".")[2])
            if kind is not None:
                yield from check_record(source, node, kind)


def check_hook(where: str, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Finding]:
    """Check a hook's name, its @hookimpl and its arguments."""
    name = function.name
    if name not in HOOKS:
        yield error(where, f"unknown hook {name}{nearest(name, HOOKS, n=1)}", "rename it")
        return
    marks = [ast.unparse(each) for each in function.decorator_list]
    ours = [mark for mark in marks if mark.partition("(")[0].rpartition(".")[2] == "hookimpl"]
    if not ours:
        yield error(where, f"{name} is not marked", "put @hookimpl above it")
    if any("wrapper=True" in mark for mark in ours):
        yield error(
            where, f"{name} is a hook wrapper, which is not supported", "remove wrapper=True"
        )
    known = list(inspect.signature(getattr(hooks, name)).parameters)
    for argument in (*function.args.posonlyargs, *function.args.args):
        if argument.arg not in (*known, "self"):
            expected = ", ".join(known) or "none"
            yield error(where, f"{name} has no argument {argument.arg!r}", f"it has: {expected}")


def check_record(
    source: Source, call: ast.Call, kind: type[Record | Conformance]
) -> Iterator[Finding]:
    """Check the fields of a record and the targets of its import strings."""
    where, what = source.at(call), kind.__name__
    known = {field.name: field for field in fields(kind)}
    # deprecated, as `renamed` says
    moved = {field.name: field for field in fields(Conformance)} if kind is Architecture else {}
    given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    if call.args:
        yield error(where, f"{what} takes keywords only", "write name=..., and so on")
    for name, node in given.items():
        if field := known.get(name) or moved.get(name):
            yield from check_field(source, node, f"{what}.{name}", str(field.type))
        else:
            yield error(where, f"{what} has no field {name!r}{nearest(name, known)}", PAGE)
    # fields given as **kwargs are unknown, so missing ones cannot be detected
    if any(keyword.arg is None for keyword in call.keywords):
        return
    for name, field in known.items():
        if name not in given and field.default is MISSING and field.default_factory is MISSING:
            yield error(where, f"{what} needs the field {name!r}", "add it")
    if kind is Architecture:
        yield from check_tested(where, given)
    if kind is Command and "name" in given:
        value = constant(given["name"], source.file)
        if isinstance(value, str) and value in COMMANDS:
            what = f"ostro itself has the command {value!r}, which is used instead"
            yield error(where, what, "rename it")


def check_tested(where: str, given: Mapping[str, ast.expr]) -> Iterator[Finding]:
    """Check that an architecture has the fields that the conformance kit needs."""
    stated = {*given}
    if (node := given.get("conformance")) is not None:
        names = [keyword.arg for keyword in node.keywords] if is_conformance(node) else [None]
        if None in names:  # its fields are unknown
            return
        stated |= {*filter(None, names)}
    if "tiny" not in stated:
        what = "no `tiny`: without a small config nothing can be tested"
        yield error(where, what, 'add conformance=Conformance(tiny={"hidden_size": 64, ...})')
    if "reference" not in stated:
        what = "no `reference`: its logits cannot be compared"
        yield warning(where, what, 'add conformance=Conformance(reference="package.module:Class")')


def is_conformance(node: ast.expr) -> TypeGuard[ast.Call]:
    """Whether an expression is a call of `Conformance`."""
    if not isinstance(node, ast.Call):
        return False
    return ast.unparse(node.func).rpartition(".")[2] == Conformance.__name__


def check_field(source: Source, node: ast.expr, what: str, annotation: str) -> Iterator[Finding]:
    """Check the value of a field if it is a literal."""
    form = annotation.removesuffix(" | None")
    value = constant(node, source.file)
    if value is UNKNOWN or value is None:
        return
    where = source.at(node)
    if form in CHECKS and not CHECKS[form](value):
        expected = "an import string, 'package.module:name'" if form == "Import" else form
        fault = f"{what} is {value!r:.80}, expected {expected}"
        yield error(where, fault, "docs/hooks.md describes the fields")
    elif form == "Import":
        yield from check_target(source, where, what, str(value))
    elif isinstance(value, tuple) and form == "tuple[int, int]" and not is_compatible(value):
        theirs, ours = (".".join(map(str, version)) for version in (value, API))
        fault = f"{what} is {theirs}, this ostro has the plugin API {ours}"
        yield error(where, fault, f"port it to {ours} and write api={API}")


def check_target(source: Source, where: str, what: str, target: str) -> Iterator[Finding]:
    """Check that the target of an import string exists, in the plugin or an installed package."""
    module, _, rest = target.partition(":")
    top, name = module.split(".")[0], rest.split(":")[-1].split(".")[0]
    named = f"{what} names {target}"
    if top not in {file.split("/")[0].removesuffix(".py") for file in source.package.sizes}:
        if top == "ostro":
            yield warning(where, f"{named}, which is not public", "use a module of the plugin")
        elif find_spec(top) is None:
            fault = f"{named}, but {top} is not installed"
            yield warning(where, fault, "declare it as a dependency")
        return
    file = source.package.file_of(module)
    if file is not None and rest.endswith(".safetensors"):
        found = f"{file.rpartition('/')[0]}/{rest}"
        if found not in source.package.sizes:
            yield error(where, f"{named}: there is no file {found}", "include it in the wheel")
    elif file is None:
        yield error(where, f"{named}: there is no module {module}", "correct the name")
    elif file in source.trees and name not in (names := defined(source.trees[file])):
        fault = f"{named}: {file} has no {name!r}{nearest(name, names)}"
        yield error(where, fault, "correct the name")


def constant(node: ast.expr, file: str) -> object:
    """The value of a literal, or of an f-string of `__name__` and `__package__`; else UNKNOWN."""
    module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    package = module if file.endswith("/__init__.py") else module.rpartition(".")[0]
    known = {"__name__": module, "__package__": package}
    try:
        if not isinstance(node, ast.JoinedStr):
            return ast.literal_eval(node)
        parts = [part.value for part in node.values]  # type: ignore[attr-defined]
        return "".join(known[p.id] if isinstance(p, ast.Name) else p for p in parts)
    except (ValueError, KeyError, TypeError):
        return UNKNOWN


def defined(tree: ast.Module) -> set[str]:
    """The names that a module's source defines, imports or assigns, in any scope."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found
