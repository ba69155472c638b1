"""Calls that lack a tag: the one before a function, or the one behind a value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from tiny.notations import OUTPUTS
from tiny.turns import Output, Parsed, cuts, parse

from ostro.core.output import Piece, Tool
from ostro.core.records import Parser, resolve
from ostro.plugins.parsers.qwen3_coder.parser import Qwen3CoderParser
from ostro.plugins.parsers.xml_calls import XmlParser

TEXT = {"type": "string"}
SCHEMA = {
    "type": "object",
    "properties": {"pattern": TEXT, "path": TEXT, "most": {"type": "integer"}},
}
TOOLS = [Tool("glob", SCHEMA), Tool("exact", SCHEMA, True)]
NAMES = ["qwen3_coder", "seed_oss", "minimax_m2", "deepseek_v32", "hunyuan3", "glm4"]
"""Notations with a tag per parameter."""
TAGGED = NAMES[:-1]
"""Those with a tag before the name of a function, too."""
GLOB = ("glob", {"pattern": "*.md"})


def kind_of(name: str, parsers: Mapping[str, Parser]) -> Any:
    return resolve(parsers[name].parser)


def parsed(kind: Any, text: str) -> Parsed:
    """What is found in a text, the same wherever it is cut."""
    output = Output("", (Piece(text),))
    whole = parse(kind, output, TOOLS)
    for cut in cuts(output):
        again = parse(kind, cut, TOOLS)
        assert (again.text, again.calls) == (whole.text, whole.calls)
        assert again.ended == whole.ended
    return whole


def read_calls(found: Parsed) -> list[tuple[str, Any]]:
    assert found.ended == [*range(len(found.calls))]
    return [(name, json.loads(text)) for name, text in found.calls]


def value(kind: type[XmlParser], key: str, text: str, *, end: bool = True) -> str:
    """A parameter, with the tag behind its value or without it."""
    line = "\n" if kind.lines else ""
    tags = dict((form, tag) for tag, form in kind.opens)
    opened = tags.get("string", tags.get("", ""))
    space = " " if "string" in tags else ""
    head = f"{kind.parameter[0]}{key}{kind.parameter[1]}{space}{opened}{line}"
    return head + text + (f"{line}{kind.value_end}\n" if end else "\n")


def function(kind: type[XmlParser], *values: str, name: str = "glob") -> str:
    return f"{kind.function[0]}{name}{kind.function[1]}\n{''.join(values)}{kind.close}"


def tagged(kind: type[XmlParser], text: str) -> str:
    """A function between the tags of calls."""
    line = "\n" if kind.function[0] else ""
    return f"{kind.begins[0]}{line}{text}" + "".join(f"\n{end}" for end in kind.ends[:1])


def test_every_notation_with_tags_is_tested(parsers: Mapping[str, Parser]) -> None:
    kinds = {name: kind_of(name, parsers) for name in OUTPUTS}
    assert {name for name, kind in kinds.items() if issubclass(kind, XmlParser)} == {*NAMES}


@pytest.mark.parametrize("name", TAGGED)
def test_a_function_needs_no_tag_of_calls(parsers: Mapping[str, Parser], name: str) -> None:
    kind = kind_of(name, parsers)
    call = function(kind, value(kind, "pattern", "*.md"))
    for text, before in (
        (call, ""),
        (f"{call}\n{kind.ends[0]}", ""),
        (f"I look for them.\n\n{call}\n{kind.ends[0]}", "I look for them."),
        (f"I look for them.\n{call}", "I look for them."),
    ):
        found = parsed(kind, text)
        assert read_calls(found) == [GLOB] and found.text == before
    found = parsed(kind, f"Two:\n{call}\n{call}\n{kind.ends[0]}\n{tagged(kind, call)}")
    assert read_calls(found) == [GLOB] * 3 and found.text == "Two:"


@pytest.mark.parametrize("name", TAGGED)
def test_a_function_without_parameters(parsers: Mapping[str, Parser], name: str) -> None:
    kind = kind_of(name, parsers)
    found = parsed(kind, f"So. {function(kind)}")
    assert read_calls(found) == [("glob", {})] and found.text == "So."


@pytest.mark.parametrize("name", TAGGED)
def test_a_function_that_is_only_named_is_text(parsers: Mapping[str, Parser], name: str) -> None:
    kind = kind_of(name, parsers)
    begin, end = kind.function
    for text in (
        function(kind, value(kind, "path", "/"), name="rm"),
        function(kind, value(kind, "path", "/"), name="exact"),
        f"Such a model writes {begin}NAME{end} for it.",
        f"Such a model writes  {begin}glob{end} for it.",
        f"Such a model writes\n{begin}glob {end} or {begin} for it.",
        f"It begins with {begin}glob{end}",
        f"It begins with {begin}glob",
    ):
        found = parsed(kind, text)
        assert found.text == text and not found.calls


@pytest.mark.parametrize("name", NAMES)
def test_the_next_parameter_ends_a_value(parsers: Mapping[str, Parser], name: str) -> None:
    kind = kind_of(name, parsers)
    values = [value(kind, "pattern", "*.rs", end=False), value(kind, "path", "src")]
    found = parsed(kind, tagged(kind, function(kind, *values)))
    assert read_calls(found) == [("glob", {"pattern": "*.rs", "path": "src"})] and not found.text


@pytest.mark.parametrize("name", NAMES)
def test_the_end_of_a_function_ends_a_value(parsers: Mapping[str, Parser], name: str) -> None:
    kind = kind_of(name, parsers)
    values = [value(kind, "path", "src"), value(kind, "pattern", "*.rs", end=False)]
    call, expected = function(kind, *values), ("glob", {"path": "src", "pattern": "*.rs"})
    found = parsed(kind, tagged(kind, call))
    assert read_calls(found) == [expected] and not found.text
    found = parsed(kind, f"{tagged(kind, call)}\n{tagged(kind, call)}")
    assert read_calls(found) == [expected] * 2 and not found.text


@pytest.mark.parametrize("name", NAMES)
def test_tags_within_a_value_are_text(parsers: Mapping[str, Parser], name: str) -> None:
    kind = kind_of(name, parsers)
    for text in (
        f"a\n{kind.parameter[0]}unknown{kind.parameter[1]}\nb",
        f"a\n{kind.parameter[0]}pattern{kind.parameter[1]}\nb",
        f"a {kind.parameter[0]}path{kind.parameter[1]} b",
        f"a\n{kind.close}\nb",
        f"a\n{kind.close}\n{''.join(kind.ends)}\nb",
        f"a\n{kind.close}\n{''.join(kind.ends)}\n{kind.begins[0]} b",
        f"a\n{kind.parameter[0]}",
    ):
        found = parsed(kind, tagged(kind, function(kind, value(kind, "pattern", text))))
        assert read_calls(found) == [("glob", {"pattern": text})] and not found.text


def test_a_value_that_json_follows_ends_without_its_tag() -> None:
    most = "<parameter=most>\n5\n<parameter=path>\nsrc\n</parameter>\n"
    call = f"<tool_call>\n<function=glob>\n{most}</function>\n</tool_call>"
    assert read_calls(parsed(Qwen3CoderParser, call)) == [("glob", {"most": 5, "path": "src"})]


def test_functions_without_a_tag_end_reasoning() -> None:
    call = function(Qwen3CoderParser, value(Qwen3CoderParser, "pattern", "*.md"))
    found = parsed(Qwen3CoderParser, f"<think>Hm.\n{call}")
    assert found.reasoning == "Hm." and read_calls(found) == [GLOB]
