"""Generate the table of building blocks: the classes of `ostro.nn`, and architectures with them.

Sources are parsed, so that torch is not imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from ostro.errors import UsageError

BEGIN, END = "<!-- blocks -->\n", "<!-- /blocks -->\n"
SHOWN = 4


def table() -> str:
    """The table in Markdown."""
    users = uses()
    lines = ["| block | what it is | used by |", "|---|---|---|"]
    for name, text in blocks():
        named = users.get(name, [])
        more = f", and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
        lines.append(f"| `nn.{name}` | {text} | {', '.join(named[:SHOWN])}{more} |")
    return "\n".join(lines) + "\n"


def insert(page: str, text: str) -> str:
    """The page with `text` between its markers. Raises UsageError if it has no markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UsageError(f"the page has no lines {BEGIN.strip()} and {END.strip()}; add them")
    return before + BEGIN + text + END + after


def blocks() -> Iterator[tuple[str, str]]:
    """(name, first sentence of docstring) of every class that `ostro.nn` defines and exports."""
    sentences: dict[str, str] = {}
    folder = room("core") / "nn"
    for file in sorted(folder.glob("*.py")):
        for node in ast.parse(file.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef):
                sentences[node.name] = sentence(ast.get_docstring(node) or "")
    public = exported(folder / "__init__.py")
    yield from ((name, sentences[name]) for name in public if name in sentences)


def exported(file: Path) -> list[str]:
    """The names in a module's `__all__`."""
    for node in ast.parse(file.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return sorted(ast.literal_eval(node.value), key=str.lower)
    return []


def sentence(docstring: str) -> str:
    """The first sentence of a docstring, as one line escaped for a Markdown table."""
    first = " ".join(docstring.partition("\n\n")[0].split())
    # the period of "et al." does not end a sentence
    return re.split(r"(?<!et al)\.\s+(?=[A-Z`])", first)[0].rstrip(".:").replace("|", "\\|")


def uses() -> dict[str, list[str]]:
    """The architectures that use each block, by block name."""
    found: dict[str, set[str]] = {}
    architectures = room("architectures")
    for file in sorted(architectures.rglob("*.py")):
        family = file.relative_to(architectures).parts[0]
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and is_nn(node.value):
                found.setdefault(node.attr, set()).add(family)
    return {name: sorted(families) for name, families in found.items()}


def is_nn(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "nn"


def room(name: str) -> Path:
    """The folder of a package of ostro."""
    spec = find_spec(f"ostro.{name}")
    assert spec is not None and spec.origin is not None, f"{name = } is a package of ours"
    return Path(spec.origin).parent
