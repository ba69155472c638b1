"""Rules about the parts of a model: patterns of their paths, each with a place or a format."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.nn import Module

from ostro.core.errors import UsageError, nearest

PLACEMENT = "--placement"

WORDS: Mapping[str, str] = {PLACEMENT: ", or auto, auto:SIZE, rest"}
"""What else an option takes."""

MOST = 10_000
"""The largest number in a set such as [2-5]."""


@dataclass(frozen=True)
class PatternRule:
    """A pattern of module paths, and where what it matches lies (a device, or "rest"), or in what
    format.

    `*` is any run of characters, `[2-5,9]` one of these numbers. What lies below a path is meant
    with it; a pattern that is one name alone means it wherever it stands.
    """

    pattern: str
    where: str


def read_rules(text: str, option: str = PLACEMENT) -> list[PatternRule]:
    """Rules from "PATTERN = PLACE, ..." or from a TOML file of such pairs.

    Raises UsageError for what is neither.
    """
    if "=" not in text:
        return list(table_rules(read_table(Path(text), option), option))
    rules = []
    for item in re.split(r",(?![^\[]*\])", text):
        pattern, equals, where = (part.strip().strip("\"'") for part in item.partition("="))
        if not (pattern and equals and where):
            raise UsageError(f"{option}: {item.strip()!r} is no rule: write PATTERN = NAME")
        rules.append(PatternRule(pattern, where))
    return rules


def read_table(path: Path, option: str) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise UsageError(
            f"{option} {path}: there is no such file; write PATTERN = NAME, or the name of a TOML "
            f"file{WORDS.get(option, '')}"
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{option} {path}: {error}") from None


def table_rules(table: Mapping[str, Any], option: str, above: str = "") -> Iterator[PatternRule]:
    """The rules of a table; keys with dots that are not quoted make tables of their own."""
    for key, value in table.items():
        path = f"{above}.{key}" if above else key
        if isinstance(value, dict):
            yield from table_rules(value, option, path)
        elif isinstance(value, str):
            yield PatternRule(path, value)
        else:
            raise UsageError(f"{option}: {path} = {value!r:.80} is no name")


def matches(pattern: str, model: Module, units: Collection[str]) -> list[str]:
    """The units that a pattern means.

    Raises UsageError where it means none, or a part of one.
    """
    wanted = regex(pattern)
    hits = {path for path, _ in model.named_modules() if path and wanted.fullmatch(path)}
    tops = [path for path in sorted(hits) if not hits.intersection(ancestors(path))]
    if not tops:
        names = dict.fromkeys([*units, *(path.rpartition(".")[2] for path in units)])
        raise UsageError(
            f"--placement: {pattern!r} matches nothing in this model{nearest(pattern, names)}"
        )
    found: list[str] = []
    for top in tops:
        below = [path for path in units if path == top or path.startswith(f"{top}.")]
        whole = next((path for path in ancestors(top) if path in units), None)
        if top not in units and whole is not None:
            raise UsageError(
                f"--placement: {pattern!r} matches {top}, a part of {whole}; a layer is placed "
                "whole, and its experts (*.experts) alone"
            )
        if not below:
            raise UsageError(f"--placement: {pattern!r} matches {top}, which holds no weights")
        found += below
    return found


def ancestors(path: str) -> list[str]:
    """The paths above a path, the nearest first."""
    parts = path.split(".")
    return [".".join(parts[:i]) for i in range(len(parts) - 1, 0, -1)]


def regex(pattern: str, option: str = PLACEMENT) -> re.Pattern[str]:
    """A pattern as a regular expression of a path. Raises UsageError for a malformed set."""
    core = pattern.removesuffix(".*")
    pieces = re.split(r"(\*|\[[^\]]*\])", core)
    anywhere = "" if {".", "*"} & set(core) else r"(?:.*\.)?"
    return re.compile(anywhere + "".join(piece_regex(piece, pattern, option) for piece in pieces))


def piece_regex(piece: str, pattern: str, option: str) -> str:
    if piece == "*":
        return ".*"
    if not piece.startswith("["):
        return re.escape(piece)
    numbers: list[int] = []
    for item in piece[1:-1].split(","):
        first, _, last = (part.strip() for part in item.partition("-"))
        if not first.isdecimal() or not (last or first).isdecimal() or int(last or first) > MOST:
            raise UsageError(
                f"{option}: {piece} in {pattern!r} is no set of numbers such as [0,4-7]"
            )
        numbers += range(int(first), int(last or first) + 1)
    return f"(?:{'|'.join(map(str, numbers)) or '(?!)'})"
