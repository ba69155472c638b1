"""The formats of streamed responses."""

from __future__ import annotations

from typing import Any

import msgspec

from ostro.core.routes import EventFormat


def data_event(content: Any) -> bytes:
    """One server-sent event with JSON as its data."""
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


def named_event(content: msgspec.Struct) -> bytes:
    """One server-sent event with JSON as its data; its name is the tag of the struct, if any."""
    tag = content.__struct_config__.tag
    name = b"" if tag is None else f"event: {tag}\n".encode()
    return name + data_event(content)


def json_line(content: Any) -> bytes:
    """One line of JSON."""
    return msgspec.json.encode(content) + b"\n"


OPENAI_EVENTS = EventFormat(encode=data_event, end=b"data: [DONE]\n\n")
DATA_EVENTS = EventFormat(encode=data_event)
NAMED_EVENTS = EventFormat(encode=named_event)
JSON_LINES = EventFormat(encode=json_line, keep_alive=b"", media_type="application/x-ndjson")
