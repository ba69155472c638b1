"""Removes the fields of JSON objects that the type of a request does not have."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import inspect

from ostro.core import pipeline
from ostro.entrypoints.operations.requests.ignored import ignore

MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
Json = bytes | bytearray | msgspec.Raw


def known_fields(data: Json, kind: Any, path: str = "") -> msgspec.Raw:
    """Return JSON of a type without the fields that its objects do not know, which are ignored.

    Values that contain no object of a known type stay as they are, and so do malformed ones.
    path: that of the value in the request. Raises RequestError if unknown fields are errors, and
    Unsupported for fields that their object names as such; see `check_fields`.
    """
    return prune(msgspec.Raw(bytes(data)), type_of(kind), path)


@lru_cache(maxsize=256)
def type_of(kind: Any) -> inspect.Type:
    """Return the description of a type."""
    return inspect.type_info(kind)


def prune(data: msgspec.Raw, type: inspect.Type, path: str) -> msgspec.Raw:
    """Return JSON without unknown fields. Raises as `known_fields`."""
    match bytes(memoryview(data)[:1]):
        case b"{":
            members = MEMBERS.decode(data)
            if (struct := struct_of(type, members)) is not None:
                return encoded(prune_members(members, struct, path))
            if (value := value_type(type)) is not None:
                pairs = members.items()
                return encoded({name: prune(x, value, f"{path}.{name}") for name, x in pairs})
        case b"[":
            if (item := item_type(type)) is not None:
                items = enumerate(ITEMS.decode(data))
                return encoded([prune(x, item, f"{path}[{i}]") for i, x in items])
    return data


def prune_members(
    members: dict[str, msgspec.Raw], struct: inspect.StructType, path: str
) -> dict[str, msgspec.Raw]:
    """Return the members that a struct knows, without unknown fields in them."""
    types, tag = fields_of(struct.cls), struct.tag_field
    if unknown := [name for name in members if name not in types and name != tag]:
        pipeline.check_fields(unknown, struct.cls, ignore, path)
    known: dict[str, msgspec.Raw] = {}
    for name, value in members.items():
        if (type := types.get(name)) is not None:
            known[name] = prune(value, type, f"{path}.{name}" if path else name)
        elif name in types or name == tag:
            known[name] = value
    return known


@lru_cache(maxsize=256)
def fields_of(kind: Any) -> dict[str, inspect.Type | None]:
    """Return the types of the fields of a struct, by name: None for those without structs."""
    struct = type_of(kind)
    assert isinstance(struct, inspect.StructType)
    return {f.encode_name: f.type if has_struct(f.type) else None for f in struct.fields}


def alternatives(type: inspect.Type) -> Iterable[inspect.Type]:
    """Yield the types of a union, or the type itself."""
    while isinstance(type, inspect.Metadata):
        type = type.type
    return type.types if isinstance(type, inspect.UnionType) else (type,)


def struct_of(type: inspect.Type, members: dict[str, msgspec.Raw]) -> inspect.StructType | None:
    """Return the type of an object: the struct of a union that has its tag, or the only one."""
    structs = [each for each in alternatives(type) if isinstance(each, inspect.StructType)]
    for struct in structs:
        if struct.tag_field is None or len(structs) == 1:
            return struct
        if members.get(struct.tag_field) == msgspec.Raw(msgspec.json.encode(struct.tag)):
            return struct
    return None


def item_type(type: inspect.Type) -> inspect.Type | None:
    """Return the type of the items of a list that contain structs; None for other types."""
    lists = (each for each in alternatives(type) if isinstance(each, inspect.ListType))
    return next((each.item_type for each in lists if has_struct(each.item_type)), None)


def value_type(type: inspect.Type) -> inspect.Type | None:
    """Return the type of the values of an object with free names; None as `item_type`."""
    objects = (each for each in alternatives(type) if isinstance(each, inspect.DictType))
    return next((each.value_type for each in objects if has_struct(each.value_type)), None)


def has_struct(type: inspect.Type) -> bool:
    """Whether values of a type contain structs: a list of a million tokens need not be read."""
    return any(
        isinstance(each, inspect.StructType)
        or item_type(each) is not None
        or value_type(each) is not None
        for each in alternatives(type)
    )


def encoded(value: Any) -> msgspec.Raw:
    """Return the JSON of a value."""
    return msgspec.Raw(msgspec.json.encode(value))
