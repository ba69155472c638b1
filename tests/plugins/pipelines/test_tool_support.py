"""Whether a parser reads the calls that a chat template writes: templates, parsers and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from echo.model import TEMPLATE, make_model, served_echo
from tiny.turns import CONTROL, EOS, FILES, OWN, DirectRenderer

from ostro.core.chat import ChatTemplate
from ostro.core.messages.text import OutputEvent, ToolCallArguments, ToolCallEnd, ToolCallStart
from ostro.core.output import Piece
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Parser
from ostro.core.settings import Settings
from ostro.core.tokenizer import load_tokenizer
from ostro.core.tool_support import ToolSupport
from ostro.plugins.pipelines.text.prepare import Preparer
from ostro.plugins.pipelines.text.tool_support import tool_support

SOURCES = {**OWN, **{file.stem: file.read_text() for file in FILES}}
HERMES, MISTRAL = OWN["own-hermes"], OWN["own-mistral"]
WITHOUT_TOOLS = {
    "HuggingFaceTB-SmolLM3-3B",  # has variables of its own for tools
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "deepseek-ai-DeepSeek-V3.1",
    "google-gemma-2-2b-it",
    "llama-cpp-deepseek-r1",  # writes a generator as JSON, which transformers refuses, too
    "llama-cpp-rwkv-world",
    "microsoft-Phi-3.5-mini-instruct",
}
"""Templates that show no tools to the model."""
WITHOUT_CALLS = {
    "HuggingFaceTB-SmolLM3-3B",
    "Kimi-K2-Instruct",
    "Kimi-K2-Thinking",
    "LFM2-8B-A1B",
    "LFM2.5-Instruct",
    "google-gemma-2-2b-it",
    "ibm-granite-granite-3.3-2B-Instruct",
    "llama-cpp-deepseek-r1",
    "llama-cpp-rwkv-world",
    "microsoft-Phi-3.5-mini-instruct",
}
"""Templates that leave out or refuse the calls of earlier answers."""


class Vocabulary:
    """The part of a tokenizer that the check uses: control tokens by their spelling."""

    def __init__(self, source: str) -> None:
        spellings = dict.fromkeys([*CONTROL.findall(source), "<s>", "</s>"])
        self.tokens = dict(enumerate(spellings))
        self.eos_ids = {id for id, text in self.tokens.items() if text in EOS}
        self.controls = frozenset(spellings)

    def split(self, text: str) -> list[str | int]:
        ids, parts, end = {text: id for id, text in self.tokens.items()}, list[str | int](), 0
        for match in CONTROL.finditer(text):
            if match[0] in ids:
                parts += [text[end : match.start()], ids[match[0]]]
                end = match.end()
        return [*parts, text[end:]]

    def token(self, id: int) -> str:
        return self.tokens[id]


@pytest.fixture(scope="module")
def parsers() -> Mapping[str, Parser]:
    plugins = PluginManager()
    plugins.load()
    return plugins.collect("parsers")


def template_of(source: str) -> ChatTemplate:
    tokens: Any = {"bos_token": "<s>", "eos_token": "</s>"}
    renderer: Any = DirectRenderer()
    return ChatTemplate(source, tokens=tokens, renderer=renderer)


def check(source: str, parsers: Mapping[str, Parser], **settings: Any) -> ToolSupport:
    """The result for a template."""
    vocabulary: Any = Vocabulary(source)
    return tool_support(template_of(source), Settings(**settings), parsers, vocabulary)


@pytest.mark.sample(20)
@pytest.mark.parametrize("name", SOURCES)
def test_published_templates(parsers: Mapping[str, Parser], name: str) -> None:
    found = check(SOURCES[name], parsers)
    assert found.declares == (name not in WITHOUT_TOOLS)
    assert found.writes == (name not in WITHOUT_CALLS)
    assert found.reads is (None if name in WITHOUT_CALLS else True)
    assert found.reads_reasoning in (None, True)
    assert bool(found.reason) == (name in WITHOUT_CALLS)
    assert found.parser == (found.notation or "generic")
    assert (found.chosen_by, found.readers) == ("chat template", ())


@pytest.mark.sample(20)
@pytest.mark.parametrize("name", [name for name in SOURCES if name not in WITHOUT_CALLS])
def test_a_parser_of_another_notation_does_not_fit(
    parsers: Mapping[str, Parser], name: str
) -> None:
    own = check(SOURCES[name], parsers).notation
    other = "solar" if own != "solar" else "hermes"
    found = check(SOURCES[name], parsers, tool_parser=other)
    assert (found.notation, found.parser, found.chosen_by) == (own, other, "--tool-parser")
    assert found.writes and found.reads is False and not found.error
    assert found.readers[0] == own and other not in found.readers
    assert "the parser" in found.reason


def test_an_option_may_name_the_parser_that_fits(parsers: Mapping[str, Parser]) -> None:
    found = check(HERMES, parsers, tool_parser="generic")
    assert (found.notation, found.parser, found.reads) == ("hermes", "generic", True)


def test_without_a_parser_of_tools_it_is_unknown(parsers: Mapping[str, Parser]) -> None:
    for reasoning in (None, "none"):
        found = check(HERMES, parsers, tool_parser="none", reasoning_parser=reasoning)
        assert (found.notation, found.parser, found.reads) == ("hermes", None, None)
        assert found.reason == "--tool-parser none leaves calls in the text"
        assert found.writes and found.reads_reasoning is (True if reasoning is None else None)
    assert check(HERMES, {}).reason == "no parser is installed"


def test_a_model_without_a_chat_template(parsers: Mapping[str, Parser]) -> None:
    vocabulary: Any = Vocabulary("")
    found = tool_support(None, Settings(), parsers, vocabulary)
    assert found == ToolSupport(reason="the model has no chat template")


def test_a_template_that_refuses_tools(parsers: Mapping[str, Parser]) -> None:
    found = check("{{ raise_exception('no tools') if tools }}" + HERMES, parsers)
    assert not found.declares and found.reads is None
    assert (found.reason, found.error) == ("the chat template refuses tools", "no tools")


def test_a_template_that_refuses_earlier_calls(parsers: Mapping[str, Parser]) -> None:
    refuses = "{% for m in messages if m.tool_calls %}{{ raise_exception('no calls') }}{% endfor %}"
    found = check(refuses + HERMES, parsers)
    assert found.declares and not found.writes and found.reads is None
    assert (found.reason, found.error) == ("the chat template refuses earlier calls", "no calls")


def test_a_template_whose_calls_no_parser_reads(parsers: Mapping[str, Parser]) -> None:
    source = HERMES.replace("<tool_call>", "<call>").replace('"arguments": ', '"a": ')
    found = check(source, parsers)
    assert (found.notation, found.parser, found.reads) == (None, "generic", False)
    assert found.readers == ()


def test_the_template_of_chats_with_tools_is_checked(parsers: Mapping[str, Parser]) -> None:
    both = ChatTemplate("{{ messages }}", tokens={}, tool_use=template_of(HERMES))
    vocabulary: Any = Vocabulary(HERMES)
    found = tool_support(both, Settings(), parsers, vocabulary)
    assert (found.notation, found.declares, found.reads) == ("hermes", True, True)


def test_ids_and_results_that_templates_require(parsers: Mapping[str, Parser]) -> None:
    kimi = (
        "{% for m in messages %}<|im_{{ m.role }}|>{{ m.content or '' }}{% for c in m.tool_calls %}"
        "<|tool_calls_section_begin|><|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>"
        "{{ c.function.arguments | tojson }}<|tool_call_end|><|tool_calls_section_end|>"
        "{% endfor %}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_assistant|>{% endif %}{{ tools and '' }}"
    )
    assert check(kimi, parsers).reads is True
    needs_result = HERMES + "{% if messages[-1].tool_calls %}{{ raise_exception('a') }}{% endif %}"
    assert check(needs_result, parsers).reads is True
    needs_id = "{% for m in messages %}{% for c in m.tool_calls %}{% if c.id | length != 9 %}"
    needs_id += "{{ raise_exception('b') }}{% endif %}{% endfor %}{% endfor %}" + MISTRAL
    assert check(needs_id, parsers).reads is True


def test_a_template_that_refuses_reasoning(parsers: Mapping[str, Parser]) -> None:
    refuses = "{% for m in messages if m.reasoning_content %}{{ raise_exception('r') }}{% endfor %}"
    found = check(refuses + HERMES, parsers)
    assert (found.writes, found.reads, found.reads_reasoning) == (True, True, None)


def test_what_follows_the_end_of_a_turn_is_not_read(parsers: Mapping[str, Parser]) -> None:
    example = '<tool_call>\n{"name": "example", "arguments": {}}\n</tool_call>'
    found = check(HERMES + "{% if not add_generation_prompt %}" + example + "{% endif %}", parsers)
    assert found.reads is True


def test_numbers_that_a_template_quotes(parsers: Mapping[str, Parser]) -> None:
    values = (
        '{% set a = c.function.arguments %}{"text": "{{ a.text }}", "number": "{{ a.number }}"}'
    )
    quoted = HERMES.replace("{{ c.function.arguments | tojson }}", values)
    assert quoted != HERMES and check(quoted, parsers).reads is True


def test_reasoning_in_markers_of_another_parser(parsers: Mapping[str, Parser]) -> None:
    assert check(HERMES, parsers).reads_reasoning is True
    other = HERMES.replace("think>", "thought>")
    found = check(other, parsers)
    assert (found.reads, found.reads_reasoning) == (True, False)
    assert check(other, parsers, reasoning_parser="none").reads_reasoning is None
    silent = HERMES.replace("{{ m.reasoning_content }}", "")
    assert check(silent, parsers).reads_reasoning is None


class Fails:
    """A parser that raises in `add`."""

    reasoning = None
    error: BaseException = ValueError("boom")

    def __init__(self, *arguments: Any) -> None: ...

    def add(self, piece: Piece) -> list[OutputEvent]:
        raise self.error

    def finish(self) -> list[OutputEvent]:
        return []


class Exits(Fails):
    """A parser that ends the process."""

    error = SystemExit(3)


class FailsAtOnce(Fails):
    """A parser that cannot be created."""

    def __init__(self, *arguments: Any) -> None:
        raise ZeroDivisionError


class Invents(Fails):
    """A parser of other arguments, a second call, or a call without an end."""

    wrong: tuple[OutputEvent, ...] = ()

    def add(self, piece: Piece) -> list[OutputEvent]:
        return []

    def finish(self) -> list[OutputEvent]:
        return list(self.wrong)


def with_parser(parsers: Mapping[str, Parser], kind: str, matches: Any) -> dict[str, Parser]:
    mine = Parser(name="mine", matches=matches, parser=f"{__name__}:{kind}", precedence=9)
    return {**parsers, "mine": mine}


@pytest.mark.parametrize(
    ("kind", "error"),
    [("Fails", "ValueError: boom"), ("Exits", "SystemExit: 3"), ("FailsAtOnce", "ZeroDivision")],
)
def test_a_parser_that_raises_does_not_fit(
    parsers: Mapping[str, Parser], kind: str, error: str
) -> None:
    found = check(HERMES, with_parser(parsers, kind, lambda source: True))
    assert (found.notation, found.parser, found.reads) == ("mine", "mine", False)
    assert error in found.error and f":{kind} raised" in found.error
    assert error not in found.reason
    assert found.readers == ("generic", "hermes", "smollm3")


START = ToolCallStart(0, "a", "ostro_probe")
RIGHT = ToolCallArguments(0, '{"text": "ostro_text", "number": 7}')


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ((START, RIGHT, ToolCallEnd(0)), ""),
        ((), "finds no call"),
        ((START, RIGHT), "reads other calls"),
        ((ToolCallStart(0, "a", "other"), RIGHT, ToolCallEnd(0)), "reads other calls"),
        ((START, RIGHT, ToolCallEnd(0), START), "reads other calls"),
        ((START, ToolCallArguments(0, "{"), ToolCallEnd(0)), "reads other arguments"),
        ((START, ToolCallArguments(0, '{"text": "x"}'), ToolCallEnd(0)), "other arguments"),
        (
            (START, ToolCallArguments(0, RIGHT.text.replace("7", '"7"')), ToolCallEnd(0)),
            "other arguments",
        ),
    ],
)
def test_what_a_parser_reads_is_compared(
    parsers: Mapping[str, Parser],
    monkeypatch: pytest.MonkeyPatch,
    events: tuple[OutputEvent, ...],
    reason: str,
) -> None:
    monkeypatch.setattr(Invents, "wrong", events)
    found = check(HERMES, with_parser(parsers, "Invents", lambda source: True))
    assert found.reads is (not reason)
    assert reason in found.reason and bool(found.reason) == bool(reason)


def test_an_option_decides_where_matching_fails(parsers: Mapping[str, Parser]) -> None:
    def fails(source: str) -> bool:
        raise SystemExit(3)

    also = {**parsers, "again": replace(parsers["hermes"], name="again")}
    for offered in (also, with_parser(parsers, "Fails", fails)):
        found = check(HERMES, offered, tool_parser="hermes")
        assert (found.notation, found.parser, found.reads) == (None, "hermes", True)


@pytest.mark.parametrize("template", [TEMPLATE, HERMES])
def test_the_tokenizer_of_a_model(
    parsers: Mapping[str, Parser], tmp_path: Path, template: str
) -> None:
    tokenizer = load_tokenizer(make_model(tmp_path / "echo", template=template))
    found = Preparer(served_echo(tokenizer, parsers=parsers, context=1, vocab=300)).tool_support()
    assert found.declares
    assert found.reads is (True if template == HERMES else None)
