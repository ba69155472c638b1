"""Tools whose argument follows a format, in the text pipeline."""

from __future__ import annotations

from typing import Any

import pytest

from ostro.core.errors import RequestError, Unsupported
from ostro.core.messages.text_requests import ChatRequest, Grammar, Message, Regex, Tool
from ostro.plugins.parsers.hermes.parser import HermesParser
from ostro.plugins.pipelines.text.parsing import OutputFormat
from ostro.plugins.pipelines.text.tools import call_rules

PARAMETERS = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
FREE = Tool("look", PARAMETERS)
STRICT = Tool("see", PARAMETERS, True)
PATCH = Tool("patch", PARAMETERS, format=Regex("[a-c]+"))
USER = Message(role="user", content="hi")


class Older:
    """A parser that does not know formats."""

    reasoning = None

    @classmethod
    def grammar(cls, tools: Any, *options: Any, **named: Any) -> str:
        return f"start: {' | '.join(tool.name for tool in tools)}"


def request(*tools: Tool, **fields: Any) -> ChatRequest:
    return ChatRequest(messages=[USER], tools=tools, **fields)


def grammar(kind: Any, *tools: Tool, answer: Any = None, **fields: Any) -> dict[str, Any]:
    """The parameter of the logits processor for a request."""
    rules = call_rules(request(*tools, **fields))
    return OutputFormat(kind=kind).grammar(answer, "", rules, {})


@pytest.mark.parametrize(
    ("tools", "fields", "field"),
    [
        ([FREE], {}, ""),
        ([FREE, PATCH], {}, "tools[1].format"),
        ([STRICT, PATCH], {}, "tools[1].format"),
        ([STRICT], {}, "tools[0].strict"),
        ([FREE, PATCH], {"tool_choice": "none"}, ""),
        ([FREE, PATCH], {"tool_choice": "required"}, "tools[1].format"),
        ([STRICT], {"parallel_tool_calls": False}, "parallel_tool_calls"),
        ([FREE], {"tool_choice": "required", "parallel_tool_calls": False}, "tool_choice"),
    ],
)
def test_the_field_that_constrains_calls(
    tools: list[Tool], fields: dict[str, Any], field: str
) -> None:
    assert call_rules(request(*tools, **fields)).field == field


def test_a_format_is_part_of_the_grammar() -> None:
    """Of calls that the model chooses, that it has to make, and beside a constrained text."""
    for fields in ({}, {"tool_choice": "required"}, {"answer": {"regex": "x"}}):
        parameter = grammar(HermesParser, FREE, PATCH, **fields)
        lark = parameter["outer" if "answer" in fields else "lark"]
        assert '"(?:[a-c]+)"' in lark


@pytest.mark.parametrize("fields", [{}, {"tool_choice": "required"}, {"answer": {"regex": "x"}}])
def test_a_parser_that_ignores_formats_is_named(fields: dict[str, Any]) -> None:
    with pytest.raises(Unsupported, match=r"tools\[1\]\.format: the notation") as caught:
        grammar(Older, FREE, PATCH, **fields)
    assert caught.value.param == "tools[1].format"
    assert grammar(Older, FREE, STRICT, tool_choice="required")["lark"] == "start: look | see"


def test_errors_name_the_format() -> None:
    for form, kind in ((Grammar("lark", "start: b"), RequestError), (Regex("[["), Unsupported)):
        tool = Tool("patch", PARAMETERS, format=form)
        with pytest.raises(kind, match=r"^tools\[0\]\.format: ") as caught:
            grammar(HermesParser, tool)
        assert caught.value.param == "tools[0].format"
    gbnf = Tool("patch", PARAMETERS, format=Grammar("gbnf", 'root ::= "a"'))
    with pytest.raises(Unsupported, match="gbnf are not supported in tools; use lark"):
        grammar(HermesParser, gbnf)


def test_the_expressions_of_all_formats_are_limited() -> None:
    tools = [Tool(f"t{i}", PARAMETERS, format=Regex("." * 2000)) for i in range(3)]
    assert grammar(HermesParser, tools[0])
    with pytest.raises(RequestError, match=r"tools\[0\]\.format: the formats have more than"):
        grammar(HermesParser, *tools)
