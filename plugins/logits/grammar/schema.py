"""JSON Schema (2020-12) before llguidance compiles it: faults and limits, by their place.

llguidance rejects most of what it cannot guarantee, without a place. It ignores misspelled
keywords, and `x-guidance` may loosen a schema: these are refused here. Paths are JSON pointers
into the schema.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any
from urllib.parse import unquote

from ostro.errors import RequestError
from ostro.plugins.logits.grammar.endless import endless_references
from ostro.plugins.logits.grammar.literal import BACKSLASH, ends_within_escape
from ostro.plugins.logits.grammar.parameter import MAX_CHOICES, describe

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
ONE = ("items", "additionalItems", "additionalProperties")
SEVERAL = ("anyOf", "oneOf", "allOf", "prefixItems")
NAMED = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords with one schema, with a list of them, and with schemas by name."""
BRANCHES = ("anyOf", "oneOf", "allOf")
OPENING = ("additionalProperties", "patternProperties", "const", "enum")
"""Keywords that state which other properties there are, or whole values."""
OF_OBJECTS = ("properties", "required", "minProperties", "maxProperties", *OPENING)
COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
TEXTS = ("pattern", "format", "$ref", "$anchor", "$schema", "$id")
PAIRS = (
    ("minimum", "maximum"),
    ("exclusiveMinimum", "exclusiveMaximum"),
    ("minimum", "exclusiveMaximum"),
    ("exclusiveMinimum", "maximum"),
    ("minLength", "maxLength"),
    ("minItems", "maxItems"),
    ("minProperties", "maxProperties"),
)
"""Keywords of which the first must not exceed the second."""
KNOWN = frozenset(
    (*ONE, *SEVERAL, *NAMED, *COUNTS, *NUMBERS, *TEXTS, "type", "enum", "const", "required")
)
UNSUPPORTED: Mapping[str, str] = {
    "not": "list what is allowed",
    "if": "use anyOf",
    "then": "use anyOf",
    "else": "use anyOf",
    "dependentRequired": "use anyOf",
    "dependentSchemas": "use anyOf",
    "dependencies": "use anyOf",
    "propertyNames": "use patternProperties with additionalProperties false",
    "contains": "use prefixItems or items",
    "minContains": "use prefixItems or items",
    "maxContains": "use prefixItems or items",
    "uniqueItems": "leave it out, or check the answer",
    "unevaluatedProperties": "use additionalProperties",
    "unevaluatedItems": "use items",
    "$dynamicRef": "use $ref",
    "$dynamicAnchor": "use $anchor",
    "$recursiveRef": "use $ref",
    "$recursiveAnchor": "use $anchor",
    "$vocabulary": "leave it out",
    "nullable": 'use a list of types: ["string", "null"]',
    "x-guidance": "leave it out",
}
"""Keywords that no grammar expresses or that ostro does not accept, with what to do instead."""
DRAFTS = tuple(
    f"http{secure}://json-schema.org/{name}/schema"
    for secure, name in (
        ("s", "draft/2020-12"),
        ("s", "draft/2019-09"),
        ("", "draft-07"),
        ("", "draft-06"),
        ("", "draft-04"),
    )
)
FORMATS = tuple("date-time time date duration email hostname ipv4 ipv6 uuid uri".split())
WHITESPACE = r"(?: |\r?\n\n?[ \t]{0,40})"
"""White space in JSON, wherever it is allowed: a space, or a line break and an indentation.

It ends, since a model may write nothing else for ever.
"""
MAX_COUNT = 1_000_000
"""The largest limit on a length or on a number of items or properties."""
MAX_DEPTH = 100
"""The most levels of a schema as JSON."""
MAX_SCHEMAS = 20_000
"""The most subschemas."""
CLOSE = 0.85
"""Similarity of a misspelled keyword to the right one (difflib)."""


