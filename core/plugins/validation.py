"""What must hold of the records a plugin declares before anybody believes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from itertools import islice
from typing import Any

from ostro.core.errors import PluginError
from ostro.core.records import API, KINDS, Architecture, Format, Record

LIMIT = 1000
"""Records that one plugin may declare of one kind; more is a loop that does not end."""

_IMPORT = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*(:[^\W\d]\w*(\.[^\W\d]\w*)*){1,2}")


def _strings(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(item, str) for item in value)


def _version(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(type(n) is int for n in value)


def _import_string(value: object) -> bool:
    return isinstance(value, str) and _IMPORT.fullmatch(value) is not None


def _formats(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(item, Format) for item in value)


FORMS: Mapping[str, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "int": lambda value: type(value) is int,
    "Import": _import_string,
    "Callable": callable,
    "Mapping": lambda value: isinstance(value, Mapping),
    "tuple[str, ...]": _strings,
    "tuple[int, int]": _version,
    "tuple[Format, ...]": _formats,
}
"""Whether a value has the form that a record field's annotation asks for."""


def form(annotation: str) -> str:
    """The key in FORMS for a field's annotation: without None, and without what a call takes."""
    bare = annotation.removesuffix(" | None")
    head = bare.partition("[")[0]
    return head if head in ("Callable", "Mapping") else bare


def speaks(api: tuple[int, int]) -> bool:
    """Whether a record written for that API can be used: any past 1.n, and only our own 0.n."""
    if api[0] != API[0]:
        return False
    return api[1] == API[1] if API[0] == 0 else api[1] <= API[1]


def declared(kind: str, answer: object) -> list[Record]:
    """The records in a plugin's answer to the declaration hook of that kind.

    Raises PluginError saying what is wrong with the answer; whatever the plugin's own generator
    raises passes through.
    """
    expected = KINDS[kind]
    if isinstance(answer, str | bytes) or not isinstance(answer, Iterable):
        raise PluginError(f"it answered with {answer!r:.80}, not with {expected.__name__} records")
    records = list(islice(answer, LIMIT + 1))
    if len(records) > LIMIT:
        raise PluginError(f"it declares more than {LIMIT} {kind}")
    names: set[str] = set()
    for record in records:
        check(record, expected)
        if record.name in names:
            raise PluginError(f"it declares the {expected.__name__} {record.name!r} twice")
        names.add(record.name)
    return records


def check(record: object, expected: type[Record]) -> None:
    """Raise PluginError unless this is a usable record of the expected type."""
    if not isinstance(record, expected):
        raise PluginError(f"it declares {record!r:.80}, which is no {expected.__name__}")
    what = f"{expected.__name__} {record.name!r:.80}"
    for field in fields(expected):
        value, annotation = getattr(record, field.name), str(field.type)
        if value is None and annotation.endswith("| None"):
            continue
        if not FORMS[form(annotation)](value):
            raise PluginError(f"{what}: the field {field.name} is {value!r:.80}, not {annotation}")
    if not record.name or record.name != record.name.strip() or not record.name.isprintable():
        raise PluginError(f"{what}: that is no name")
    if isinstance(record, Architecture) and not speaks(record.api):
        theirs, ours = (".".join(map(str, version)) for version in (record.api, API))
        raise PluginError(
            f"{what} is written for the plugin API {theirs}, this ostro speaks {ours}; "
            f"install the plugin's release for {ours}"
        )
