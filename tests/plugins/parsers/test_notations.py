"""Every notation: outputs cut anywhere, cut off anywhere, and with other markers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from tiny.notations import IDS, OUTPUTS, TURN, expected
from tiny.turns import CONTROL, TOOLS, Output, Parsed, Turn, cuts, parse, spelled

from ostro.core.output import Piece
from ostro.core.records import Parser, resolve
from ostro.plugins.parsers.turn import TurnParser

MARKERS = (
    "reasoning begins ends drops section call separators fence function close parameter opens "
    "value_end quote names arguments"
).split()
"""Attributes of classes that contain markers."""
FIELDS = ("string", "json", "id", "kind")
"""Values beside markers."""


def kind_of(name: str, parsers: Mapping[str, Parser]) -> Any:
    return resolve(parsers[name].parser)


def output_of(name: str, *, controls: bool) -> tuple[Output, frozenset[str]]:
    """The output of a notation, its special tokens as control tokens or as text."""
    text = OUTPUTS[name]
    tokens = frozenset(CONTROL.findall(text)) if controls else frozenset()
    begin = "<|start|>assistant" if name == "harmony" else ""
    return Output(begin, spelled(text, tokens)), tokens


def test_every_notation_has_an_output(parsers: Mapping[str, Parser]) -> None:
    assert {*OUTPUTS} == {*parsers}


@pytest.mark.sample(28)
@pytest.mark.parametrize("controls", [True, False])
@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_is_read_wherever_it_is_cut(
    parsers: Mapping[str, Parser], name: str, controls: bool
) -> None:
    output, tokens = output_of(name, controls=controls)
    kind = kind_of(name, parsers)
    whole = parse(kind, output, controls=tokens)
    assert whole.turn == expected(name)
    ids = IDS.get(name, [])
    assert whole.ids[: len(ids)] == ids and len({*whole.ids}) == 2
    for cut in cuts(output) if controls else [next(cuts(output))]:
        assert parse(kind, cut, controls=tokens).turn == expected(name)


def everything(found: Parsed) -> str:
    """All that a client receives."""
    return found.text + found.reasoning + "".join(name + text for name, text in found.calls)


@pytest.mark.sample(14)
@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_that_is_cut_off_loses_nothing(parsers: Mapping[str, Parser], name: str) -> None:
    output, _ = output_of(name, controls=False)
    kind, text = kind_of(name, parsers), OUTPUTS[name]
    for end in range(len(text)):
        found = parse(kind, Output(output.prompt_end, (Piece(text[:end]),)))
        assert found.ended == list(range(len(found.ended)))
        assert len(found.ended) >= len(found.calls) - 1, "one call at most is incomplete"
        for word in ("Hm", "me see", "weather", "Zür", "ich", "日本", "get_time", "Bonn"):
            assert (word in text[:end]) == (word in everything(found))
        for call, (_, arguments) in zip(found.ended, TURN.calls, strict=False):
            assert json.loads(found.calls[call][1]) == arguments


@pytest.mark.parametrize("name", OUTPUTS)
def test_without_tools_an_output_has_no_calls(parsers: Mapping[str, Parser], name: str) -> None:
    output, tokens = output_of(name, controls=True)
    found = parse(kind_of(name, parsers), output, (), controls=tokens)
    assert not found.calls and found.reasoning == expected(name).reasoning
    assert TURN.text in found.text and "Bonn" in found.text


def reads(found: Parsed, turn: Turn) -> bool:
    """Whether an output was read as a turn."""
    try:
        return found.turn == turn
    except (AssertionError, ValueError):
        return False


def mutated(value: Any) -> Iterator[tuple[str, Any]]:
    """A value with each of its texts changed in the middle, and the text."""
    if isinstance(value, str) and value.strip():
        at = len(value) // 2
        yield value, value[:at] + "~" + value[at + 1 :]
    elif isinstance(value, tuple):
        for i, each in enumerate(value):
            for text, other in mutated(each):
                yield text, (*value[:i], other, *value[i + 1 :])


@pytest.mark.parametrize("name", [name for name in OUTPUTS if name != "harmony"])
def test_another_marker_does_not_read_the_output(parsers: Mapping[str, Parser], name: str) -> None:
    output, tokens = output_of(name, controls=False)
    kind, tried = kind_of(name, parsers), 0
    for attribute in MARKERS:
        for text, value in mutated(getattr(kind, attribute, None)):
            begins = attribute == "call" and text in kind.begins
            if text not in OUTPUTS[name] or begins or text in FIELDS:
                continue
            tried += 1
            mutant: type[TurnParser] = type("Mutant", (kind,), {attribute: value})
            found = parse(mutant, output, controls=tokens)
            assert not reads(found, expected(name)), f"{attribute}={value!r}"
    assert tried >= 2


@pytest.mark.parametrize("name", OUTPUTS)
def test_text_that_spells_control_tokens_is_text(parsers: Mapping[str, Parser], name: str) -> None:
    tokens = frozenset(CONTROL.findall(OUTPUTS[name]))
    if not tokens:
        pytest.skip("the notation has no control tokens")
    begin = "<|start|>assistant" if name == "harmony" else ""
    kind, text = kind_of(name, parsers), " ".join(sorted(tokens))
    found = parse(kind, Output(begin, (Piece(f"I write {text} so."),)), TOOLS, controls=tokens)
    assert found.text == f"I write {text} so." and not found.calls and not found.reasoning


@pytest.mark.parametrize("name", OUTPUTS)
def test_white_space_before_half_a_marker_is_text(parsers: Mapping[str, Parser], name: str) -> None:
    """However the output is cut; a marker may be preceded by white space that belongs to it."""
    kind = kind_of(name, parsers)
    function = getattr(kind, "function", ("",))[0]
    for marker in filter(None, (*kind.begins, function)):
        for size in range(1, len(marker)):
            for space in ("\n\n", " "):
                text = f"Hello{space}{marker[:size]}~ and more"
                for pieces in ((text,), tuple(text)):
                    output = Output("", tuple(map(Piece, pieces)))
                    assert parse(kind, output).text == text