def read_schema(schema: Any, *, lenient: bool = False) -> Any:
    """Check a schema; return it in the form that llguidance accepts, with the same meaning.

    Objects whose properties are listed get no others, unless `additionalProperties` allows them: a
    model that may go on adding properties may never end. With `lenient` keywords and formats that
    are not supported are left out. Raises RequestError with the path of the fault.
    """
    check_depth(schema)
    return Reader(schema, lenient).read()


def check_depth(value: Any) -> None:
    """Raise RequestError for JSON of more than MAX_DEPTH levels; not recursive."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise RequestError(f"the schema nests more than {MAX_DEPTH} levels; flatten it")
        level = [inner for outer in level for inner in members(outer)]


def members(value: Any) -> Iterator[Any]:
    """The values in a JSON value that are lists or objects themselves."""
    found = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (each for each in found if isinstance(each, dict | list))


class Reader:
    """Reads one schema, from its root and through its references."""

    def __init__(self, root: Any, lenient: bool = False) -> None:
        self.root, self.lenient = root, lenient
        self.anchors: dict[str, str] = {}
        self.pending: list[str] = ["#"]
        self.referred: dict[str, str] = {}
        self.done: set[str] = set()
        self.objects: list[dict[str, Any]] = []
        """Schemas that list properties."""
        self.branches: dict[int, list[Any]] = {}
        """The schemas that a schema's values satisfy, too, by the identity of the schema."""
        self.combined: list[Any] = []
        """Schemas whose values satisfy others, too: these may allow properties of their own."""

    def read(self) -> Any:
        """Check all schemas that are reached; return the schema for llguidance."""
        self.find_anchors(self.root, "#")
        while self.pending:
            pointer = self.pending.pop()
            self.schema(self.resolve(pointer, self.referred.get(pointer, "#")), pointer)
        self.close_objects()
        if self.root is False:
            raise RequestError("#: the schema is false, which no answer satisfies")
        self.check_finite()
        return self.root

    def check_finite(self) -> None:
        """Raise RequestError if each value of the schema contains itself."""
        schemas = {pointer: self.resolve(pointer, pointer) for pointer in ("#", *self.referred)}
        endless = endless_references(schemas, lambda name: self.anchors.get(name[1:], name))
        if "#" in endless:
            raise fault(
                min(endless - {"#"}, default="#"),
                "no value satisfies this schema: it requires itself; make a property optional, or "
                "allow null",
            )

    def find_anchors(self, value: Any, path: str) -> None:
        """Record the places of all `$anchor`."""
        if isinstance(value, dict) and isinstance(anchor := value.get("$anchor"), str):
            self.anchors[anchor] = path
        for name, inner in entries(value):
            self.find_anchors(inner, join(path, name))

    def schema(self, schema: Any, path: str) -> None:
        """Check one schema and those inside it."""
        if path in self.done:
            return
        self.done.add(path)
        if len(self.done) > MAX_SCHEMAS:
            raise RequestError(f"more than {MAX_SCHEMAS} subschemas; simplify the schema")
        if isinstance(schema, bool):
            return
        if not isinstance(schema, dict):
            raise fault(path, f"a schema is {describe(schema)}; expected an object or a boolean")
        if schema.get("uniqueItems") is False:
            del schema["uniqueItems"]
        if self.lenient:
            drop_unsupported(schema)
        for keyword in schema:
            check_keyword(keyword, path)
        self.check_values(schema, path)
        self.check_pairs(schema, path)
        for inner, name in subschemas(schema, path):
            self.schema(inner, name)
        self.note_parts(schema, path)
        if "oneOf" in schema and "anyOf" not in schema and self.exclusive(schema["oneOf"], path):
            relax_one_of(schema)

    def note_parts(self, schema: dict[str, Any], path: str) -> None:
        """Record the properties of a schema, and the schemas that its values satisfy, too."""
        if lists_properties(schema):
            self.objects.append(schema)
        parts = [each for keyword in BRANCHES for each in schema.get(keyword, ())]
        if "$ref" in schema:
            parts.append(self.target({"$ref": schema["$ref"]}, path))
        self.branches[id(schema)] = parts
        both = len(schema.get("allOf", ())) + sum(name in schema for name in ("anyOf", "oneOf"))
        if both + ("$ref" in schema) + (not schema.keys().isdisjoint(OF_OBJECTS)) > 1:
            self.combined += parts

    def close_objects(self) -> None:
        """Allow no properties but those that are listed, except in schemas that are combined."""
        combined = set[int]()
        while self.combined:
            if id(schema := self.combined.pop()) not in combined:
                combined.add(id(schema))
                self.combined += self.branches.get(id(schema), ())
        for schema in self.objects:
            if id(schema) not in combined and not self.branches[id(schema)]:
                schema["additionalProperties"] = False

    def check_values(self, schema: dict[str, Any], path: str) -> None:
        """Raise RequestError for a keyword's value that is no valid one."""
        for keyword, value in schema.items():
            place = join(path, keyword)
            if keyword in COUNTS:
                schema[keyword] = count_of(value, place)
            elif keyword in NUMBERS:
                check_number(value, keyword, place)
            elif keyword in TEXTS and not isinstance(value, str):
                raise fault(place, f"{describe(value)}; expected a text")
        if "$schema" in schema and schema["$schema"].rstrip("#") not in DRAFTS:
            known = ", ".join(DRAFTS)
            raise fault(join(path, "$schema"), f"unknown draft; expected one of {known}")
        check_types(schema, path)
        check_enum(schema, path)
        check_required(schema, path)
        check_names(schema, path)
        check_patterns(schema, path)
        if "$ref" in schema:
            self.refer(schema["$ref"], join(path, "$ref"))

    def check_pairs(self, schema: dict[str, Any], path: str) -> None:
        """Raise RequestError for limits that exclude each other."""
        for low, high in PAIRS:
            if low not in schema or high not in schema:
                continue
            least, most = schema[low], schema[high]
            strict = "exclusiveM" in low + high
            if least > most or (strict and least == most):
                raise fault(
                    join(path, low),
                    f"{low} {least} excludes {high} {most}; {low} must be "
                    f"{'below' if strict else 'at most'} {high}",
                )

    def refer(self, reference: str, place: str) -> None:
        """Check a reference, and read the schema that it names."""
        if not reference.startswith("#"):
            raise fault(place, "only references within the document (#/...) are followed")
        pointer = self.anchors.get(reference[1:], reference)
        self.referred.setdefault(pointer, place)
        self.resolve(pointer, place)
        self.pending.append(pointer)

    def resolve(self, pointer: str, place: str) -> Any:
        """The schema at a pointer. Raises RequestError if there is none."""
        found = self.root
        if pointer not in ("#", "#/") and not pointer.startswith("#/"):
            raise fault(place, f"no $anchor {pointer[1:41]!r} in the schema{self.defined()}")
        for step in pointer[2:].split("/") if len(pointer) > 2 else ():
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            known = dict(entries(found, every=True))
            if name not in known:
                raise fault(place, f"the schema has no {pointer[:80]!r}{self.defined()}")
            found = known[name]
        return found

    def defined(self) -> str:
        """The definitions that a reference may name, for errors."""
        if not isinstance(self.root, dict):
            return ""
        names = [
            f"#/{key}/{name}"
            for key in ("$defs", "definitions")
            for name in self.root.get(key) or ()
            if isinstance(self.root.get(key), dict)
        ]
        return f"; it has {', '.join(names[:8])[:200]}" if names else "; it has no definitions"

    def exclusive(self, branches: Any, path: str) -> bool:
        """Whether no value satisfies two of the branches of `oneOf`: it then equals `anyOf`."""
        found = [self.target(branch, path) for branch in branches]
        pairs = ((a, b) for i, a in enumerate(found) for b in found[i + 1 :])
        return len(found) <= 100 and all(disjoint(a, b) for a, b in pairs)

    def target(self, schema: Any, path: str) -> Any:
        """A schema, or the one that it refers to."""
        for _ in range(8):
            if not (isinstance(schema, dict) and "$ref" in schema):
                break
            reference: str = schema["$ref"]
            schema = self.resolve(self.anchors.get(reference[1:], reference), path)
        return schema


