"""The two names of a text: the field of vLLM, and that of llama.cpp with its defaults."""

from __future__ import annotations

from typing import Any

import pytest

from ostro.plugins.apis.text_tools.schema import TokenizeBody, text_of


@pytest.mark.parametrize(
    ("fields", "special", "parsed"),
    [
        ({"prompt": "a"}, True, True),
        ({"content": "a"}, False, True),
        ({"prompt": "a", "add_special_tokens": False, "parse_special": False}, False, False),
        ({"content": "a", "add_special": True, "parse_special": False}, True, False),
    ],
)
def test_each_name_has_the_defaults_of_its_server(
    fields: dict[str, Any], special: bool, parsed: bool
) -> None:
    text = text_of(TokenizeBody(**fields))
    assert (text.text, text.add_special_tokens, text.parse_special) == ("a", special, parsed)
