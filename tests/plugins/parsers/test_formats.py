"""Calls of tools whose only argument is a text of a regular expression or a grammar."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from tiny.drawings import BARE, Drawing, begin, without_reasoning
from tiny.notations import OUTPUTS
from tiny.turns import Output, parse

from ostro.core.errors import Unsupported
from ostro.core.output import Tool
from ostro.core.records import Parser, resolve
from ostro.pipelines import Grammar, Regex

PARAMETERS = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
PATCH = """\
start: begin hunk+ end
begin: "*** Begin" LF
end: "*** End" LF?
hunk: "@@ " /.{1,4}/ LF line{1,3} -> changes
line: ("+" | "-" | " "~2) /[^\\n]{0,3}/ LF
%import common.LF
"""
PATCHES = re.compile(
    r"\*\*\* Begin\n(@@ .{1,4}\n(([+-]|  )[^\n]{0,3}\n){1,3})+\*\*\* End\n?", re.DOTALL
)
SUMS = 'start: sum\nsum: "1" | "2" | "3" | "(" sum "+" sum ")"'
RECURRING = ("glm4", "minimax_m2", "qwen3_coder", "seed_oss", "hunyuan3")
"""Some of the notations whose values are texts without quotes."""


def tool(form: Regex | Grammar) -> Tool:
    return Tool("patch", PARAMETERS, format=form)


def drawn(name: str, kind: Any, drawing: Drawing, seed: int) -> str:
    """The input of a call that is drawn from a grammar."""
    drawing.draw(seed)
    prompt = "<|start|>assistant" if name == "harmony" else ""
    tools = [Tool("patch", PARAMETERS)]
    result = parse(kind, Output(prompt, drawing.pieces()), tools, controls=drawing.controls)
    [(called, arguments)] = result.calls
    values = json.loads(arguments)
    assert called == "patch" and result.ended == [0] and [*values] == ["input"]
    text: str = values["input"]
    return text


@pytest.mark.sample(28)
@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("name", OUTPUTS)
def test_the_text_of_a_call_matches_a_regular_expression(
    parsers: Mapping[str, Parser], name: str, special: bool
) -> None:
    kind, tools = without_reasoning(name, parsers), [tool(Regex('["/\\\\\t\n][a-c]{2,3}é'))]
    for seed in range(3):
        drawing = Drawing(name, kind, special, "required", parallel=False, tools=tools)
        drawing.feed(drawing.ids_of(begin(name, kind, "required")))
        text = drawn(name, kind, drawing, seed)
        assert re.fullmatch('["/\\\\\t\n][a-c]{2,3}é', text), text


@pytest.mark.sample(28)
@pytest.mark.parametrize("name", OUTPUTS)
def test_the_text_of_a_call_follows_a_grammar(parsers: Mapping[str, Parser], name: str) -> None:
    kind, tools = without_reasoning(name, parsers), [tool(Grammar("lark", PATCH))]
    for seed in range(2):
        drawing = Drawing(name, kind, True, "required", parallel=False, tools=tools)
        drawing.feed(drawing.ids_of(begin(name, kind, "required")))
        text = drawn(name, kind, drawing, seed)
        assert PATCHES.fullmatch(text), text


@pytest.mark.parametrize("name", [name for name in OUTPUTS if name not in BARE])
def test_a_call_that_the_model_chooses_follows_the_format(
    parsers: Mapping[str, Parser], name: str
) -> None:
    kind, tools = without_reasoning(name, parsers), [tool(Regex("[a-c]{5}"))]
    drawing = Drawing(name, kind, True, "auto", parallel=False, tools=tools)
    drawing.feed(drawing.ids_of(begin(name, kind, "auto")))
    assert re.fullmatch("[a-c]{5}", drawn(name, kind, drawing, 3))


@pytest.mark.parametrize("name", BARE)
def test_calls_without_a_marker_have_to_be_required(
    parsers: Mapping[str, Parser], name: str
) -> None:
    with pytest.raises(Unsupported, match="strict tools and formats"):
        resolve(parsers[name].parser).grammar([tool(Regex("a"))], "auto", True)


@pytest.mark.parametrize("name", RECURRING)
def test_a_text_without_quotes_may_have_any_grammar(
    parsers: Mapping[str, Parser], name: str
) -> None:
    kind, tools = without_reasoning(name, parsers), [tool(Grammar("lark", SUMS))]
    for seed in range(4):
        drawing = Drawing(name, kind, True, "required", parallel=False, tools=tools)
        drawing.feed(drawing.ids_of(begin(name, kind, "required")))
        text = drawn(name, kind, drawing, seed)
        while (shorter := re.sub(r"\([123]\+[123]\)", "1", text)) != text:
            text = shorter
        assert text in ("1", "2", "3")


@pytest.mark.parametrize("name", RECURRING)
def test_a_text_without_quotes_may_have_attributes(
    parsers: Mapping[str, Parser], name: str
) -> None:
    """Such a grammar is none that becomes one expression."""
    grammar = Grammar("lark", 'start: word "!"\nword[lazy]: /[a-c]+;/')
    kind = without_reasoning(name, parsers)
    drawing = Drawing(name, kind, True, "required", parallel=False, tools=[tool(grammar)])
    drawing.feed(drawing.ids_of(begin(name, kind, "required")))
    assert re.fullmatch("[a-c]+;!", drawn(name, kind, drawing, 1))


@pytest.mark.parametrize("name", ["hermes", "mistral", "kimi_k2", "harmony", "lfm2"])
def test_a_text_in_quotes_needs_a_grammar_that_does_not_recur(
    parsers: Mapping[str, Parser], name: str
) -> None:
    with pytest.raises(Unsupported, match="the rule sum is recursive"):
        resolve(parsers[name].parser).grammar([tool(Grammar("lark", SUMS))], "required", True)


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("name", ["qwen3_coder", "minimax_m2", "glm4"])
@pytest.mark.parametrize("form", [Regex(r"(?s:.*)"), Grammar("lark", "start: /(?s:.)/*")])
def test_free_text_ends_before_the_tag_behind_it(
    parsers: Mapping[str, Parser], name: str, special: bool, form: Regex | Grammar
) -> None:
    """The expression matches the tag as well."""
    kind = without_reasoning(name, parsers)
    drawing = Drawing(name, kind, special, "required", parallel=False, tools=[tool(form)])
    output = dict(zip(("qwen3_coder", "minimax_m2", "glm4"), WRITTEN, strict=True))[name]
    drawing.feed(drawing.ids_of(output))
    assert drawing.matcher.is_accepting()


WRITTEN = (
    "<tool_call>\n<function=patch>\n<parameter=input>\na</parameter\n\n</parameter>\n"
    "</function>\n</tool_call>",
    '<minimax:tool_call>\n<invoke name="patch">\n<parameter name="input">a</parameter'
    "</parameter>\n</invoke>\n</minimax:tool_call>",
    "<tool_call>patch\n<arg_key>input</arg_key>\n<arg_value>a</arg_value</arg_value>\n</tool_call>",
)
