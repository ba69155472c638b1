"""Custom tools whose input follows a grammar, with an engine that draws tokens at random."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from tiny.server import RunningServer

pytestmark = pytest.mark.process

PATCH = """\
start: "*** Begin\\n" line{1,3} "*** End"
line: ("+" | "-") /[a-c"\\\\]{1,6}/ LF
%import common.LF
"""
PATCHES = re.compile(r'\*\*\* Begin\n([+-][a-c"\\]{1,6}\n){1,3}\*\*\* End')
SUMS = 'start: sum\nsum: "1" | "(" sum "+" sum ")"'


def custom(definition: str, syntax: str = "lark") -> dict[str, Any]:
    form = {"type": "grammar", "syntax": syntax, "definition": definition}
    return {"type": "custom", "name": "patch", "description": "Edits.", "format": form}


def ask(server: RunningServer, **fields: Any) -> httpx.Response:
    body = {"model": "default", "input": "hi", "max_output_tokens": 400, "temperature": 2, **fields}
    return server.post("/v1/responses", **body)


@pytest.mark.parametrize(
    ("tool", "inputs"),
    [
        (custom(PATCH), PATCHES),
        (custom('["/\\n]x{3}', "regex"), re.compile('["/\n]x{3}')),
    ],
    ids=["lark", "regex"],
)
def test_the_input_follows_the_format(
    random_server: RunningServer, tool: dict[str, Any], inputs: re.Pattern[str]
) -> None:
    for seed in range(4):
        response = ask(random_server, tools=[tool], tool_choice="required", seed=seed)
        assert response.status_code == 200, response.text
        answer = response.json()
        [call] = [item for item in answer["output"] if item["type"] == "custom_tool_call"][:1]
        assert call["name"] == "patch" and inputs.fullmatch(call["input"]), call["input"]
        assert answer["tools"] == [tool]


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        (custom("start: absent"), "absent"),
        (custom("[a", "regex"), "regular expression"),
        (custom("a\\", "regex"), ""),
        (custom(PATCH, "gbnf"), "syntax"),
        ({**custom(PATCH), "format": {"type": "grammar"}}, "syntax"),
        ({**custom(PATCH), "format": {"type": "xml"}}, "type"),
    ],
)
def test_malformed_formats_are_refused(
    random_server: RunningServer, tool: dict[str, Any], words: str
) -> None:
    function = {"type": "function", "name": "other"}
    response = ask(random_server, tools=[function, tool])
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert "tools[1].format" in error["message"] and words in error["message"], error
    assert error["param"].startswith("tools[1].format")
    space = {"type": "namespace", "name": "a", "tools": [function, tool]}
    error = ask(random_server, tools=[function, space]).json()["error"]
    assert error["param"].startswith("tools[1].tools[1].format"), error


def test_a_grammar_that_recurs(random_server: RunningServer) -> None:
    """Texts between tags have any grammar; JSON strings need one that is regular."""
    response = ask(random_server, tools=[custom(SUMS)], tool_choice="required", seed=3)
    if response.status_code == 200:
        [call, *_] = response.json()["output"]
        assert re.fullmatch(r"[1(+)]+", call["input"])
    else:
        error = response.json()["error"]
        assert (
            error["param"] == "tools[0].format" and "the rule sum is recursive" in error["message"]
        )