def lists_properties(schema: dict[str, Any]) -> bool:
    """Whether a schema lists properties, and leaves open whether there are others."""
    if "properties" not in schema or not schema.keys().isdisjoint(OPENING):
        return False
    names = schema["properties"].keys()
    return names >= set(schema.get("required", ())) and len(names) >= schema.get("minProperties", 0)


def drop_unsupported(schema: dict[str, Any]) -> None:
    """Remove keywords and formats that no grammar expresses."""
    dropped = [keyword for keyword in schema if is_unknown(keyword)]
    if schema.get("format", FORMATS[0]) not in FORMATS:
        dropped.append("format")
    for keyword in dropped:
        del schema[keyword]


def is_unknown(keyword: str) -> bool:
    """Whether a keyword is not supported, or a misspelled one."""
    return keyword in UNSUPPORTED or (
        keyword not in KNOWN and bool(get_close_matches(keyword, KNOWN, 1, CLOSE))
    )


def check_keyword(keyword: str, path: str) -> None:
    """Raise RequestError for a keyword that is not supported, or that is misspelled."""
    if keyword in UNSUPPORTED:
        hint = UNSUPPORTED[keyword]
        raise fault(join(path, keyword), f"the keyword {keyword!r} is not supported; {hint}")
    if keyword in ("$id", "$schema") and path != "#":
        raise fault(join(path, keyword), f"{keyword} is supported at the root of the schema only")
    if keyword not in KNOWN and (near := get_close_matches(keyword, KNOWN, 1, CLOSE)):
        raise fault(join(path, keyword), f"unknown keyword {keyword!r}; did you mean {near[0]!r}?")


