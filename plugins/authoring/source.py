"""Read and parse Python source files of limited size, and find the fields of config classes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from keyword import iskeyword
from pathlib import Path

from ostro.errors import ConfigError

LARGEST = 1 << 22
"""Maximum size of a source file in bytes."""


@dataclass(frozen=True)
class Field:
    """A field of a config: its annotation and default as source text, None if missing."""

    name: str
    annotation: str | None
    default: str | None


def is_name(value: object) -> bool:
    """Whether a value is a Python identifier: other text must not get into generated sources."""
    return isinstance(value, str) and value.isidentifier() and not iskeyword(value)


def stated(node: ast.ClassDef) -> Iterator[Field]:
    """The fields of a config class: annotated attributes, and arguments of its __init__."""
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            default = None if item.value is None else ast.unparse(item.value)
            yield Field(item.target.id, ast.unparse(item.annotation), default)
        elif isinstance(item, ast.FunctionDef) and item.name == "__init__":
            given = item.args.args[1:]
            defaults = [None] * (len(given) - len(item.args.defaults)) + list(item.args.defaults)
            pairs = [*zip(given, defaults, strict=True)]
            pairs += [*zip(item.args.kwonlyargs, item.args.kw_defaults, strict=True)]
            for argument, value in pairs:
                annotation = ast.unparse(argument.annotation) if argument.annotation else None
                yield Field(argument.arg, annotation, ast.unparse(value) if value else None)


def read(file: Path) -> str:
    """The text of a source file. Raises ConfigError if it is too large or cannot be read."""
    try:
        if file.stat().st_size > LARGEST:
            raise ConfigError(
                f"{file.name} has {file.stat().st_size} bytes; at most {LARGEST} are supported"
            )
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None


def parse(file: Path) -> ast.Module:
    try:
        return ast.parse(read(file), str(file))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{file} cannot be parsed: {error}") from None
