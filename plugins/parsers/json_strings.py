"""Regular expressions of texts as JSON strings have them, from those of the texts.

Quotes, backslashes and control characters are escaped there.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from functools import lru_cache

from ostro.errors import Unsupported

PLAIN = r'[^"\\\x00-\x1f]'
"""The characters that a JSON string has as they are."""
ESCAPES: Mapping[str, str] = {x: json.dumps(x)[2:-1] for x in ['"', "\\", *map(chr, range(32))]}
"""What follows the backslash in the escapes of the others."""
CODE = re.compile(r"\\x\{([0-9A-Fa-f]+)\}|\\u\{([0-9A-Fa-f]+)\}")
"""A character by its code, as Rust writes it."""
ATOM = re.compile(
    r"(?P<operator>\(\?(?P<modes>[a-zA-Z-]+)(?P<scope>[:)])|\((?:\?P?<\w+>|\?:)?|\)"
    r"|\{\d*,?\d*\}|[*+?|^$]+)"
    rf"|{CODE.pattern}|\\[pP](?:\{{[^}}]*\}}|.)|\\x[0-9A-Fa-f]{{2}}|\\u[0-9A-Fa-f]{{4}}|\\."
    r"|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])|.",
    re.DOTALL,
)
"""A part of a regular expression: an operator, or what matches one character."""
LETTERS = re.compile(r"\\p(?:\{[LNM][^}]*\}|[LNM])")
"""Classes of letters, numbers and marks: none of them has an escape."""
OTHERS = re.compile(r"\\P(?:\{[LNM][^}]*\}|[LNM])")
"""Their complements, which have all escapes."""


def in_json(pattern: str) -> str:
    """A regular expression of the JSON strings, without quotes, whose texts another one matches.

    The syntax is that of Rust. Raises Unsupported for what it cannot convert.
    """
    modes, outer, parts = frozenset[str](), list[frozenset[str]](), list[str]()
    for match in ATOM.finditer(pattern):
        if match["operator"] is None:
            parts.append(atom_in_json(match[0], match["set"] is not None, "s" in modes))
            continue
        parts.append(match[0])
        if "x" in (match["modes"] or ""):
            raise Unsupported("regular expression: the mode x is not supported")
        if match["scope"] == ")":
            modes = changed(modes, match["modes"])
        elif match[0].startswith("("):
            outer.append(modes)
            modes = changed(modes, match["modes"] or "")
        elif match[0] == ")" and outer:
            modes = outer.pop()
    return "".join(parts)


def changed(modes: frozenset[str], text: str) -> frozenset[str]:
    """The modes within a group such as `(?s-i:`."""
    more, _, fewer = text.partition("-")
    return modes.union(more).difference(fewer)


@lru_cache(maxsize=4096)
def atom_in_json(atom: str, is_set: bool, any_line: bool) -> str:
    """What JSON strings have for the characters that a part of an expression matches.

    any_line: "." matches line breaks.
    """
    test = in_python(atom, any_line)
    escaped = [escape for letter, escape in ESCAPES.items() if test.fullmatch(letter)]
    if not escaped:
        return atom
    escapes = rf"(?-i:\\(?:{either(escaped)}))"
    if is_set or OTHERS.fullmatch(atom) or atom in (r"\W", r"\S", r"\D", r"\s"):
        return f"(?:[{atom}&&{PLAIN}]|{escapes})"
    return f"(?:{PLAIN}|{escapes})" if atom == "." else escapes


def either(escapes: list[str]) -> str:
    """An expression of several escapes: one letter, or u00 and two digits."""
    letters = "".join(f"\\{x}" if x in '"\\' else x for x in escapes if len(x) == 1)
    parts = [f"[{letters}]"] if letters else []
    for first in "01":
        digits = "".join(x[4] for x in escapes if len(x) == 5 and x[3] == first)
        parts += [f"u00{first}[{digits}]"] if digits else []
    return "|".join(parts)


@lru_cache(maxsize=4096)
def in_python(atom: str, any_line: bool) -> re.Pattern[str]:
    """A part of a regular expression in Python's syntax, right for characters below 128.

    Raises Unsupported for what that does not express.
    """
    own = CODE.sub(lambda match: f"\\U{int(match[1] or match[2], 16):08x}", atom)
    own = LETTERS.sub(r"\\w", OTHERS.sub(r"\\W", own))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # sets within sets have another meaning
            return re.compile(own, re.ASCII | (re.DOTALL if any_line else re.NOFLAG))
    except (re.error, Warning, OverflowError):
        raise Unsupported(f"regular expression: {atom[:40]} is not supported") from None
