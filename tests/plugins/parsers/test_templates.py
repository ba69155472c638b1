"""What a chat template writes, its parser reads: for templates of published models and our own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
from tiny.turns import (
    CONTROL,
    FILES,
    HIDDEN,
    OWN,
    DirectRenderer,
    Output,
    Turn,
    cuts,
    parse,
    spelled,
    write,
)

from ostro.core.chat import ChatTemplate
from ostro.core.records import Parser, resolve
from ostro.plugins.pipelines.text.parsing import matching

SOURCES = {**OWN, **{file.stem: file.read_text() for file in FILES}}
WITHOUT_CALLS = {
    "google-gemma-2-2b-it": "generic",
    "llama-cpp-rwkv-world": "generic",
    "microsoft-Phi-3.5-mini-instruct": "generic",
    "HuggingFaceTB-SmolLM3-3B": "smollm3",
    "LFM2-8B-A1B": "lfm2",
    "LFM2.5-Instruct": "lfm2",
    "ibm-granite-granite-3.3-2B-Instruct": "granite",
    "Kimi-K2-Instruct": "kimi_k2",  # calls list.append, which sandboxes of transformers refuse
    "Kimi-K2-Thinking": "kimi_k2",
}
"""Templates that leave out the calls of earlier answers, and their parsers."""

RICH: dict[str, Any] = {
    "city": 'Zür"ich\n  \\n {[<b>]}',
    "days": -3,
    "more": {"a": [1, None, True, "x\t'"], "日本": {}},
}
WEATHER = ("weather", RICH)
TURNS = (
    Turn("Hello you."),
    Turn("Two\n\nlines, <b> and { } ]."),
    Turn("So.", "Some thought,\nor <i>two</i>."),
    Turn(calls=(("weather", {}),)),
    Turn(calls=(WEATHER,)),
    Turn("Text.", calls=(WEATHER,)),
    Turn(reasoning="R\n\nx <b>", calls=(("weather", {"city": ""}),)),
    Turn(calls=(("weather", {}), ("get_time", {"city": "Bonn"}), WEATHER)),
    Turn("Text.", "Some thought.", (WEATHER, ("get_time", {"city": "Bonn"}))),
)
MARKED = "<tool_call> </tool_call> <|tool_call_end|> [TOOL_CALLS] <｜tool▁call▁end｜> <|call|>"
"""A text that spells markers."""


def kind_of(source: str, parsers: Mapping[str, Parser]) -> Any:
    """The class of the parser of a template."""
    return resolve(parsers[matching(ChatTemplate(source, tokens={}), parsers)].parser)


@cache
def template_of(name: str) -> ChatTemplate:
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    return ChatTemplate(SOURCES[name], tokens=tokens, renderer=DirectRenderer())  # type: ignore[arg-type]


def written(name: str, turn: Turn) -> tuple[Turn, str, str] | None:
    """What a template writes of a turn: the turn, the end of the prompt, and the text."""
    found = write(template_of(name), turn)
    if found is None:
        return None
    prompt, text = found
    kept = Turn(
        turn.text if turn.text in text else "",
        turn.reasoning if turn.reasoning in text else "",
        turn.calls if all(called in text for called, _ in turn.calls) else (),
    )
    if "<|channel|>" in text and turn.calls:  # gpt-oss: one call, text before it as reasoning
        kept = Turn("", kept.text or kept.reasoning, turn.calls[:1])
    return kept, prompt[-40:], text


def outputs(name: str, turn: Turn) -> tuple[Turn, list[tuple[Output, frozenset[str]]]]:
    """What a template keeps of a turn, and the output with its tokens as control tokens or text."""
    found = written(name, turn)
    if found is None:
        return Turn(), []
    kept, prompt, text = found
    tokens = frozenset(CONTROL.findall(text + prompt))
    return kept, [(Output(prompt, spelled(text, each)), each) for each in (tokens, frozenset())]


def check(kind: Any, output: Output, kept: Turn, tokens: frozenset[str]) -> None:
    found = parse(kind, output, controls=tokens)
    found.text = found.text.strip()
    assert found.turn == kept


@pytest.mark.parametrize("name", SOURCES)
def test_one_parser_is_chosen_for_a_template(parsers: Mapping[str, Parser], name: str) -> None:
    chosen = matching(ChatTemplate(SOURCES[name], tokens={}), parsers)
    assert (chosen == "generic") == (WITHOUT_CALLS.get(name) == "generic")
    assert chosen == WITHOUT_CALLS.get(name, chosen)


@pytest.mark.sample(20)
@pytest.mark.parametrize("name", SOURCES)
def test_what_a_template_writes_is_read(parsers: Mapping[str, Parser], name: str) -> None:
    kind, calls = kind_of(SOURCES[name], parsers), 0
    most = 2 if name == "deepseek-ai-DeepSeek-R1-Distill-Llama-8B" else 3  # ends after two calls
    for turn in (turn for turn in TURNS if len(turn.calls) <= most):
        kept, found = outputs(name, turn)
        calls += len(kept.calls)
        for output, tokens in found:
            check(kind, output, kept, tokens)
            check(kind, next(cuts(output)), kept, tokens)
    assert bool(calls) == (name not in WITHOUT_CALLS)


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", SOURCES)
def test_an_output_is_read_wherever_it_is_cut(parsers: Mapping[str, Parser], name: str) -> None:
    kind = kind_of(SOURCES[name], parsers)
    for turn in (TURNS[-1], TURNS[5]):  # one of them if a template allows one call only
        kept, found = outputs(name, turn)
        for output, tokens in found[:1]:
            for cut in cuts(output):
                check(kind, cut, kept, tokens)
            return


@pytest.mark.sample(20)
@pytest.mark.parametrize("name", SOURCES)
def test_markers_in_arguments_are_text(parsers: Mapping[str, Parser], name: str) -> None:
    hidden = MARKED.replace("<", HIDDEN).replace("[", "(")
    kept, found = outputs(name, Turn(calls=(("weather", {"city": hidden, "days": 1}),)))
    for output, tokens in found[:1]:
        tokens |= frozenset(CONTROL.findall(MARKED))
        calls = tuple(
            (called, {**given, "city": given["city"].replace(HIDDEN, "<")})
            for called, given in kept.calls
        )
        check(kind_of(SOURCES[name], parsers), output, Turn(kept.text, "", calls), tokens)
