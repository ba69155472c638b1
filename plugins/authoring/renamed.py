"""Find members of ostro that plugin API 0.2 renamed, and attributes that it does not export.

A name is followed through the imports and classes of one file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cached_property
from typing import TypeVar

from ostro.core.records import Conformance
from ostro.plugins.authoring.finding import Finding, error, warning
from ostro.plugins.authoring.surface import MODULES, Import, breach, imports

LINEAR = {"held": "active_storages", "seen": "weight_shape"}
MODEL = {"remember": "write_states", "sees": "rows_with_media"}
CONFORMANCE = tuple(field.name for field in fields(Conformance))
MEMBERS: Mapping[str, Mapping[str, str]] = {
    "Architecture": {name: f"conformance.{name}" for name in CONFORMANCE},
    "CacheKind": {"keeps": "needs_block", "narrows": "supports_quantized"},
    "Inputs": {"place": "expand_placeholders"},
    "Step": {"wanted": "logits_indices"},
    "Storage": {"settle": "finalize", "norms": "row_norms_sq"},
    "nn.Attention": {"place": "rotate_and_write"},
    "nn.CrossAttention": MODEL,
    "nn.Embedding": LINEAR,
    "nn.ExpertLinear": LINEAR,
    "nn.Linear": LINEAR,
    "nn.EncoderModel": MODEL,
    "nn.Model": MODEL,
    "nn.TokenModel": MODEL,
    "ops.Op": {"settle": "select"},
}
"""The members of public classes that were renamed, old to new."""

KEYWORDS: Mapping[str, Mapping[str, str]] = {
    "Kernel": {"lays": "layout", "rounds": "quantizes_activations"},
    "nn.MLP": {"approximate": 'the activation "gelu_tanh"'},
    "nn.Router": {"renormalise": "RoutingRule(top, renormalise)"},
}
"""The arguments of public classes that were replaced, old to new."""

MODELS = {"logits": "nn.TokenModel", "work": "nn.JobModel", "hidden": "nn.EncoderModel"}
"""The base of a model by a method that it has, the first that applies."""

N = TypeVar("N", bound=ast.AST)
Function = ast.FunctionDef | ast.AsyncFunctionDef


class File:
    """The tree of one file, with the names of ostro that it imports."""

    def __init__(self, file: str, tree: ast.Module, package: tuple[str, ...]) -> None:
        self.file, self.tree, self.package = file, tree, package
        self.classes = {node.name: node for node in self.all(ast.ClassDef)}

    def all(self, kind: type[N]) -> Iterator[N]:
        """All nodes of a kind."""
        return (node for node in ast.walk(self.tree) if isinstance(node, kind))

    @cached_property
    def names(self) -> dict[str, str]:
        """What each imported name stands for; without names that the file also assigns."""
        found: dict[str, str] = {}
        nodes: list[ast.Import | ast.ImportFrom] = [
            *self.all(ast.Import),
            *self.all(ast.ImportFrom),
        ]
        for node in nodes:
            for alias, imported in zip(node.names, imports([node], self.package), strict=True):
                top = (
                    imported.full if alias.asname or imported.name else imported.full.split(".")[0]
                )
                found[alias.asname or alias.name.split(".")[0]] = top
        assigned = {node.id for node in self.all(ast.Name) if not isinstance(node.ctx, ast.Load)}
        assigned |= {node.arg for node in self.all(ast.arg)}
        return {name: full for name, full in found.items() if name not in assigned}

    def full(self, node: ast.AST | None) -> str:
        """The dotted name of an imported object, "" for others. An annotation may be a string."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return self.names.get(node.value, "")
        if isinstance(node, ast.Name):
            return self.names.get(node.id, "")
        if isinstance(node, ast.Attribute) and (owner := self.full(node.value)):
            return f"{owner}.{node.attr}"
        return ""

    def public(self, node: ast.AST | None) -> str:
        """The name of a public object of ostro without "ostro.", "" for others."""
        full = self.full(node)
        return full.removeprefix("ostro.") if full.startswith("ostro.") else ""

    def bases(self, node: ast.ClassDef) -> Iterator[str]:
        """The public bases of a class, also those of its bases in this file."""
        for base in node.bases:
            own = self.classes.get(base.id) if isinstance(base, ast.Name) else None
            if own is not None and own is not node:
                yield from self.bases(own)
            elif name := self.public(base):
                yield name

    def at(self, node: ast.stmt | ast.expr) -> str:
        return f"{self.file}:{node.lineno}"


def renamed(file: str, tree: ast.Module, package: tuple[str, ...]) -> Iterator[Finding]:
    """Findings for attributes, members and arguments that this version of ostro does not have."""
    source = File(file, tree, package)
    for node in source.all(ast.Attribute):
        owner = source.full(node.value)
        if owner == "ostro" or owner in {f"ostro.{module}" for module in MODULES}:
            if why := breach(Import(node.lineno, owner, node.attr)):
                yield error(source.at(node), *why)
    for definition in source.all(ast.ClassDef):
        yield from old_members(source, definition)
    functions: list[Function] = [
        *source.all(ast.FunctionDef),
        *source.all(ast.AsyncFunctionDef),
    ]
    for function in functions:
        yield from old_uses(source, function)
    for call in source.all(ast.Call):
        name = source.public(call.func)
        for keyword in call.keywords:
            if new := KEYWORDS.get(name, {}).get(keyword.arg or ""):
                what = f"ostro.{name} has no argument {keyword.arg!r}"
                yield error(source.at(call), what, f"use {new}")
        yield from old_conformance(source, call)


def old_conformance(source: File, call: ast.Call) -> Iterator[Finding]:
    """A finding for the fields of `Conformance` among the arguments of an architecture.

    `dataclasses.replace` with a name is one of an architecture: a `Conformance` has no name.
    """
    given = [keyword.arg for keyword in call.keywords]
    moved = ", ".join(f"{name}=..." for name in CONFORMANCE if name in given)
    replaces = source.full(call.func) == "dataclasses.replace" and "name" in given and call.args
    if not moved or not (replaces or source.public(call.func) == "Architecture"):
        return
    new = f"replace({ast.unparse(call.args[0])}.conformance, " if replaces else "Conformance("
    what = f"{moved} is deprecated as an argument of ostro.Architecture"
    yield warning(source.at(call), what, f"write conformance={new}{moved})")


def old_members(source: File, definition: ast.ClassDef) -> Iterator[Finding]:
    """Findings for the members of a class that override nothing, and for an old base of models."""
    bases = list(source.bases(definition))
    members = {node.name: node for node in definition.body if isinstance(node, Function)}
    for base in bases:
        for name, node in members.items():
            if new := MEMBERS.get(base, {}).get(name):
                what = f"{definition.name}.{name} overrides nothing: ostro.{base} has no {name!r}"
                yield error(source.at(node), what, f"rename it to {new}")
    if {"Model", "nn.Model"} & set(map(source.public, definition.bases)):
        todo = next((base for method, base in MODELS.items() if method in members), None)
        if todo is not None:
            what = f"{definition.name} derives from nn.Model, which serves no task"
            yield error(source.at(definition), what, f"derive it from {todo}")


def old_uses(source: File, function: Function) -> Iterator[Finding]:
    """Findings for the attributes of arguments, by their annotations."""
    arguments = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    kinds = {each.arg: source.public(each.annotation) for each in arguments}
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            kind = kinds.get(node.value.id, "")
            if new := MEMBERS.get(kind, {}).get(node.attr):
                what = f"ostro.{kind} has no {node.attr!r}"
                yield error(source.at(node), what, f"write {node.value.id}.{new}")
