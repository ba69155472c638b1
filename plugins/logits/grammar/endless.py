"""JSON schemas that no finite value satisfies: they require themselves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

Finite = Callable[[str], bool]
"""Whether a finite value satisfies the schema that a reference names."""


def endless_references(schemas: dict[str, Any], pointer_of: Callable[[str], str]) -> set[str]:
    """Those of the schemas, by their pointers, that no finite value satisfies.

    pointer_of: the pointer of the schema that a `$ref` names.
    """
    finite = set[str]()

    def is_finite(reference: str) -> bool:
        return pointer_of(reference) in finite

    # A schema is finite if it needs finite ones alone: the set grows until no other is found.
    endless, before = set(schemas), -1
    while len(endless) != before:
        before = len(endless)
        for pointer in sorted(endless):
            if ends(schemas[pointer], is_finite):
                finite.add(pointer)
        endless -= finite
    return endless


def ends(schema: Any, is_finite: Finite) -> bool:
    """Whether a finite value satisfies a schema, as far as required parts tell."""
    if not isinstance(schema, dict):
        return True
    if "$ref" in schema and not is_finite(schema["$ref"]):
        return False
    if not all_end(schema.get("allOf", ()), is_finite):
        return False
    for keyword in ("anyOf", "oneOf"):
        branches = schema.get(keyword)
        if branches and not any(ends(branch, is_finite) for branch in branches):
            return False
    if "const" in schema or "enum" in schema:
        return True
    types = schema.get("type")
    types = [types] if isinstance(types, str) else types or ["any"]
    return any(type_ends(kind, schema, is_finite) for kind in types)


def type_ends(kind: str, schema: dict[str, Any], is_finite: Finite) -> bool:
    """Whether a finite value of one type satisfies the keywords of that type."""
    if kind == "object":
        properties = schema.get("properties", {})
        required: Collection[str] = schema.get("required", ())
        return all_end((properties.get(name, True) for name in required), is_finite)
    if kind == "array":
        least, first = schema.get("minItems", 0), schema.get("prefixItems", [])
        rest = [schema.get("items", True)] if least > len(first) else []
        return all_end([*first[:least], *rest], is_finite)
    return True


def all_end(schemas: Iterable[Any], is_finite: Finite) -> bool:
    """Whether a finite value satisfies each of the schemas."""
    return all(ends(schema, is_finite) for schema in schemas)