def count_of(value: Any, place: str) -> int:
    """The whole number of a count. Raises RequestError for others and for large ones."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < 0 or value != int(value):
        raise fault(place, f"{shown(value)}; expected a whole number that is not negative")
    if value > MAX_COUNT:
        raise fault(place, f"{shown(value)} exceeds {MAX_COUNT}; leave it out or lower it")
    return int(value)


def check_number(value: Any, keyword: str, place: str) -> None:
    """Raise RequestError unless a value is a finite number, above 0 for `multipleOf`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value):
        raise fault(place, f"{shown(value)}; expected a number")
    if keyword == "multipleOf" and value <= 0:
        raise fault(place, f"{shown(value)}; expected a number above 0")


def check_types(schema: dict[str, Any], path: str) -> None:
    """Raise RequestError for an unknown type or format."""
    given = schema.get("type")
    types = given if isinstance(given, list) else [given] if "type" in schema else []
    wrong = [each for each in types if not isinstance(each, str) or each not in TYPES]
    if wrong or ("type" in schema and not types):
        found = shown(wrong[0]) if wrong else "an empty list"
        raise fault(join(path, "type"), f"{found}; expected one of {', '.join(TYPES)}")
    format = schema.get("format")
    if format is not None and format not in FORMATS and (not types or "string" in types):
        known = ", ".join(FORMATS)
        raise fault(
            join(path, "format"),
            f"{shown(format)} is not supported; use one of {known}, or pattern",
        )


def check_enum(schema: dict[str, Any], path: str) -> None:
    """Raise RequestError for an enum that is empty or too long, or that excludes `const`."""
    if "enum" not in schema:
        return
    values, place = schema["enum"], join(path, "enum")
    if not isinstance(values, list) or not values:
        found = "an empty list" if values == [] else shown(values)
        raise fault(place, f"{found}; expected a list of one value or more")
    if len(values) > MAX_CHOICES:
        raise fault(place, f"{len(values)} values; at most {MAX_CHOICES}: use pattern or string")
    if "const" in schema and schema["const"] not in values:
        raise fault(join(path, "const"), "const is not among the values of enum")


