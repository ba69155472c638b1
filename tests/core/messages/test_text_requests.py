"""The requests for text state what they contain: JSON without a type is an exception."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

import msgspec

from ostro.core.messages.text_requests import ChatRequest, CompletionRequest

UNTYPED = {
    ("MediaPart", "value"),
    ("Tool", "parameters"),
    ("Tool", "extra"),
    ("JsonSchema", "schema"),
    ("StructuralTag", "value"),
    ("ChatRequest", "chat_template_kwargs"),
    ("ChatRequest", "logits_processors"),
    ("CompletionRequest", "logits_processors"),
}
"""By struct: media of Python, JSON schemas, variables of templates, and what plugins define."""


def types_in(hint: Any) -> Iterator[Any]:
    """A type and the types of its parts."""
    yield hint
    for part in get_args(hint):
        yield from types_in(part)


def structs_in(kind: type[msgspec.Struct]) -> set[type[msgspec.Struct]]:
    """A struct and the structs that its fields contain."""
    structs = {kind}
    for field in msgspec.structs.fields(kind):
        for each in types_in(field.type):
            if isinstance(each, type) and issubclass(each, msgspec.Struct):
                structs |= structs_in(each)
    return structs


def test_fields_without_a_type() -> None:
    structs = structs_in(ChatRequest) | structs_in(CompletionRequest)
    assert {"Message", "FilePart", "ToolCall", "Grammar", "AdapterChoice"} <= {
        kind.__name__ for kind in structs
    }
    without = (Any, object, dict, list, Mapping, Sequence)
    untyped = {
        (kind.__name__, field.name)
        for kind in structs
        for field in msgspec.structs.fields(kind)
        if any(each in without for each in types_in(field.type))
    }
    assert untyped == UNTYPED
