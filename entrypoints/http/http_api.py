"""The page of the request fields of all routes, generated from the types of their requests.

Names in the class variables `accepted`, `echoed` and `unsupported` of a request type say what the
server does with a field; it honours all others. See `ostro.http.ModelBody`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ostro.core.routes import Route
from ostro.entrypoints.http.openapi import openapi, schema_name

HEAD = """# HTTP API: request fields

Generated from the types of the requests; the [OpenAPI document](openapi.json) has the responses.
[`serving.md`](serving.md) describes the server.

- *honoured*: the field has its effect, or the request fails with an error that names it.
- *echoed*: the response contains it; it has no other effect.
- *accepted*: valid values have no effect, for the reason given; others are errors.
- *rejected*: status 400 with the code `unsupported`, if it is not null.

Any other field is ignored: the header `x-ostro-ignored` of the response names it. With
`--strict-fields` it is an error. *extension*: the API that the route is named after lacks the
field. The last column is the first test of the API that names the field.
"""
FindTest = Callable[[Route, str], str]
"""Returns a test of a route that names a field, "" without one."""


@dataclass(frozen=True)
class Field:
    """What a route does with a field of its request."""

    name: str
    status: str
    phrase: str


def fields_of(route: Route, components: Mapping[str, Any]) -> list[Field]:
    """The fields of a route's request, those that it rejects last.

    components: the schemas of the OpenAPI document.
    """
    kind: Any = route.request
    schema = components[schema_name(kind)]
    accepted, echoed = getattr(kind, "accepted", {}), getattr(kind, "echoed", {})
    unsupported = getattr(kind, "unsupported", {})
    found = []
    for name, each in schema["properties"].items():
        notes = [type_phrase(each, components)]
        notes += ["required"] if name in schema.get("required", ()) else []
        notes += ["extension"] if each.get("x-ostro-extension") else []
        reason = accepted.get(name) or echoed.get(name)
        notes += [reason] if reason else []
        status = "accepted" if name in accepted else "echoed" if name in echoed else "honoured"
        found.append(Field(name, status, "; ".join(filter(None, notes))))
    return [*found, *(Field(name, "rejected", what) for name, what in unsupported.items())]


def type_phrase(schema: Mapping[str, Any], components: Mapping[str, Any]) -> str:
    """The values of a field in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        found = components[name]
        return type_phrase(found, components) if "enum" in found else "object"
    if "enum" in schema:
        return "one of " + ", ".join(f"`{each}`" for each in schema["enum"])
    if "anyOf" in schema:
        parts = [type_phrase(each, components) for each in schema["anyOf"]]
        return " or ".join(dict.fromkeys(part for part in parts if part != "null"))
    if schema.get("type") == "array":
        return f"list of {type_phrase(schema.get('items') or {}, components) or 'any'}"
    if "contentMediaType" in schema:
        return "file"
    return str(schema.get("type", ""))


def http_api(routes: Sequence[Route], find_test: FindTest) -> str:
    """Return the page, in Markdown."""
    components = openapi(routes)["components"]["schemas"]
    parts = [HEAD]
    for route in sorted(routes, key=lambda route: route.name.partition(" ")[::-1]):
        if route.request is not None:
            rows = [
                (field.name, field.status, field.phrase, find_test(route, field.name))
                for field in fields_of(route, components)
            ]
            parts += [f"## {route.name}\n\n{table(rows)}"] if rows else []
    return "\n".join(parts)


def table(rows: Iterable[tuple[str, str, str, str]]) -> str:
    """Return rows of a field as a table in Markdown."""
    lines = ["| field | | meaning | test |", "|---|---|---|---|"]
    for name, status, phrase, test in rows:
        cell = phrase.replace("|", "\\|")
        lines.append(f"| `{name}` | {status} | {cell} | {test and f'`{test}`'} |")
    return "\n".join(lines) + "\n"
