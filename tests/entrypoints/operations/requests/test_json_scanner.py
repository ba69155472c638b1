"""Limits of a JSON body: the largest that are accepted, and one beyond each."""

from __future__ import annotations

import pytest

from ostro.core.errors import RequestError
from ostro.entrypoints.operations.requests import json_scanner
from ostro.entrypoints.operations.requests.json_scanner import MAX_DEPTH, MAX_NAME, check_text


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_the_deepest_body(opening: bytes) -> None:
    closing = b"]" if opening == b"[" else b"}"
    check_text(opening * MAX_DEPTH + b"1" + closing * MAX_DEPTH)
    with pytest.raises(RequestError, match=f"deeper than {MAX_DEPTH} levels"):
        check_text(opening * (MAX_DEPTH + 1) + b"1" + closing * (MAX_DEPTH + 1))


def test_the_longest_name() -> None:
    assert check_text(b'{"%s": 1}' % (b"a" * MAX_NAME)) == {b"a" * MAX_NAME}
    with pytest.raises(RequestError, match=f"exceeds {MAX_NAME} bytes"):
        check_text(b'{"%s": 1}' % (b"a" * (MAX_NAME + 1)))


def test_the_most_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_scanner, "MAX_ITEMS", 3)
    check_text(b"[1, 2, 3, 4]")
    with pytest.raises(RequestError, match="more than 3 items"):
        check_text(b"[1, 2, 3, 4, 5]")
