"""Pattern rules of --placement and --topology: patterns of module paths with devices or formats."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostro.core.errors import UsageError, nearest
from ostro.core.paths import read_regular, reason_of

if TYPE_CHECKING:
    from torch.nn import Module

PLACEMENT = "--placement"

KEYWORDS: Mapping[str, str] = {PLACEMENT: ", or auto, auto:SIZE, offload"}
"""The other values of an option, for its error message."""

TABLE_BYTES = 1_000_000
"""Limit on a TOML file of rules, in bytes."""

MAX_NUMBER = 10_000
"""The largest number in a set such as [2-5], which is expanded to a list."""


@dataclass(frozen=True)
class PatternRule:
    """A pattern of module paths, and the device (or "offload") or the format of the modules.

    `*` matches any characters, `[2-5,9]` one of these numbers. A pattern also matches all modules
    inside of those it matches; a pattern without dots matches a name at any depth.
    """

    pattern: str
    target: str


def read_rules(text: str, option: str = PLACEMENT) -> list[PatternRule]:
    """The rules of an option of the command line: as for `parse_rules`, or the path of a TOML file
    of such pairs.

    Raises UsageError for malformed rules and for a file that cannot be read.
    """
    if "=" not in text:
        return list(table_rules(read_table(Path(text), option), option))
    return parse_rules(text, option)


def parse_rules(text: str, option: str = PLACEMENT) -> list[PatternRule]:
    """Parse "PATTERN = NAME, ..."; the text is never a path. Raises UsageError."""
    # Commas inside of brackets separate numbers, not rules.
    rules = []
    for item in re.split(r",(?![^\[]*\])", text):
        pattern, equals, target = (part.strip().strip("\"'") for part in item.partition("="))
        if not (pattern and equals and target):
            raise UsageError(f"{option}: {item.strip()!r:.80} is not a rule; write PATTERN = NAME")
        rules.append(PatternRule(pattern, target))
    return rules


def read_table(path: Path, option: str) -> Mapping[str, Any]:
    """Parse a TOML file. Raises UsageError, also for a pipe and for a file above `TABLE_BYTES`."""
    try:
        return tomllib.loads(read_regular(path, TABLE_BYTES).decode())
    except FileNotFoundError:
        raise UsageError(
            f"{option} {path}: there is no such file; write PATTERN = NAME, or the name of a TOML "
            f"file{KEYWORDS.get(option, '')}"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{option} {path}: {reason_of(error)}") from None


def table_rules(table: Mapping[str, Any], option: str, above: str = "") -> Iterator[PatternRule]:
    """The rules of a table. TOML splits unquoted keys with dots into nested tables."""
    for key, value in table.items():
        path = f"{above}.{key}" if above else key
        if isinstance(value, dict):
            yield from table_rules(value, option, path)
        elif isinstance(value, str):
            yield PatternRule(path, value)
        else:
            raise UsageError(f"{option}: {path} = {value!r:.80}: expected a name in quotes")


def matches(pattern: str, model: Module, units: Collection[str]) -> list[str]:
    """The paths of the units that a pattern matches.

    Raises UsageError if it matches none, or only a part of one.
    """
    compiled = regex(pattern)
    hits = {path for path, _ in model.named_modules() if path and compiled.fullmatch(path)}
    # Modules inside of a match belong to it: a unit is placed by the outermost one.
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
                f"--placement: {pattern!r} matches {top}, a part of {whole}; only whole layers and "
                "their experts (*.experts) can be placed"
            )
        if not below:
            raise UsageError(f"--placement: {pattern!r} matches {top}, which has no weights")
        found += below
    return found


def ancestors(path: str) -> list[str]:
    """The paths above a path, the nearest first."""
    parts = path.split(".")
    return [".".join(parts[:i]) for i in range(len(parts) - 1, 0, -1)]


def regex(pattern: str, option: str = PLACEMENT) -> re.Pattern[str]:
    """A pattern as a regular expression of a path. Raises UsageError for a malformed set."""
    core = pattern.removesuffix(".*")
    pieces = re.split(r"(\*+|\[[^\]]*\])", core)
    anywhere = "" if {".", "*"} & set(core) else r"(?:.*\.)?"
    return re.compile(anywhere + "".join(piece_regex(piece, pattern, option) for piece in pieces))


def piece_regex(piece: str, pattern: str, option: str) -> str:
    """The regular expression of stars, of a set in brackets, or of literal text."""
    if piece.startswith("*"):
        return ".*"
    if not piece.startswith("["):
        return re.escape(piece)
    numbers: list[int] = []
    for item in piece[1:-1].split(","):
        first, _, last = (part.strip() for part in item.partition("-"))
        last = last or first
        if not first.isdecimal() or not last.isdecimal() or int(last) > MAX_NUMBER:
            raise UsageError(
                f"{option}: {piece} in {pattern!r} is not a set of numbers such as [0,4-7]"
            )
        numbers += range(int(first), int(last) + 1)
    return f"(?:{'|'.join(map(str, numbers)) or '(?!)'})"
