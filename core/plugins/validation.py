"""Validation of the records that plugins declare."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any, get_args

from ostro.core.errors import PluginError
from ostro.core.plugins.kinds import KINDS
from ostro.core.records import API, Architecture, Conformance, Format, Record
from ostro.core.routes import EventFormat, RequestBody, Scope

MAX_RECORDS = 1000
"""Maximum records per plugin and kind: stops a generator that never ends."""

_IMPORT = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*(:[^\W\d]\w*(\.[^\W\d]\w*)*){1,2}")


def _tuple_of(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, tuple) and all(isinstance(item, kind) for item in value)


CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "int": lambda value: type(value) is int,
    "Import": lambda value: isinstance(value, str) and bool(_IMPORT.fullmatch(value)),
    "Callable": callable,
    "RouteHandler": callable,
    "RouteEndpoint": lambda value: callable(value) or isinstance(value, Path),
    "RequestBody": lambda value: isinstance(value, RequestBody),
    "Conformance": lambda value: isinstance(value, Conformance),
    "EventFormat": lambda value: isinstance(value, EventFormat),
    "Scope": lambda value: value in get_args(Scope),
    "object": lambda value: True,
    "Mapping": lambda value: isinstance(value, Mapping),
    "tuple[str, ...]": _tuple_of(str),
    "tuple[int, ...]": _tuple_of(int),
    "tuple[int, int]": lambda value: isinstance(value, tuple) and [*map(type, value)] == [int, int],
    "tuple[Format, ...]": _tuple_of(Format),
}
"""Checks of field values, by annotation."""


def check_key(annotation: str) -> str:
    """The key in CHECKS of a field's annotation, without None and generic arguments."""
    bare = annotation.removesuffix(" | None")
    generic = bare.partition("[")[0]
    return generic if generic in ("Callable", "Mapping") else bare


def is_compatible(api: tuple[int, int]) -> bool:
    """Whether a record of that API version can be used: up to the own 1.n, or exactly 0.n."""
    return api[0] == API[0] and (api[1] == API[1] if API[0] == 0 else api[1] <= API[1])


def check_records(kind: str, result: object) -> list[Record]:
    """The valid records in the result of a plugin's declaration hook.

    Raises PluginError for an invalid result, and whatever the plugin's generator raises.
    """
    expected = KINDS[kind]
    if isinstance(result, str | bytes) or not isinstance(result, Iterable):
        raise PluginError(f"it returned {result!r:.80}, expected {expected.__name__} records")
    records = list(islice(result, MAX_RECORDS + 1))
    if len(records) > MAX_RECORDS:
        raise PluginError(f"it declares more than {MAX_RECORDS} {kind}")
    names: set[str] = set()
    for record in records:
        check_record(record, expected)
        if record.name in names:
            raise PluginError(f"it declares the {expected.__name__} {record.name!r} twice")
        names.add(record.name)
    return records


def check_fields(value: Record | Conformance, kind: type[Any], what: str) -> None:
    """Raise PluginError unless the fields of a dataclass have values of their annotations."""
    for field in fields(kind):
        found, annotation = getattr(value, field.name), str(field.type)
        if found is None and annotation.endswith("| None"):
            continue
        if not CHECKS[check_key(annotation)](found):
            raise PluginError(f"{what}{field.name} is {found!r:.80}, expected {annotation}")


def check_record(record: object, expected: type[Record]) -> None:
    """Raise PluginError unless this is a usable record of the expected type."""
    if not isinstance(record, expected):
        raise PluginError(f"it declares {record!r:.80}, expected a record {expected.__name__}")
    what = f"{expected.__name__} {record.name!r:.80}"
    check_fields(record, expected, f"{what}: the field ")
    if isinstance(record, Architecture):
        check_fields(record.conformance, Conformance, f"{what}: the field conformance.")
    if not record.name or record.name != record.name.strip() or not record.name.isprintable():
        raise PluginError(
            f"{what}: invalid name, expected printable text without spaces at its ends"
        )
    if isinstance(record, Architecture) and not is_compatible(record.api):
        theirs, ours = (".".join(map(str, version)) for version in (record.api, API))
        raise PluginError(
            f"{what} is written for the plugin API {theirs}, this ostro has {ours}; "
            f"install the plugin's release for {ours}"
        )
