"""Outputs that models should not write: nothing is lost, and nothing raises an error."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from tiny.chats import small
from tiny.notations import OUTPUTS, expected
from tiny.turns import TOOLS, Output, Parsed, cuts, parse, read

from ostro.core.messages.outputs import TokenOutput
from ostro.core.messages.text import ChoiceEnd, OutputEvent
from ostro.core.output import Piece
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Parser, resolve
from ostro.core.tokenizer import Tokenizer
from ostro.core.tokenizer.stop import Stop
from ostro.entrypoints.open import open_tokenizer
from ostro.plugins.parsers.generic.parser import FallbackParser
from ostro.plugins.parsers.hermes.parser import HermesParser
from ostro.plugins.parsers.lfm2.parser import Lfm2Parser
from ostro.plugins.parsers.llama3.parser import Llama3Parser
from ostro.plugins.parsers.llama4.parser import Llama4Parser
from ostro.plugins.parsers.mistral_named.parser import MistralNamedParser
from ostro.plugins.parsers.qwen3_coder.parser import Qwen3CoderParser
from ostro.plugins.pipelines.text.choice import ChoiceState

VOCABULARIES = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "vocab"
CALL = '<tool_call>{"name": "weather", "arguments": {"a": 1}}</tool_call>'
CALLED = [["weather", '{"a": 1}']]


def found_in(kind: Any, text: str, **how: Any) -> Parsed:
    """What is found in a text, the same wherever it is cut."""
    output = Output(how.pop("prompt", ""), (Piece(text),))
    whole = parse(kind, output, **how)
    for cut in cuts(output):
        again = parse(kind, cut, **how)
        assert (again.text, again.reasoning, again.calls) == (
            whole.text,
            whole.reasoning,
            whole.calls,
        )
        assert again.ended == whole.ended
    return whole


@pytest.mark.parametrize(
    "text",
    [
        "a < b and <tool",
        "<tool_call>",
        "<tool_call> is how one calls",
        "one writes\n <tool_call>  so",
        '<tool_call>{"name": "wea',
        '<tool_call>{"name": 7, "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {"a": 1}}</tool_call>',
        "<tool_call>[[[]]]</tool_call>",
        "<tool_call>{]}</tool_call>",
        '<tool_call>{"name" "weather"}</tool_call>',
        "</tool_call> </think> <think>",
        'x "<think>" y',
    ],
)
def test_what_is_no_call_is_text(text: str) -> None:
    found = found_in(HermesParser, text)
    assert found.text == text and not found.calls and not found.reasoning


def test_a_call_within_a_call_is_its_text() -> None:
    found = found_in(HermesParser, f"<tool_call>{CALL}")
    assert found.text.startswith("<tool_call>") or found.calls == CALLED
    inner = json.dumps(CALL)
    found = found_in(
        HermesParser, f'<tool_call>{{"name": "weather", "arguments": {{"a": {inner}}}}}</tool_call>'
    )
    assert json.loads(found.calls[0][1]) == {"a": CALL} and found.ended == [0]


@pytest.mark.parametrize(
    ("arguments", "complete"),
    [
        ("{city: 7}", True),
        ('{"a": 1]', True),
        ('{"a": "\\q"}', True),
        ('{"a": 1', False),
        ('{"a": "b', False),
    ],
)
def test_arguments_that_are_not_json_are_passed_on(arguments: str, complete: bool) -> None:
    found = found_in(HermesParser, f'<tool_call>{{"name": "weather", "arguments": {arguments}')
    assert found.calls == [["weather", arguments]]
    assert found.ended == ([0] if complete else [])
    named = found_in(MistralNamedParser, f"[TOOL_CALLS]weather[ARGS]{arguments}")
    assert named.calls == [["weather", arguments]]


def test_arguments_in_a_json_string_are_its_text() -> None:
    text = '<tool_call>{"arguments": "{\\"a\\": 1}", "name": "weather"}</tool_call>'
    assert found_in(HermesParser, text).calls == CALLED


def test_reasoning_that_never_ends() -> None:
    found = found_in(HermesParser, f"<think>\nhm {CALL} ")
    assert found.reasoning == "hm" and found.calls == CALLED and not found.text
    found = found_in(HermesParser, f"<think>\nhm {CALL} hm")
    assert found.reasoning == f"hm {CALL} hm" and not found.calls and not found.text
    opened = found_in(HermesParser, "hm </thin", prompt="assistant\n<think>\n")
    assert opened.reasoning == "hm </thin"
    controls = ("<tool_call>", "</tool_call>")
    pieces = (Piece("<think>hm "), Piece(control=controls[0]), Piece(CALL[11:-12]))
    ended = parse(HermesParser, Output("", pieces), controls=controls)
    assert ended.reasoning == "hm" and ended.calls == CALLED


def test_only_calls_of_offered_tools_need_no_marker() -> None:
    for kind, text in (
        (Llama3Parser, '{"name": "other", "parameters": {}}'),
        (Llama3Parser, '{"name": "weather", "degrees": 7}'),
        (Llama3Parser, '{"weather": true}'),
        (FallbackParser, '{"answer": 42}'),
        (Llama4Parser, "[other(a=1)]"),
        (Llama4Parser, "[1, 2] and [weather]"),
        (Llama4Parser, "[weather(a=open('x'))]"),
    ):
        found = found_in(kind, text)
        assert found.text == text and not found.calls
    assert found_in(Llama4Parser, "[weather(city='x', days=None)]").ended == [0]


def test_python_is_never_evaluated() -> None:
    for text in ("[weather(a=__import__('os'))]", "[weather(**{'a': 1})]", "[weather(a=1 .real)]"):
        marked = f"<|tool_call_start|>{text}<|tool_call_end|>"
        found = found_in(Lfm2Parser, marked)
        assert not found.calls and found.text == marked
    deep = f"<|tool_call_start|>[weather(a={'[' * 3000}{']' * 3000})]<|tool_call_end|>"
    assert parse(Lfm2Parser, Output("", (Piece(deep),))).text == deep


def test_values_follow_the_schema() -> None:
    def value(name: str, text: str) -> Any:
        body = f"<function=weather>\n<parameter={name}>\n{text}\n</parameter>\n</function>"
        found = found_in(Qwen3CoderParser, f"<tool_call>\n{body}\n</tool_call>")
        return json.loads(found.calls[0][1])[name]

    assert value("city", "7") == "7" and value("city", "null") == "null"
    assert value("days", "7") == 7 and value("days", "seven") == "seven"
    assert value("more", '{"a": [1]}') == {"a": [1]} and value("more", "{broken") == "{broken"
    assert value("unknown", "True") is True and value("unknown", "a\n\nb ") == "a\n\nb "


@pytest.mark.parametrize("name", OUTPUTS)
def test_noise_raises_nothing(parsers: Mapping[str, Parser], name: str) -> None:
    kind, choose = resolve(parsers[name].parser), random.Random(name)
    words = [OUTPUTS[name][i : i + 9] for i in range(0, len(OUTPUTS[name]), 5)]
    for _ in range(20):
        text = "".join(choose.choice([*words, " ", "x", "{", '"', "\\"]) for _ in range(30))
        found = parse(kind, Output("", (Piece(text),)))
        characters = parse(kind, next(cuts(Output("", (Piece(text),)))))
        assert (characters.text, characters.calls) == (found.text, found.calls)


def tokens_read(tokenizer: Tokenizer, tokens: list[int], kind: Any) -> Parsed:
    """What is found in tokens, one output each."""
    parser = kind("", TOOLS, tokenizer.controls)
    spelled = {id: tokenizer.token(id) for id in tokenizer.control_ids}
    choice = ChoiceState(0, tokenizer.detokenizer(), Stop(()), parser=parser, controls=spelled)
    events = [e for token in tokens for e in choice.add(TokenOutput(id="a", tokens=[token]))]
    *rest, end = [*events, *choice.add(TokenOutput(id="a", finish="stop"))]
    found = read(cast(list[OutputEvent], rest))
    assert end == ChoiceEnd("tool_calls" if found.calls else "stop")
    found.ended = list(range(len(found.calls)))  # of which clients receive no event
    return found


def test_bytes_that_are_no_character() -> None:
    tokenizer = small("<tool_call>", "</tool_call>")
    start, end = (tokenizer.id(each) for each in ("<tool_call>", "</tool_call>"))
    assert start is not None and end is not None
    broken = [tokenizer.encode("é", special=False)[0]]
    inside = tokenizer.encode('{"name": "weather", "arguments": {"a": "', special=False)
    found = tokens_read(
        tokenizer,
        [*broken, start, *inside, *broken, *tokenizer.encode('"}}', special=False), *broken, end],
        HermesParser,
    )
    assert found.text == "\ufffd\ufffd" and json.loads(found.calls[0][1]) == {"a": "\ufffd"}


FILES = sorted(VOCABULARIES.glob("*.gguf")) if VOCABULARIES.is_dir() else []


@pytest.mark.parametrize("file", FILES or [None], ids=lambda file: file.stem if file else "absent")
def test_tokens_of_a_vocabulary(parsers: Mapping[str, Parser], file: Path | None) -> None:
    if file is None:
        pytest.skip("no vocabularies beside the checkout")
    if "bert" in file.name:
        pytest.skip("a vocabulary of an encoder, which drops white space")
    plugins = PluginManager()
    plugins.load()
    tokenizer, count = open_tokenizer(file, plugins), 0
    for name, text in OUTPUTS.items():
        if name == "harmony":
            continue  # the prompt begins its header
        tokens = tokenizer.encode(text, special=False, parse_special=True, start=False)
        if tokenizer.decode(tokens, skip_special=False).strip() != text:
            continue  # SentencePiece writes a space for a character of DeepSeek's tokens
        assert tokens_read(tokenizer, tokens, resolve(parsers[name].parser)).turn == expected(name)
        count += 1
    assert count >= len(OUTPUTS) - 4
