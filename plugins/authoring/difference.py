"""Find the differences between an architecture's source and Llama's, by comparing statements."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

from ostro.plugins.authoring.reference import Reference

ALIASES = {
    "Layer": "DecoderLayer",
    "Block": "DecoderLayer",
    "LMHeadModel": "ForCausalLM",
    "LayerNorm": "RMSNorm",
}
"""Llama's class names by those of other families, without the family's name."""

TOPICS = {
    "attention": re.compile(r"attention|rotate|rotary|repeat_kv", re.IGNORECASE),
    "feed_forward": re.compile(r"mlp|expert|moe|router|feed_?forward|gate", re.IGNORECASE),
    "block": re.compile(r"norm|layer|block", re.IGNORECASE),
}
"""Topics by patterns of class or function names; the first match counts, "model" if none."""

METHODS = ("__init__", "forward", "compute_default_rope_parameters")


@dataclass(frozen=True)
class Difference:
    """Consecutive lines that differ from Llama's, and the class or function that contains them."""

    topic: str
    first: int
    last: int
    what: str

    @property
    def span(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


def differences(theirs: Reference, llama: Reference) -> list[Difference]:
    """All differences in the classes that the model uses and in module-level functions."""
    found: list[Difference] = []
    for name in used(theirs):
        bare = name.removeprefix(theirs.family)
        counterpart = llama.family + ALIASES.get(bare, bare)
        if counterpart in llama.classes:
            found += compare(theirs, llama, theirs.classes[name], llama.classes[counterpart])
        else:
            node = theirs.classes[name]
            what = f"{name}, which Llama does not have"
            found.append(Difference(topic(name), node.lineno, end(node), what))
    ours = {n.name: n for n in llama.tree.body if isinstance(n, ast.FunctionDef)}
    for function in theirs.tree.body:
        if isinstance(function, ast.FunctionDef) and function.name in ours:
            found += stretches(theirs, llama, function, ours[function.name], function.name)
    return sorted(found, key=lambda difference: difference.first)


def used(reference: Reference, cls: str | None = None) -> list[str]:
    """The classes of the file that a model uses, itself first."""
    found = [cls or reference.cls]
    for name in found:
        for _, call in reference.children(name):
            kind = ast.unparse(call.func)
            if kind in reference.classes and kind not in found:
                found.append(kind)
    return found


def compare(
    theirs: Reference, llama: Reference, node: ast.ClassDef, counterpart: ast.ClassDef
) -> Iterator[Difference]:
    """The differences between the methods of two classes."""
    ours = {n.name: n for n in counterpart.body if isinstance(n, ast.FunctionDef)}
    for method in node.body:
        if not isinstance(method, ast.FunctionDef) or method.name not in METHODS:
            continue
        what = f"{node.name}.{method.name}"
        if method.name in ours:
            yield from stretches(theirs, llama, method, ours[method.name], what)
        else:
            yield Difference(topic(what), method.lineno, end(method), f"{what}, which is new")


def stretches(
    theirs: Reference,
    llama: Reference,
    node: ast.FunctionDef,
    counterpart: ast.FunctionDef,
    what: str,
) -> Iterator[Difference]:
    """The statements of a function that differ from those of its counterpart."""
    a, b = statements_of(node, theirs.family), statements_of(counterpart, llama.family)
    # autojunk would ignore frequent statements in long functions
    matcher = SequenceMatcher(None, b, a, autojunk=False)
    statements = body(node)
    for kind, _, _, start, stop in matcher.get_opcodes():
        if kind == "equal":
            continue
        if start == stop:
            line = statements[min(start, len(statements) - 1)].lineno
            yield Difference(topic(what), line, line, f"{what} leaves out what Llama does here")
        else:
            first, last = statements[start].lineno, end(statements[stop - 1])
            yield Difference(topic(what), first, last, what)


def statements_of(node: ast.FunctionDef, family: str) -> list[str]:
    """A function's statements as text, without the family's name and annotations."""
    texts = (ast.unparse(untyped(statement)) for statement in body(node))
    return [re.sub(rf"\b{re.escape(family)}(?=[A-Z])", "", text) for text in texts]


def untyped(statement: ast.stmt) -> ast.stmt:
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        plain = ast.Assign([statement.target], statement.value)
        return ast.copy_location(ast.fix_missing_locations(plain), statement)
    return statement


def body(node: ast.FunctionDef) -> list[ast.stmt]:
    """A function's statements without its docstring."""
    return node.body[1:] if ast.get_docstring(node) is not None else node.body


def end(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def topic(name: str) -> str:
    return next((topic for topic, words in TOPICS.items() if words.search(name)), "model")
