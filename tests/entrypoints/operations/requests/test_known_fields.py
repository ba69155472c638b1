"""Unknown fields leave the JSON of a request; everything else stays as it was sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
import pytest

from ostro.core.errors import RequestError, Unsupported
from ostro.entrypoints.operations.requests.ignored import ignoring
from ostro.entrypoints.operations.requests.known_fields import known_fields


class Strict(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    pass


class Text(Strict, kw_only=True, tag_field="type", tag="text"):
    text: str
    parts: list[Text | Image] | None = None


class Image(Strict, kw_only=True, tag_field="type", tag="image"):
    unsupported: ClassVar[Mapping[str, str]] = {"file": "a stored file; send the image"}

    url: str = ""


class Request(Strict, kw_only=True):
    content: str | list[Text | Image] | None = None
    choice: str | Image | None = None
    tools: dict[str, Text] | None = None
    schema: msgspec.Raw = msgspec.Raw(b"null")
    free: dict[str, Any] | None = None


@pytest.mark.parametrize(
    ("given", "kept", "names"),
    [
        (b'{"content": "a", "b": 1}', b'{"content":"a"}', ["b"]),
        (
            b'{"content": [{"type": "text", "text": "a", "b": {}}, {"url": "c", "type": "image"}]}',
            b'{"content":[{"type":"text","text":"a"},{"url":"c","type":"image"}]}',
            ["content[].b"],
        ),
        (
            b'{"content":[{"type":"text","text":"a","parts":[{"type":"image","b":1,"c":2}]}]}',
            b'{"content":[{"type":"text","text":"a","parts":[{"type":"image"}]}]}',
            ["content[].parts[].b", "content[].parts[].c"],
        ),
        (b'{"choice":{"b":1,"url":"u"}}', b'{"choice":{"url":"u"}}', ["choice.b"]),
        (
            b'{"tools":{"t":{"type":"text","text":"a","b":1}}}',
            b'{"tools":{"t":{"type":"text","text":"a"}}}',
            ["tools.t.b"],
        ),
        # What the type leaves open is not read.
        (
            b'{"schema":{"b": 1e5},"free":{"b": [ 1 ]}}',
            b'{"schema":{"b": 1e5},"free":{"b": [ 1 ]}}',
            [],
        ),
        # What does not fit its type is left to the decoder.
        (b'{"content":[{"type":"video","b":1}]}', b'{"content":[{"type":"video","b":1}]}', []),
        (b'{"content":[7,null]}', b'{"content":[7,null]}', []),
        (b'{"content":{"b":1},"tools":[1]}', b'{"content":{"b":1},"tools":[1]}', []),
    ],
)
def test_unknown_fields_are_removed_and_named(given: bytes, kept: bytes, names: list[str]) -> None:
    with ignoring(strict=False) as ignored:
        assert bytes(known_fields(given, Request)) == kept
    assert [*ignored] == names


def test_unknown_fields_are_errors_outside_of_a_request_and_in_strict_ones() -> None:
    given = b'{"content":[{"type":"text","text":"a"},{"type":"text","text":"a","txt":"b"}]}'
    for strict in (True, None):
        with pytest.raises(RequestError, match=r"'content\[1\].txt'; nearest: text") as error:
            if strict is None:
                known_fields(given, Request)
            else:
                with ignoring(strict):
                    known_fields(given, Request)
        assert error.value.param == "content[1].txt"


def test_a_field_with_a_meaning_is_refused_by_name() -> None:
    with ignoring(strict=False) as ignored, pytest.raises(Unsupported) as error:
        known_fields(b'{"b":1,"content":[{"type":"image","file":"f"}]}', Request)
    assert str(error.value) == "content[0].file: a stored file is not supported; send the image"
    assert error.value.param == "content[0].file" and [*ignored] == ["b"]
