"""What the grammar of a notation allows, its parser reads: outputs drawn at random."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from tiny.drawings import BARE, LOOSE, TOOLS, Drawing, begin, without_reasoning
from tiny.notations import OUTPUTS
from tiny.turns import Output, Parsed, parse

from ostro.core.errors import RequestError, Unsupported
from ostro.core.output import Tool
from ostro.core.records import Parser, resolve
from ostro.plugins.logits.grammar.lark import read_lark


def read(name: str, kind: Any, drawing: Drawing) -> Parsed:
    begin = "<|start|>assistant" if name == "harmony" else ""
    return parse(kind, Output(begin, drawing.pieces()), TOOLS, controls=drawing.controls)


def check(name: str, found: Parsed) -> None:
    """All calls are complete, of tools of the request, with arguments of their schemas."""
    assert found.calls and found.ended == [*range(len(found.calls))]
    for called, text in found.calls:
        arguments = json.loads(text)
        assert called in ("weather", "get_time", "stop")
        if name not in LOOSE and called != "stop":
            assert arguments["city"] in ("Bonn", "Zürich")
            assert {*arguments} <= {"city", "days", "on"}
            assert arguments.get("days", 1) in (1, 2, 3)


@pytest.mark.sample(28)
@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("name", OUTPUTS)
def test_a_call_that_is_required(parsers: Mapping[str, Parser], name: str, special: bool) -> None:
    if name in LOOSE and not special:
        pytest.skip("strings that are drawn at random would never end")
    kind = without_reasoning(name, parsers)
    for seed, choice in enumerate(["required", ["get_time"], "required"]):
        drawing = Drawing(name, kind, special, choice, parallel=seed == 2)
        drawing.feed(drawing.ids_of(begin(name, kind, choice)))
        drawing.draw(seed)
        found = read(name, kind, drawing)
        check(name, found)
        assert not found.text.strip()
        if choice == ["get_time"]:
            assert [called for called, _ in found.calls] == ["get_time"]


@pytest.mark.parametrize("name", [name for name in OUTPUTS if name not in BARE])
def test_text_is_free_until_a_call_begins(parsers: Mapping[str, Parser], name: str) -> None:
    kind = without_reasoning(name, parsers)
    drawing = Drawing(name, kind, True, "auto", parallel=False)
    drawing.feed(drawing.ids_of(begin(name, kind, "auto")))
    drawing.draw(7)
    found = read(name, kind, drawing)
    check(name, found)
    assert len(found.calls) == 1
    text = kind.answer[0] + "Just a {text}." + kind.answer[1]
    text = "<|channel|>final<|message|>Just a {text}." if name == "harmony" else text
    drawing = Drawing(name, kind, True, "auto", parallel=False)
    drawing.feed(drawing.ids_of(text))
    assert drawing.matcher.is_accepting()
    assert read(name, kind, drawing).text == "Just a {text}."


@pytest.mark.parametrize("name", BARE)
def test_without_a_marker_text_is_not_constrained(parsers: Mapping[str, Parser], name: str) -> None:
    with pytest.raises(Unsupported, match="strict"):
        resolve(parsers[name].parser).grammar(TOOLS, "auto", True)


@pytest.mark.parametrize("name", LOOSE)
def test_strict_tools_need_json(parsers: Mapping[str, Parser], name: str) -> None:
    with pytest.raises(Unsupported, match="strict"):
        resolve(parsers[name].parser).grammar(TOOLS, "required", True)


@pytest.mark.parametrize("name", [name for name in OUTPUTS if name not in ("llama3", "llama4")])
def test_reasoning_may_precede_a_call(parsers: Mapping[str, Parser], name: str) -> None:
    kind = resolve(parsers[name].parser)
    if kind.reasoning is None:
        pytest.skip("the notation has no reasoning")
    drawing = Drawing(name, kind, True, "required", parallel=False)
    first, last = kind.reasoning
    behind = "<|start|>assistant" if name == "harmony" else kind.after_reasoning
    drawing.feed(drawing.ids_of(f"{first}Hm, {{}}.{last}{behind}"))
    start = begin(name, kind, "required") or ("" if name in BARE else kind.begins[0])
    drawing.feed(drawing.ids_of(start))
    drawing.draw(3)
    found = read(name, kind, drawing)
    check(name, found)
    assert found.reasoning == "Hm, {}."


def text_begin(name: str, kind: Any) -> str:
    """What an output writes before a text."""
    return "<|channel|>final<|message|>" if name == "harmony" else kind.answer[0]


def thought(name: str, kind: Any) -> str:
    """Reasoning, as an output begins with it."""
    begin, end = kind.reasoning
    behind = "<|start|>assistant" if name == "harmony" else kind.after_reasoning or "\n\n"
    return f"{begin}Hm, 12.{end}{behind}"


@pytest.mark.parametrize("tools", [[], TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("name", OUTPUTS)
def test_a_text_satisfies_the_grammar_of_the_answer(
    parsers: Mapping[str, Parser], name: str, tools: list[Tool]
) -> None:
    """Behind the header of a text, with reasoning or without."""
    kind = resolve(parsers[name].parser)
    before = ["", thought(name, kind)] if kind.reasoning else [""]
    for reasoning in before:
        drawing = Drawing(name, kind, True, "auto", False, "[a-c]{3}[0-9]", tools)
        assert not drawing.matcher.is_accepting()
        if not reasoning:  # white space is of the answer, unless reasoning is before it
            assert not drawing.matcher.validate_tokens(drawing.ids_of("\n"))
        drawing.feed(drawing.ids_of(reasoning + text_begin(name, kind)))
        assert drawing.matcher.validate_tokens(drawing.ids_of("abd")) == 2
        drawing.feed(drawing.ids_of("ab"))
        drawing.draw(1)
        found = read(name, kind, drawing)
        assert re.fullmatch("[a-c]{3}[0-9]", found.text), bytes(drawing.ids[:256])
        assert found.reasoning == ("Hm, 12." if reasoning else "") and not found.calls


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_call_may_take_the_place_of_a_constrained_text(
    parsers: Mapping[str, Parser], name: str
) -> None:
    kind = without_reasoning(name, parsers)
    drawing = Drawing(name, kind, True, "auto", False, "[a-c]{3}[0-9]")
    special = {"harmony": "<|channel|>commentary to=functions.", "llama3": "{", "llama4": "["}
    drawing.feed(drawing.ids_of(special.get(name) or kind.begins[0]))
    drawing.draw(5)
    found = read(name, kind, drawing)
    check(name, found)
    assert not found.text.strip()


def test_tags_around_an_answer_are_not_part_of_it(parsers: Mapping[str, Parser]) -> None:
    kind = resolve(parsers["granite"].parser)
    drawing = Drawing("granite", kind, True, "auto", False, "[a-c]+", [])
    drawing.feed(drawing.ids_of("<think>Hm</think><response>abc</response>"))
    assert drawing.matcher.is_accepting()
    found = read("granite", kind, drawing)
    assert (found.text, found.reasoning) == ("abc", "Hm")


@pytest.mark.parametrize("name", ["hermes", "harmony", "qwen3_coder", "llama4"])
def test_only_strict_tools_need_a_grammar_of_each_keyword(
    parsers: Mapping[str, Parser], name: str
) -> None:
    kind = resolve(parsers[name].parser)
    items = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    schema = {"type": "object", "properties": {"days": items}, "required": ["days"]}
    loose = read_lark(kind.grammar([Tool("weather", schema)], "required", False))
    assert "uniqueItems" not in loose and '"integer"' in loose
    strict = kind.grammar([Tool("weather", schema, True)], "required", False)
    with pytest.raises(RequestError, match="'uniqueItems' is not supported"):
        read_lark(strict)


REFERRED = {
    "type": "object",
    "$defs": {"Code": {"type": "string", "enum": ["1", "2"]}, "Text": {"type": "string"}},
    "properties": {
        "code": {"$ref": "#/$defs/Code"},
        "constant": {"allOf": [{"$ref": "#/$defs/Text"}, {"const": "8"}]},
        "either": {"enum": ["1", 2]},
        "maybe": {"anyOf": [{"$ref": "#/$defs/Code"}, {"type": "null"}]},
    },
    "required": ["code", "constant", "either", "maybe"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("name", [name for name in OUTPUTS if name not in LOOSE])
def test_values_of_referred_schemas_are_read(
    parsers: Mapping[str, Parser], name: str, special: bool
) -> None:
    kind, tools = without_reasoning(name, parsers), [Tool("weather", REFERRED, True)]
    for seed in range(4):
        drawing = Drawing(name, kind, special, "required", parallel=False, tools=tools)
        drawing.feed(drawing.ids_of(begin(name, kind, "required")))
        drawing.draw(seed)
        prompt = "<|start|>assistant" if name == "harmony" else ""
        output = Output(prompt, drawing.pieces())
        found = parse(kind, output, tools, controls=drawing.controls)
        values = json.loads(found.calls[0][1])
        assert values["code"] in ("1", "2") and values["constant"] == "8"
        assert values["either"] in ("1", 2) and values["maybe"] in ("1", "2", None)
