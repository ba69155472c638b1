"""Parse a reference implementation: the fields of its config and its module tree.

The source is a class of the installed transformers, or a folder with config.json and its
modeling_*.py. It is untrusted: it is parsed, never imported, so none of its code runs.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ostro.errors import ModelNotFound, nearest
from ostro.plugins.authoring.source import Field, is_name, parse, read, stated

LIBRARY = "transformers"
WEIGHTED = frozenset("Linear Embedding LayerNorm RMSNorm Conv1d Conv2d Conv1D Parameter".split())
"""Modules of torch, and transformers' Conv1D, that have weights."""


@dataclass(frozen=True)
class Leaf:
    """A module with weights: path ({i} for any layer), class, constructor arguments and line."""

    path: str
    kind: str
    arguments: Mapping[str, str]
    line: int


@dataclass(frozen=True)
class Reference:
    """A model class with its parsed files.

    `renamed` maps transformers' common names of config fields to those of the class; `config` is
    its config.json, empty if there is none.
    """

    cls: str
    origin: str
    file: Path
    fields: tuple[Field, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    config_class: str | None = None

    @cached_property
    def text(self) -> str:
        return read(self.file)

    @cached_property
    def tree(self) -> ast.Module:
        return parse(self.file)

    @cached_property
    def classes(self) -> Mapping[str, ast.ClassDef]:
        return {node.name: node for node in self.tree.body if isinstance(node, ast.ClassDef)}

    @property
    def family(self) -> str:
        """The prefix of its class names: OlmoForCausalLM -> Olmo."""
        return re.sub(r"(For[A-Z]\w*|LMHeadModel|Model)$", "", self.cls)

    @property
    def library(self) -> bool:
        """Whether it is a class of transformers."""
        return self.origin.startswith(LIBRARY)

    def bases(self, cls: str) -> list[ast.ClassDef]:
        """A class of the file and its bases in the same file, the class first."""
        found: list[ast.ClassDef] = []
        waiting = [cls]
        while waiting:
            node = self.classes.get(waiting.pop(0))
            if node is not None and node not in found:
                found.append(node)
                waiting += [ast.unparse(base) for base in node.bases]
        return found

    def children(self, cls: str) -> Iterator[tuple[str, ast.Call]]:
        """(attribute, constructor call) of each module that a class's __init__ assigns to self."""
        for node in self.bases(cls):
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                    yield from made_in(method)
                    # without it, the __init__ of the bases does not run
                    if "super().__init__" not in ast.unparse(method):
                        return

    def leaves(self, path: str = "", within: tuple[str, ...] = ()) -> Iterator[Leaf]:
        """All modules with weights, in the order of the source.

        `within` are the classes on the way to `path`, to stop at classes that contain themselves.
        """
        within = within or (self.cls,)
        seen: set[str] = set()
        for name, call in self.children(within[-1]):
            full, kind = f"{path}.{name}" if path else name, ast.unparse(call.func)
            if full in seen or kind in within:
                continue
            known = kind in self.classes
            inner = list(self.leaves(full, (*within, kind))) if known else []
            norm = inner and "norm" in kind.lower()
            if kind.rpartition(".")[2] in WEIGHTED or norm:
                seen.add(full)
                yield Leaf(full, kind, self.arguments(call), call.lineno)
            elif inner:
                seen.add(full)
                yield from inner

    def arguments(self, call: ast.Call) -> Mapping[str, str]:
        """A call's arguments as source text, by position ("0", "1") or keyword."""
        named = {str(i): ast.unparse(node) for i, node in enumerate(call.args)}
        return named | {k.arg: ast.unparse(k.value) for k in call.keywords if k.arg}


def made_in(method: ast.FunctionDef) -> Iterator[tuple[str, ast.Call]]:
    """(attribute, call) for `self.x = f(...)`; `x.{i}` for the elements of a ModuleList."""
    for node in ast.walk(method):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target = node.targets[0]
        if not isinstance(target, ast.Attribute) or ast.unparse(target.value) != "self":
            continue
        for call in calls(node.value):
            if ast.unparse(call.func).endswith("ModuleList"):
                inner = [item for argument in call.args for item in calls(argument)]
                yield from ((f"{target.attr}.{{i}}", item) for item in inner[:1])
            else:
                yield target.attr, call


def calls(node: ast.expr) -> Iterator[ast.Call]:
    """The calls whose result may be the value of an expression or an element of it."""
    if isinstance(node, ast.Call):
        yield node
    elif isinstance(node, ast.IfExp):
        yield from (*calls(node.body), *calls(node.orelse))
    elif isinstance(node, ast.ListComp | ast.GeneratorExp):
        yield from calls(node.elt)
    elif isinstance(node, ast.List | ast.Tuple):
        yield from (call for item in node.elts for call in calls(item))


def find(reference: str) -> Reference:
    """The reference of `--from`.

    Raises ModelNotFound if a class or file is missing, ConfigError for invalid files.
    """
    source, _, cls = reference.partition(":")
    if source == LIBRARY:
        return of_library(cls)
    return of_folder(Path(reference).expanduser())


def of_library(cls: str) -> Reference:
    """A class of the installed transformers. Raises ModelNotFound."""
    spec = find_spec(LIBRARY)
    if spec is None or spec.origin is None:
        raise ModelNotFound("transformers is not installed; pip install transformers")
    known: list[str] = []
    for file in sorted(Path(spec.origin).parent.glob("models/*/modeling_*.py")):
        names = re.findall(r"^class (\w+)\(", read(file), re.MULTILINE)
        if cls in names:
            return described(Reference(cls, f"{LIBRARY} {version(LIBRARY)}", file))
        known += [name for name in names if name.endswith("ForCausalLM")]
    raise ModelNotFound(f"transformers has no class {cls!r}{nearest(cls, known)}")


def of_folder(folder: Path) -> Reference:
    """The class in a folder's config.json, from one of its modeling_*.py. Raises ModelNotFound."""
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        [cls, *_] = config["architectures"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelNotFound(
            f"{folder}/config.json names no class ({error!r:.80}); --from takes "
            "transformers:CLASS, or a folder whose config.json has architectures"
        ) from None
    for file in sorted(folder.glob("modeling_*.py")):
        named = is_name(cls) and is_name(file.stem)
        if named and re.search(rf"^class {cls}\(", read(file), re.MULTILINE):
            origin = re.sub(r"[^\w.-]+", " ", folder.name)
            return described(Reference(cls, origin, file, config=config))
    raise ModelNotFound(f"{folder} has no modeling_*.py with the class {cls}; is it there?")


def described(bare: Reference) -> Reference:
    """The reference with the fields of its config class and config.json."""
    name = config_class(bare)
    node = config_node(bare, name)
    fields = {field.name: field for field in stated(node)} if node is not None else {}
    for key, value in bare.config.items():
        if is_name(key):
            fields.setdefault(key, Field(key, None, repr(value)))
    renamed = attribute_map(node) if node is not None else {}
    return replace(bare, fields=tuple(fields.values()), renamed=renamed, config_class=name)


def attribute_map(node: ast.ClassDef) -> dict[str, str]:
    """A config class's field names by transformers' common ones; valid identifiers only."""
    for item in node.body:
        if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == "attribute_map":
            if isinstance(item.value, ast.Dict):
                keys, values = map(constant, item.value.keys), map(constant, item.value.values)
                pairs = zip(keys, values, strict=True)
                return {a: b for a, b in pairs if is_name(a) and is_name(b)}
    return {}


def constant(node: ast.expr | None) -> str:
    """The value of a string literal; "" for other nodes."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def config_class(bare: Reference) -> str | None:
    """The name of the config class, from the model class or one of its bases."""
    for node in bare.bases(bare.cls):
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and ast.unparse(item.target) == "config":
                return ast.unparse(item.annotation)
            if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == "config_class":
                return ast.unparse(item.value)
    return None


def config_node(bare: Reference, name: str | None) -> ast.ClassDef | None:
    """The config class, from the model's file or a configuration_*.py beside it."""
    for file in (bare.file, *sorted(bare.file.parent.glob("configuration_*.py"))):
        for node in parse(file).body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return node
    return None
