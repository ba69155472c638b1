"""Values between tags: texts whose types the JSON schemas of tools decide."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from ostro.plugins.parsers.python_calls import value_of

Kinds = frozenset[tuple[str, str]]
"""What a value may be: types, each with "" for any value of it, or with the JSON of one value."""
TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
ANY: Kinds = frozenset((name, "") for name in TYPES)
WORDS = {"True": "true", "False": "false", "None": "null"}
"""Words of Python, and those of JSON."""
MOST_STEPS = 5_000
"""Subschemas and values of enumerations that are read of a schema. Beyond, it states nothing."""
MOST_LEVELS = 32
"""Levels of subschemas and references that are read."""
MOST_CHARACTERS = 1 << 16
"""Characters of a literal of Python."""
MOST_BRACKETS = 100
"""Levels of brackets in a literal of Python."""


def kinds_of(schema: Any, root: Any) -> Kinds:
    """What a value may be by its schema; anything if the schema does not state it.

    `root` is the schema that local references point into.
    """
    reader = SchemaReader(root)
    found = reader.kinds(schema, 0)
    return found if found and reader.left > 0 else ANY


class SchemaReader:
    """Reads what a schema states of a value itself. Its size and depth are bounded."""

    def __init__(self, root: Any) -> None:
        self.root, self.left = root, MOST_STEPS

    def kinds(self, schema: Any, level: int) -> Kinds:
        """What a schema allows; nothing if its keywords exclude each other."""
        self.left -= 1
        if not isinstance(schema, Mapping) or level > MOST_LEVELS or self.left <= 0:
            return ANY
        found = kinds_of_types(schema.get("type"))
        if "const" in schema:
            found = self.both(found, kinds_of_values([schema["const"]]))
        if isinstance(values := schema.get("enum"), list):
            self.left -= len(values)
            found = self.both(found, kinds_of_values(values[: max(self.left, 0)]))
        if isinstance(reference := schema.get("$ref"), str):
            found = self.both(found, self.kinds(self.target(reference), level + 1))
        for part in parts_of(schema, "allOf"):
            if self.left <= 0:
                break
            found = self.both(found, self.kinds(part, level + 1))
        for keyword in ("anyOf", "oneOf"):
            either = set[tuple[str, str]]()
            for part in parts_of(schema, keyword):
                if self.left <= 0:
                    break
                either |= self.kinds(part, level + 1)
            found = self.both(found, frozenset(either)) if either else found
        return found

    def both(self, first: Kinds, second: Kinds) -> Kinds:
        """What two schemas allow."""
        if first == ANY or second == ANY:
            return first if second == ANY else second
        self.left -= len(first) + len(second)
        return frozenset(
            kind
            for some, others in ((first, second), (second, first))
            for kind in some
            if kind in others or (kind[0], "") in others
        )

    def target(self, reference: str) -> Any:
        """The schema that a local reference points to; None for another one."""
        if reference == "#":
            return self.root
        if not reference.startswith("#/"):
            return None
        target = self.root
        for part in unquote(reference[2:]).split("/"):
            if not isinstance(target, Mapping):
                return None
            target = target.get(part.replace("~1", "/").replace("~0", "~"))
        return target


def parts_of(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    """The subschemas of a keyword."""
    parts = schema.get(keyword)
    return parts if isinstance(parts, list) else []


def kinds_of_types(types: Any) -> Kinds:
    """What the keyword `type` allows. Integers are numbers."""
    names = {types} if isinstance(types, str) else {*types} if isinstance(types, list) else set()
    names |= {"integer"} if "number" in names else set()
    return frozenset((name, "") for name in names if name in TYPES) or ANY


def kinds_of_values(values: Iterable[Any]) -> Kinds:
    """What an enumeration allows."""
    return frozenset((type_of(value), written(value)) for value in values)


def allows(kinds: Kinds, value: Any) -> bool:
    """Whether a value is one of those that a schema allows."""
    name = type_of(value)
    return (name, "") in kinds or (name, written(value)) in kinds


def has_to_be_text(kinds: Kinds) -> bool:
    """Whether a schema allows texts only."""
    return all(name == "string" for name, _ in kinds)


def texts_of(kinds: Kinds) -> list[str]:
    """The texts of an enumeration; none if a schema allows any text."""
    texts = sorted(json.loads(text) for name, text in kinds if name == "string" and text)
    return [] if ("string", "") in kinds else texts


def json_of(text: str, kinds: Kinds) -> str:
    """A value as JSON: the text itself if it is JSON that a schema allows, else a JSON string.

    If the schema states a type, objects and lists may be literals of Python. JSON that the schema
    does not allow stays JSON if it does not allow texts either.
    """
    as_text = json.dumps(text, ensure_ascii=False)
    bare = WORDS.get(text.strip(), text.strip())
    try:
        value = json.loads(bare, parse_constant=refuse)
    except (ValueError, RecursionError):
        return as_text if kinds == ANY else json_of_literal(bare, kinds) or as_text
    if isinstance(value, str) and bare != json.dumps(value, ensure_ascii=False):
        return as_text
    may_be_text = any(name == "string" for name, _ in kinds)
    return as_text if may_be_text and not allows(kinds, value) else bare


def refuse(word: str) -> None:
    """Raises ValueError: NaN and Infinity are not JSON, though Python reads them."""
    raise ValueError(f"{word} is not JSON")


def json_of_literal(text: str, kinds: Kinds) -> str:
    """An object or a list of Python as JSON; "" if the text is none that a schema allows."""
    if not text.startswith(("{", "[", "(")) or len(text) > MOST_CHARACTERS or is_deep(text):
        return ""
    try:
        value = value_of(ast.parse(text, mode="eval").body)
        return (
            json.dumps(value, ensure_ascii=False, allow_nan=False) if allows(kinds, value) else ""
        )
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return ""


def is_deep(text: str) -> bool:
    """Whether brackets are nested too deeply, those within strings included."""
    level = 0
    for letter in text:
        level += (letter in "([{") - (letter in ")]}")
        if level > MOST_BRACKETS:
            return True
    return False


def written(value: Any) -> str:
    """A value as JSON that equal values share; "" for one that is too deep."""
    try:
        return json.dumps(value, sort_keys=True)
    except (ValueError, TypeError, RecursionError):
        return ""


def type_of(value: Any) -> str:
    """The type of a value in JSON schemas; "" for a value that is not JSON."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case Mapping():
            return "object"
    return ""
