"""Reasoning without an end: a call that ends the output is a call, one that is quoted is not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from tiny.notations import OUTPUTS, TURN, WITHOUT_REASONING
from tiny.turns import CONTROL, TOOLS, Output, Parsed, cuts, parse, spelled

from ostro.core.messages.text import Reasoning, ToolCallStart
from ostro.core.output import Piece, Tool
from ostro.core.records import Parser, resolve
from ostro.plugins.parsers.hermes.parser import HermesParser
from ostro.plugins.parsers.turn import MOST_AT_ONCE, MOST_QUOTED, TurnParser

NAMES = [name for name in OUTPUTS if name not in (*WITHOUT_REASONING, "harmony")]
"""Notations with reasoning. In harmony, the header of the next message ends it."""
CALLS = {name: text.partition(TURN.text)[2].strip() for name, text in OUTPUTS.items()}
CALLS |= {
    "apriel": CALLS["apriel"].removesuffix("[END FINAL RESPONSE]"),
    "command_r7b": CALLS["command_r7b"].removeprefix("<|END_RESPONSE|>"),
    "granite": CALLS["granite"].removeprefix("</response>"),
    "solar": CALLS["solar"].removeprefix("<|end|><|begin|>assistant"),
}
"""The calls of each notation alone."""
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call>'
CALLED = [["weather", '{"city": "Bonn"}']]


def kind_of(name: str, parsers: Mapping[str, Parser]) -> Any:
    return resolve(parsers[name].parser)


def parsed(kind: Any, text: str, prompt: str = "", *, controls: bool = False) -> Parsed:
    """What is found in a text, the same in single characters."""
    tokens = frozenset(CONTROL.findall(text)) if controls else frozenset()
    output = Output(prompt, spelled(text, tokens))
    whole = parse(kind, output, controls=tokens)
    again = parse(kind, next(cuts(output)), controls=tokens)
    assert (again.text, again.reasoning, again.calls) == (whole.text, whole.reasoning, whole.calls)
    assert again.ended == whole.ended
    return whole


def read_calls(found: Parsed) -> tuple[tuple[str, Any], ...]:
    assert found.ended == [*range(len(found.calls))]
    return tuple((name, json.loads(text)) for name, text in found.calls)


@pytest.mark.parametrize("controls", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_a_call_that_ends_the_output_ends_reasoning(
    parsers: Mapping[str, Parser], name: str, controls: bool
) -> None:
    kind = kind_of(name, parsers)
    begin = kind.reasoning[0]
    for text, prompt in (
        (f"{begin}\nI look it up.\n{CALLS[name]}", ""),
        (f"I look it up.\n\n{CALLS[name]}\n", f"assistant\n{begin}\n"),
    ):
        found = parsed(kind, text, prompt, controls=controls)
        assert found.reasoning == "I look it up." and not found.text
        assert read_calls(found) == TURN.calls


@pytest.mark.parametrize("name", NAMES)
def test_a_call_within_closed_reasoning_is_quoted(parsers: Mapping[str, Parser], name: str) -> None:
    kind = kind_of(name, parsers)
    begin, end = kind.reasoning
    if name == "solar":
        pytest.skip("its markers of reasoning end messages, too")
    quoted = f"One writes\n\n{CALLS[name]}\nfor it."
    for thought in (quoted, quoted.removesuffix("\nfor it.")):
        found = parsed(kind, f"{begin}{thought}{end}\n\nHello.")
        assert (found.text, found.reasoning, found.calls) == ("Hello.", thought, [])


@pytest.mark.parametrize("name", NAMES)
def test_a_marker_in_reasoning_is_text(parsers: Mapping[str, Parser], name: str) -> None:
    kind = kind_of(name, parsers)
    begin, end = kind.reasoning
    thought = "".join(f"Some write  {each}\nfor it, " for each in kind.begins) + "I do not."
    found = parsed(kind, f"{begin}{thought}{end}Hello.")
    assert (found.text, found.reasoning, found.calls) == ("Hello.", thought, [])
    found = parsed(kind, f"{begin}{thought}")
    assert (found.text, found.reasoning, found.calls) == ("", thought, [])


@pytest.mark.parametrize("name", NAMES)
def test_a_call_without_its_end_is_reasoning(parsers: Mapping[str, Parser], name: str) -> None:
    kind = kind_of(name, parsers)
    call = CALLS[name]
    cut = call[: call.index("days") - 1]
    found = parsed(kind, f"{kind.reasoning[0]}Hm. {cut}")
    assert found.reasoning == f"Hm. {cut}" and not found.calls and not found.text


@pytest.mark.parametrize("name", NAMES)
def test_a_call_behind_a_quoted_marker(parsers: Mapping[str, Parser], name: str) -> None:
    kind = kind_of(name, parsers)
    thought = f"I write {kind.begins[0]} now."
    found = parsed(kind, f"{kind.reasoning[0]}{thought}\n{CALLS[name]}")
    assert found.reasoning == thought and read_calls(found) == TURN.calls


def test_text_behind_a_call_makes_it_a_quotation() -> None:
    text = f"<think>Like {CALL} or so."
    found = parsed(HermesParser, text)
    assert found.reasoning == text.removeprefix("<think>") and not found.calls
    found = parsed(HermesParser, f"{text}\n{CALL}")
    assert found.reasoning == text.removeprefix("<think>") and found.calls == CALLED


def test_only_offered_tools_are_called_in_reasoning() -> None:
    text = "<think>Like " + CALL.replace("weather", "other")
    found = parsed(HermesParser, text)
    assert found.reasoning == text.removeprefix("<think>") and not found.calls
    output = Output("", (Piece(f"<think>{CALL}"),))
    assert not parse(HermesParser, output, ()).calls
    strict = [Tool("weather", {}, True)]  # no grammar constrains its arguments there
    assert not parse(HermesParser, output, strict).calls


def test_the_end_of_reasoning_within_a_call_ends_it() -> None:
    text = CALL.replace("Bonn", "</think>")
    found = parsed(HermesParser, f"<think>Like {text}")
    before, _, behind = text.partition("</think>")
    assert (found.reasoning, found.text, found.calls) == (f"Like {before}", behind, [])


def test_one_of_several_calls_without_its_end_makes_them_reasoning() -> None:
    text = f"Hm.\n{CALL}\n{CALL[:-20]}"
    found = parsed(HermesParser, f"<think>{text}")
    assert found.reasoning == text and not found.calls


def test_several_calls_end_reasoning() -> None:
    found = parsed(HermesParser, f"<think>Hm.\n{CALL}\n{CALL}\n")
    assert found.calls == CALLED * 2 and len({*found.ids}) == 2


def test_reasoning_before_and_behind_a_marker_is_sent_at_once() -> None:
    parser = HermesParser("", TOOLS)
    assert parser.add(Piece("<think>Hm, <tool_ca")) == [Reasoning("Hm,")]
    assert parser.add(Piece("ll> it is")) == [Reasoning(" <tool_call> it is")]
    assert parser.add(Piece(f" so. {CALL}")) == [Reasoning(" so.")]
    events = parser.finish()
    assert isinstance(events[0], ToolCallStart) and len(events) == 3


@pytest.mark.parametrize(
    "unit",
    [
        "<tool_call>",
        "<tool_call>{",
        '<tool_call>{"name": "weather", "arguments": {"a": "',
        '<tool_call>{"name": "weather", "arguments": {',
        CALL,
        f"{CALL} x ",
    ],
)
@pytest.mark.parametrize("name", ["hermes", "glm4", "qwen3_coder", "smollm3"])
def test_many_markers_in_reasoning_are_not_all_tried(
    parsers: Mapping[str, Parser], monkeypatch: pytest.MonkeyPatch, name: str, unit: str
) -> None:
    read, attempts = TurnParser.read_last_calls, list[int]()

    def counted(self: TurnParser, stops: Any) -> Any:
        attempts.append(len(self.held))
        return read(self, stops)

    monkeypatch.setattr(TurnParser, "read_last_calls", counted)
    text = "<think>" + unit * (100_000 // len(unit))
    parse(kind_of(name, parsers), Output("", (Piece(text),)))
    assert len(attempts) <= MOST_QUOTED


def test_calls_behind_many_quoted_ones_are_reasoning() -> None:
    text = "<think>" + "<tool_call> " * MOST_QUOTED
    assert not parsed(HermesParser, text + CALL).calls
    assert parsed(HermesParser, text.removesuffix("<tool_call> ") + CALL).calls == CALLED


def test_control_tokens_in_calls_are_not_cut() -> None:
    head = '<think>Hm.<tool_call>{"name": "weather", "arguments": {"a": "'
    for size in range(MOST_AT_ONCE - len(head), MOST_AT_ONCE):
        pieces = (Piece(head + "a" * size, "<control>"), Piece('"}}</tool_call>'))
        found = parse(HermesParser, Output("", pieces), controls=("<control>",))
        assert json.loads(found.calls[0][1]) == {"a": "a" * size}