def check_required(schema: dict[str, Any], path: str) -> None:
    """Raise RequestError unless `required` is a list of names."""
    names = schema.get("required", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise fault(join(path, "required"), "expected a list of property names")


def check_names(schema: dict[str, Any], path: str) -> None:
    """Raise RequestError unless lists and maps of schemas are such."""
    for keyword in SEVERAL:
        if keyword in schema and not (isinstance(schema[keyword], list) and schema[keyword]):
            raise fault(join(path, keyword), "expected a list of one schema or more")
    for keyword in NAMED:
        if keyword in schema and not isinstance(schema[keyword], dict):
            raise fault(join(path, keyword), "expected an object of schemas by name")


def check_patterns(schema: dict[str, Any], path: str) -> None:
    """Raise RequestError for a pattern that ends within an escape."""
    if ends_within_escape(schema.get("pattern", "")):
        raise fault(join(path, "pattern"), BACKSLASH)
    for pattern in schema.get("patternProperties", {}):
        if ends_within_escape(pattern):
            raise fault(join(join(path, "patternProperties"), pattern), BACKSLASH)


def subschemas(schema: dict[str, Any], path: str) -> Iterator[tuple[Any, str]]:
    """The schemas directly inside a schema, with their paths."""
    for keyword in ONE:
        if keyword in schema:
            several = isinstance(schema[keyword], list) and keyword == "items"
            inner = entries(schema[keyword], every=True) if several else ()
            place = join(path, keyword)
            yield from ((each, join(place, name)) for name, each in inner)
            if not several:
                yield schema[keyword], place
    for keyword in (*SEVERAL, *NAMED):
        place = join(path, keyword)
        for name, each in entries(schema.get(keyword), every=True):
            yield each, join(place, name)


def disjoint(first: Any, second: Any) -> bool:
    """Whether no value satisfies both schemas, as far as types and constants tell."""
    if not (isinstance(first, dict) and isinstance(second, dict)):
        return False
    if (a := values_of(first)) is not None and (b := values_of(second)) is not None:
        return not any(value in b for value in a)
    types = (types_of(first), types_of(second))
    if all(types) and not types[0] & types[1]:
        return True
    if types != ({"object"}, {"object"}):
        return False
    shared = set(first.get("required", ())) & set(second.get("required", ()))
    ours, theirs = first.get("properties", {}), second.get("properties", {})
    return any(disjoint(ours.get(name), theirs.get(name)) for name in shared)


def values_of(schema: dict[str, Any]) -> list[str] | None:
    """The texts to which a schema is limited; None if it is not."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    texts = isinstance(values, list) and all(isinstance(value, str) for value in values)
    return values if texts else None


def types_of(schema: dict[str, Any]) -> set[str]:
    """The types of a schema's values, integers as numbers; empty if it states none."""
    given = schema.get("type", [])
    types = {given} if isinstance(given, str) else set(given)
    return {"number" if each == "integer" else each for each in types}


def relax_one_of(schema: dict[str, Any]) -> None:
    """Rename `oneOf` to `anyOf` where it is: the order of keywords is that of properties."""
    items = [("anyOf" if key == "oneOf" else key, value) for key, value in schema.items()]
    schema.clear()
    schema.update(items)


def entries(value: Any, every: bool = False) -> Iterator[tuple[str, Any]]:
    """Names and values in a JSON object, indices and values in a list."""
    pairs: Any = ()
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, list):
        pairs = ((str(i), each) for i, each in enumerate(value))
    return (pair for pair in pairs if every or isinstance(pair[1], dict | list))


def join(path: str, name: str) -> str:
    """A path with one more name, as a JSON pointer."""
    return f"{path}/{name.replace('~', '~0').replace('/', '~1')}"


def shown(value: Any) -> str:
    """A short value, for errors."""
    return f"{value!r:.40}" if isinstance(value, str | int | float) else describe(value)


def fault(path: str, what: str) -> RequestError:
    """The error of a fault at a path."""
    return RequestError(f"{path[:200]}: {what}")
