"""Reads requests from fields of forms and query strings, in the notation of OpenAI's clients."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from ostro.core.errors import RequestError
from ostro.core.pipeline import parse_request
from ostro.entrypoints.operations.requests.ignored import ignore
from ostro.entrypoints.operations.requests.json_scanner import check_text

MEMBER = re.compile(r"(\w+)\[([^\[\]]*)\]")
"""A member of an object, `name[key]`, or an item of a list, `name[]`."""
JSON_FIELDS = ("adapter", "adapters", "expires_after")
"""Fields whose text is JSON if it begins with a bracket."""
R = TypeVar("R", bound=msgspec.Struct)


def parse_fields(
    fields: Iterable[tuple[str, str]],
    kind: type[R],
    what: str = "field",
    files: Mapping[str, object] = MappingProxyType({}),
) -> R:
    """Return the request in fields, each a name and its text, and in files by name.

    "name[]" is an item of a list, "name[key]" a member of an object; the name of a list may be
    repeated. A text is accepted for a number or a boolean. Raises RequestError for repeated,
    unknown and mistyped fields, and for texts that JSON bodies may not have; `what` describes a
    field.
    """
    lists = {name for name, type in get_type_hints(kind).items() if is_list(type)}
    given: dict[str, Any] = {}
    for full, text in fields:
        name, key = split_name(full)
        value: Any = text if key is not None else read_value(name, text)
        if key:
            value = {key: text}
        elif (key == "" or name in lists) and not isinstance(value, list):
            value = [value]
        held = given.get(name)
        if name not in given:
            given[name] = value
        elif isinstance(held, list) and isinstance(value, list):
            held += value
        elif key and isinstance(held, dict) and key not in held:
            held[key] = text
        else:
            raise RequestError(f"duplicate {what} {name[:80]}", param=name[:80])
    try:
        check_text(msgspec.json.encode(given))
    except UnicodeEncodeError:
        raise RequestError("a text is not valid Unicode") from None
    return parse_request({**given, **files}, kind, strict=False, ignore=ignore)


def split_name(full: str) -> tuple[str, str | None]:
    """Split "name[key]"; the key is None without brackets, and "" for "name[]"."""
    match = MEMBER.fullmatch(full)
    return (match[1], match[2]) if match else (full, None)


def is_list(annotation: Any) -> bool:
    """Whether a type is a list or a union with one."""
    return any(get_origin(each) is list for each in (annotation, *get_args(annotation)))


def read_value(name: str, text: str) -> Any:
    """Return the value of a text: JSON in some fields. Raises RequestError for invalid JSON."""
    if name not in JSON_FIELDS or text.lstrip()[:1] not in ("[", "{"):
        return text
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        raise RequestError(f"{name} is not valid JSON", param=name) from None
