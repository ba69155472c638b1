"""The parameter of the processor: one grammar in one notation, and where it begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostro.errors import RequestError

KINDS: Mapping[str, type | tuple[type, ...]] = {
    "json_schema": (dict, bool),
    "json_object": bool,
    "regex": str,
    "lark": str,
    "choice": list,
    "gbnf": str,
    "yacc": str,
    "structural_tag": dict,
}
"""The notations of a grammar, with the type of each."""

ENCLOSING = frozenset({"after", "space", "outer"})
"""Keys of what encloses the grammar: the marker after which it begins, whether white space may be
between them, and a grammar in Lark of the whole output, in which it is `@answer`.
"""
OPTIONS = ENCLOSING | {"field"}
"""Keys beside the grammar; `field` is the one that errors name."""

MAX_TEXT = 1 << 18
"""The most characters of a grammar; the most bytes of a parameter, a schema for example."""
MAX_CHOICES = 10_000
"""The most alternatives of `choice`, and of an `enum` in a schema."""
MAX_MARKER = 256
"""The most characters of `after`."""


def check_parameter(parameter: Any) -> None:
    """Raise RequestError unless a parameter has the shape of a grammar; nothing is compiled."""
    field = field_of(parameter)
    if not isinstance(parameter, dict):
        raise RequestError(
            f"{field}: {describe(parameter)}; expected an object with one of {', '.join(KINDS)}",
            param=field,
        )
    kinds = [name for name in KINDS if name in parameter]
    unknown = [str(name)[:40] for name in parameter if name not in KINDS and name not in OPTIONS]
    if unknown or len(kinds) != 1:
        found = ", ".join([*kinds, *unknown]) or "nothing"
        raise RequestError(
            f"{field}: expected one of {', '.join(KINDS)}, and `after` or `outer`; found {found}",
            param=field,
        )
    kind = kinds[0]
    value: Any = parameter[kind]
    if not isinstance(value, KINDS[kind]) or (kind == "json_object" and value is not True):
        raise RequestError(f"{field}: {kind} is {describe(value)}; {EXPECTED[kind]}", param=field)
    if isinstance(value, str):
        check_text(value, kind, field)
    if kind == "choice":
        check_choices(parameter["choice"], field)
    marker = parameter.get("after")
    if marker is not None and not (isinstance(marker, str) and 0 < len(marker) <= MAX_MARKER):
        raise RequestError(
            f"{field}: after is {describe(marker)}; expected a text of 1..{MAX_MARKER} characters",
            param=field,
        )
    space = parameter.get("space", False)
    if not isinstance(space, bool) or (space and marker is None):
        raise RequestError(
            f"{field}: space is {describe(space)}; expected a boolean beside `after`", param=field
        )
    outer = parameter.get("outer")
    if outer is not None and not (isinstance(outer, str) and "@answer" in outer):
        raise RequestError(f"{field}: outer is {describe(outer)}; {EXPECTED['outer']}", param=field)
    if outer is not None:
        check_text(outer, "outer", field)


def field_of(parameter: Any) -> str:
    """The request field of a parameter, for errors."""
    named = parameter.get("field") if isinstance(parameter, dict) else None
    return named[:80] if isinstance(named, str) and named else "logits_processors.grammar"


def check_text(text: str, kind: str, field: str) -> None:
    """Raise RequestError for a grammar that is empty or too long."""
    if not text.strip() and kind != "regex":
        raise RequestError(f"{field}: {kind} is empty; {EXPECTED[kind]}", param=field)
    if len(text) > MAX_TEXT:
        raise RequestError(
            f"{field}: {kind} has {len(text)} characters; at most {MAX_TEXT}", param=field
        )


def check_choices(choices: list[Any], field: str) -> None:
    """Raise RequestError unless there are alternatives, not too many, and all are texts."""
    if not 0 < len(choices) <= MAX_CHOICES:
        raise RequestError(
            f"{field}: choice has {len(choices)} alternatives; 1..{MAX_CHOICES} are allowed",
            param=field,
        )
    wrong = next((each for each in choices if not isinstance(each, str)), None)
    if wrong is not None:
        raise RequestError(
            f"{field}: choice contains {describe(wrong)}; {EXPECTED['choice']}", param=field
        )
    if sum(map(len, choices)) > MAX_TEXT:
        raise RequestError(
            f"{field}: the texts of choice exceed {MAX_TEXT} characters", param=field
        )


EXPECTED: Mapping[str, str] = {
    "json_schema": "expected a JSON schema: an object, true or false",
    "json_object": "expected true",
    "regex": "expected a regular expression",
    "lark": "expected a grammar in the syntax of Lark, with a rule `start`",
    "choice": "expected a list of texts",
    "gbnf": "expected a grammar in the syntax of llama.cpp, with a rule `root`",
    "yacc": "expected a grammar in the syntax of Yacc, with rules after `%%`",
    "outer": "expected a grammar in the syntax of Lark whose rules refer to @answer",
    "structural_tag": "expected an object with `structures` and `triggers`, or with `format`",
}
"""What each notation and `outer` expect, for errors."""


def describe(value: Any) -> str:
    """A value's type in JSON, for errors: the value itself may be long, and is the user's."""
    names = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "a boolean",
        type(None): "null",
    }
    return names.get(type(value), "a number" if isinstance(value, int | float) else "a value")
