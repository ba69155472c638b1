"""Core knows no architecture: none of their names stands in its code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ostro.core.plugins.manager import PluginManager

CORE = Path(__file__).resolve().parents[2] / "core"
FORMATS = ("tokenizer",)
"""Rooms whose file formats are called like models: GGUF's tokenizers are "llama", "bert", "t5"."""


def words(tree: ast.AST) -> Iterator[str]:
    """All names and strings of a module but its docstrings, which may tell sources."""
    docstrings = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)
    }  # docstrings, of attributes too
    for node in ast.walk(tree):
        for name in ("id", "attr", "name", "arg", "module"):
            if isinstance(value := getattr(node, name, None), str):
                yield value
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings
        ):
            yield node.value


def known() -> re.Pattern[str]:
    """The names of all architectures, and the classes they claim."""
    manager = PluginManager()
    manager.load()
    records = manager.collect("architectures").values()
    names = {r.name for r in records} | {c for r in records for c in r.classes} - {""}
    names -= {"transformers"}  # the library, which core has bodies from
    return re.compile(rf"(?<![a-z0-9])({'|'.join(map(re.escape, names))})(?![a-z0-9])", re.I)


def found(source: str, pattern: re.Pattern[str]) -> list[str]:
    return [word for word in words(ast.parse(source)) if pattern.search(word)]


def test_core_names_no_architecture() -> None:
    pattern, named = known(), {}
    for file in sorted(CORE.rglob("*.py")):
        if file.relative_to(CORE).parts[0] not in FORMATS:
            if hits := found(file.read_text(), pattern):
                named[str(file.relative_to(CORE))] = hits
    assert not named


@pytest.mark.parametrize(
    "source",
    ["if config.model_type == 'qwen3_moe': pass", "x = LlamaForCausalLM", "from a import whisper"],
)
def test_a_family_name_in_the_core_is_detected(source: str) -> None:
    assert found(source, known())
