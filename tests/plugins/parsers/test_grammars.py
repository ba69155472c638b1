"""What the grammar of a notation allows, its parser reads: outputs drawn at random."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pytest
from tiny.notations import OUTPUTS
from tiny.turns import CONTROL, Output, Parsed, parse

from ostro.core.errors import RequestError, Unsupported
from ostro.core.output import Piece, Tool
from ostro.core.records import Parser, resolve
from ostro.plugins.logits.grammar.lark import read_lark

llguidance = pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Bonn", "Zürich"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 3},
        "on": {"type": "boolean"},
    },
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [Tool("weather", SCHEMA, True), Tool("get_time", SCHEMA, True), Tool("stop", {}, True)]
LOOSE = ("gemma4", "function_gemma")
"""Notations whose values do not follow schemas."""
BARE = ("generic", "llama3", "llama4")
"""Notations whose calls need no marker."""
EOS = 256


class Bytes:
    """A vocabulary of bytes, the end of text, and control tokens."""

    eos_token_id, bos_token_id = EOS, None

    def __init__(self, controls: Sequence[str]) -> None:
        self.tokens = [bytes([i]) for i in range(256)] + [b"</eos>", *map(str.encode, controls)]
        self.special_token_ids = [*range(256, len(self.tokens))]

    def __call__(self, text: Any) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


def controls_of(name: str) -> dict[str, int]:
    """The control tokens of a notation."""
    extra = "[TOOL_CALLS][ARGS]<|tool_calls|>" if name in ("solar", "mistral_named") else ""
    found = sorted({*CONTROL.findall(OUTPUTS[name] + extra), "<escape>"})
    return {text: EOS + 1 + i for i, text in enumerate(found)}


@cache
def tokenizer(name: str, special: bool) -> Any:
    controls = list(controls_of(name)) if special else []
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(Bytes(controls)))


class Drawing:
    """An output that is drawn from a grammar."""

    def __init__(
        self,
        name: str,
        kind: Any,
        special: bool,
        choice: Any,
        parallel: bool,
        answer: str | None = None,
        tools: Sequence[Tool] = TOOLS,
    ) -> None:
        """`answer` is the grammar of the text, as a regular expression."""
        self.controls = controls_of(name) if special else {}
        tools = [Tool(x.name, x.parameters) for x in tools] if name in LOOSE else tools
        if answer is None:
            grammar = kind.grammar(tools, choice, parallel, self.controls)
            lark = llguidance.LLMatcher.grammar_from_lark(grammar)
        else:
            grammar = kind.grammar(tools, choice, parallel, self.controls, answer=True)
            text = {"lark_grammar": f"start: /{answer}/", "name": "answer"}
            lark = json.dumps({"grammars": [{"lark_grammar": grammar}, text]})
        self.matcher = llguidance.LLMatcher(tokenizer(name, special), lark)
        assert not self.matcher.is_error(), self.matcher.get_error()
        self.spelling = {id: text for text, id in self.controls.items()}
        self.ids: list[int] = []

    def feed(self, ids: Sequence[int]) -> None:
        """Append tokens that the grammar allows."""
        assert self.matcher.try_consume_tokens(list(ids)) == len(ids), bytes(self.ids[:256])
        self.ids += ids

    def ids_of(self, text: str) -> list[int]:
        """The tokens of a text with control tokens."""
        found: list[int] = []
        end = 0
        for match in CONTROL.finditer(text):
            if match[0] in self.controls:
                found += [*text[end : match.start()].encode(), self.controls[match[0]]]
                end = match.end()
        return [*found, *text[end:].encode()]

    def draw(self, seed: int, most: int = 600) -> None:
        """Draw tokens until the output may end."""
        choose = random.Random(seed)
        while not (self.matcher.is_accepting() and choose.random() < 0.7):
            mask = self.matcher.compute_bitmask()
            size = EOS + 1 + len(self.controls)
            allowed = [i for i in range(size) if mask[i // 8] >> i % 8 & 1 and i != EOS]
            if not allowed:
                return
            plain = [i for i in allowed if i not in (9, 10, 13, 32)]  # white space between JSON
            self.feed([choose.choice(plain or allowed)])
            assert len(self.ids) < most

    def pieces(self) -> tuple[Piece, ...]:
        """The output as a parser gets it."""
        found, held = [], b""
        for id in self.ids:
            if id < 256:
                held += bytes([id])
            else:
                found += [Piece(held.decode()), Piece(control=self.spelling[id])]
                held = b""
        return (*found, Piece(held.decode()))


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


def without_reasoning(name: str, parsers: Mapping[str, Parser]) -> Any:
    """The class of a notation; texts that are drawn at random would never end reasoning."""
    kind = resolve(parsers[name].parser)
    return type("Plain", (kind,), {"reasoning": None}) if name != "harmony" else kind


def begin(name: str, kind: Any, choice: Any) -> str:
    """What an output begins with so that the next is a call."""
    if name == "harmony":
        return "<|channel|>commentary to=functions."
    if choice != "auto":
        return ""
    return kind.answer[0] + "Hi. " + "".join(kind.answer[1:]) + kind.begins[0]


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
