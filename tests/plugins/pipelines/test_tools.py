"""Tools in the text pipeline: which parser reads the output, and what constrains calls."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from echo.model import make_model, served_echo
from tokenizers import AddedToken, Tokenizer

from ostro.core.chat import ChatTemplate
from ostro.core.errors import RequestError, Unsupported, UsageError
from ostro.core.messages.text_requests import ChatRequest
from ostro.core.pipeline import ServedModel, parse_request
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Parser
from ostro.core.settings import Settings
from ostro.core.tokenizer import load_tokenizer
from ostro.entrypoints.api.openai.bodies import ChatBody
from ostro.plugins.pipelines.text.parsing import OutputFormat, matching
from ostro.plugins.pipelines.text.prepare import Preparer
from ostro.plugins.pipelines.text.tools import CallRules

HERMES = (
    '{# <tool_call>{"name": 1, "arguments": 2} #}{{ tools and "" }}{{ messages[-1].content }}'
    "{% if enable_thinking %}<think>\n{% endif %}"
)
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("look", "think")
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    plugins = PluginManager()
    plugins.load()
    folder = make_model(tmp_path_factory.mktemp("models") / "echo")
    made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    made.add_tokens([AddedToken(text, normalized=False) for text in ("<think>", "</think>")])
    made.save(str(folder / "tokenizer.json"))
    tokenizer = load_tokenizer(folder)
    return served_echo(
        tokenizer,
        template=ChatTemplate(HERMES, tokens={}),
        parsers=plugins.collect("parsers"),
        processors=frozenset({"grammar", "reasoning_budget"}),
        context=4096,
        vocab=300,
    )


def chat(**fields: Any) -> ChatRequest:
    given = {"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS, **fields}
    return parse_request(
        {name: x for name, x in given.items() if x is not None}, ChatBody
    ).to_request()


def no_media(tokens: Any, media: Any, check: Any = None) -> Any:
    raise AssertionError("there are no media")


def processors(model: ServedModel, **fields: Any) -> dict[str, Any]:
    """The parameters of the logits processors of a request."""
    prepared = Preparer(model).prepare_chat(chat(**fields), no_media)
    return prepared.request.sampling.processors


def grammar(model: ServedModel, **fields: Any) -> dict[str, str] | None:
    """The parameter of the processor "grammar" of a request."""
    return processors(model, **fields).get("grammar")


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    return {
        "type": "allowed_tools",
        "allowed_tools": {"mode": mode, "tools": [named(each) for each in names]},
    }


@pytest.mark.parametrize(
    ("fields", "calls", "free"),
    [
        ({"tool_choice": "required"}, {"look", "think"}, False),
        ({"tool_choice": named("look")}, {"look"}, False),
        ({"tool_choice": {"type": "function", "name": "look"}}, {"look"}, False),
        ({"tool_choice": allowed("required", "think")}, {"think"}, False),
        ({"tool_choice": allowed("auto", "think")}, {"think"}, True),
        ({"parallel_tool_calls": False}, {"look", "think"}, True),
        ({"tools": [{**TOOLS[0], "function": {"name": "look", "strict": True}}]}, {"look"}, True),
    ],
)
def test_a_request_constrains_calls(
    model: ServedModel, fields: dict[str, Any], calls: set[str], free: bool
) -> None:
    found = grammar(model, **fields)
    assert found is not None and "after" not in found
    lark = found["lark"]
    assert {name for name in ("look", "think") if f'\\"{name}\\"' in lark} == calls
    assert ("(TEXT |" in lark) == free
    assert (")*" in lark) == (fields.get("parallel_tool_calls") is not False)


@pytest.mark.parametrize(
    "fields", [{}, {"tool_choice": "auto"}, {"tool_choice": "none"}, {"parallel_tool_calls": True}]
)
def test_other_requests_constrain_nothing(model: ServedModel, fields: dict[str, Any]) -> None:
    assert grammar(model, **fields) is None


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (named("absent"), "'absent' is none of the tools"),
        (allowed("required", "look", "absent"), "'absent' is none of the tools"),
        (allowed("maybe", "look"), "expected auto, none, required"),
        (allowed("auto"), "expected auto, none, required"),
        ({"type": "function"}, "has no name"),
        ({"type": "mcp", "name": "look"}, "expected auto, none, required"),
        ("always", "expected auto, none, required"),
    ],
)
def test_choices_that_are_malformed(model: ServedModel, choice: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        grammar(model, tool_choice=choice)


def test_reasoning_that_the_prompt_begins_is_free(model: ServedModel) -> None:
    found = grammar(model, tool_choice="required", chat_template_kwargs={"enable_thinking": True})
    assert found is not None and found["after"] == "</think>"


@pytest.mark.parametrize("key", [{"after": "</think>"}, {"outer": "start: @answer"}])
def test_a_grammar_of_the_whole_output_excludes_others(
    model: ServedModel, key: dict[str, str]
) -> None:
    whole = {"regex": "a", **key}
    with pytest.raises(RequestError, match="tool_choice excludes a grammar of the whole output"):
        grammar(model, tool_choice="required", processors={"grammar": whole})
    assert grammar(model, processors={"grammar": whole}) == whole


JSON: dict[str, Any] = {"response_format": {"type": "json_object"}}


def test_a_constrained_text_or_a_call(model: ServedModel) -> None:
    """Agents send tools and the form of the final answer in one request."""
    found = grammar(model, **JSON)
    assert found is not None and found["json_schema"] == {"type": "object"}
    assert re.search(r"\(\s*@answer\s*\|", found["outer"])
    assert all(f'\\"{name}\\"' in found["outer"] for name in ("look", "think"))
    for fields in ({"tools": None}, {"tool_choice": "none"}):
        alone = grammar(model, **JSON, **fields)
        assert alone is not None and "look" not in alone["outer"] and "@answer" in alone["outer"]
    with_parser = with_settings(model, tool_parser="none")
    text = grammar(with_parser, **JSON)
    assert text is not None and "look" not in text.get("outer", "")


def test_a_notation_without_a_grammar(model: ServedModel) -> None:
    """The grammar of the text is that of the whole output."""

    class Silent:
        reasoning = None

        @classmethod
        def grammar(cls, *arguments: Any, **options: Any) -> str:
            raise Unsupported("no grammar")

    form = OutputFormat(kind=cast(Any, Silent))
    assert form.grammar({"regex": "a"}, "", CallRules(), {}) == {"regex": "a"}
    with pytest.raises(Unsupported, match="no grammar"):
        form.grammar({"regex": "a"}, "", CallRules(field="parallel_tool_calls"), {})


def test_an_answer_that_has_to_be_a_call_has_no_text(model: ServedModel) -> None:
    assert grammar(model, **JSON, tool_choice="required") == grammar(model, tool_choice="required")


def test_reasoning_may_precede_a_constrained_text(model: ServedModel) -> None:
    """If the template reads or writes it; a model of another family would never end it."""
    found = grammar(model, **JSON, tools=None)
    assert found is not None and "<think>" in found["outer"] and "after" not in found
    opened = grammar(model, **JSON, chat_template_kwargs={"enable_thinking": True})
    assert opened is not None and opened["after"] == "</think>"
    assert opened["space"] and "<think>" not in opened["outer"], "white space may follow"
    closing = ChatTemplate(HERMES.replace("<think>\n", "<think>\n\n</think>\n\n"), tokens={})
    closed = grammar(
        replace(model, template=closing), **JSON, chat_template_kwargs={"enable_thinking": True}
    )
    assert closed is not None and "<think>" not in closed["outer"] and "after" not in closed
    none = grammar(model, **JSON, thinking_budget=0)
    assert none is not None and "<think>" not in none["outer"]
    source = HERMES.partition("{% if enable_thinking")[0]
    other = replace(model, template=ChatTemplate(source, tokens={}))
    for fields in ({"tools": None}, {"tool_choice": "required"}, {}):
        plain = grammar(other, **JSON, **fields)
        assert plain is not None and "<think>" not in plain.get("outer", plain.get("lark", ""))


def test_a_marker_that_is_text_begins_no_reasoning(model: ServedModel, tmp_path: Path) -> None:
    """A base model with a template of another family would reason until its answer is cut."""
    text = replace(model, tokenizer=load_tokenizer(make_model(tmp_path / "echo")))
    found = grammar(text, **JSON, tools=None)
    assert found is not None and "<think>" not in found["outer"]
    called = grammar(text, tool_choice="required")
    assert called is not None and "<think>" not in called["lark"]
    opened = grammar(text, **JSON, chat_template_kwargs={"enable_thinking": True})
    assert opened is not None and opened["after"] == "</think>"


def budget(model: ServedModel, **fields: Any) -> dict[str, Any] | None:
    found: dict[str, Any] | None = processors(model, **fields).get("reasoning_budget")
    return found


def test_a_budget_has_the_markers_of_the_notation(model: ServedModel) -> None:
    markers = {"begin": "<think>", "end": "</think>"}
    assert budget(model, thinking_budget=9) == {"tokens": 9, **markers, "open": False}
    thinking = {"chat_template_kwargs": {"enable_thinking": True}}
    assert budget(model, thinking_budget=0, **thinking) == {"tokens": 0, **markers, "open": True}
    assert budget(model) is None and budget(model, **thinking) is None


def test_the_effort_none_is_a_budget_without_a_switch(model: ServedModel) -> None:
    assert budget(model, reasoning_effort="none") is None  # enable_thinking is false
    source = HERMES.replace("{% if enable_thinking %}", "").replace("{% endif %}", "")
    always = replace(model, template=ChatTemplate(source, tokens={}))
    found = budget(always, reasoning_effort="none")
    assert found is not None and found["tokens"] == 0 and found["open"]
    limited = budget(always, reasoning_effort="none", thinking_budget=5)
    assert limited is not None and limited["tokens"] == 5
    efforts = source + "{{ reasoning_effort }}"
    reads = replace(model, template=ChatTemplate(efforts, tokens={}))
    assert budget(reads, reasoning_effort="low") is None
    ended = budget(reads, reasoning_effort="none")
    assert ended is not None and ended["tokens"] == 0
    knows = ChatTemplate(efforts + '{% if reasoning_effort == "none" %}{% endif %}', tokens={})
    assert budget(replace(model, template=knows), reasoning_effort="none") is None


def test_budgets_that_cannot_be_kept(model: ServedModel) -> None:
    with pytest.raises(RequestError, match="thinking_budget=-1 is not within"):
        budget(model, thinking_budget=-1)
    with pytest.raises(Unsupported, match="reasoning_budget, which is not installed"):
        budget(replace(model, processors=frozenset()), thinking_budget=1)
    with pytest.raises(Unsupported, match="reasoning is not parsed"):
        budget(with_settings(model, reasoning_parser="none"), thinking_budget=1)
    llama = with_settings(model, tool_parser="llama3")  # a notation without reasoning
    assert budget(llama, thinking_budget=1) is None


def test_without_the_processor_calls_are_not_constrained(model: ServedModel) -> None:
    with pytest.raises(Unsupported, match="processor grammar, which is not installed"):
        grammar(replace(model, processors=frozenset()), tool_choice="required")


def with_settings(model: ServedModel, **settings: str) -> ServedModel:
    return replace(model, settings=Settings(**settings))


def format_of(model: ServedModel, template: str | None = None) -> OutputFormat | None:
    """The format of the outputs of a chat."""
    return Preparer(model).understand(chat(tools=None), template).format


def test_settings_select_the_parser(model: ServedModel) -> None:
    form = format_of(model)
    assert form is not None and form.kind.__name__ == "HermesParser"
    named = format_of(with_settings(model, tool_parser="llama3"))
    assert named is not None and named.kind.__name__ == "Llama3Parser"
    mixed = format_of(with_settings(model, reasoning_parser="mistral"))
    assert mixed is not None and mixed.kind.reasoning == ("[THINK]", "[/THINK]")
    assert mixed.kind.__name__ == "HermesParser"
    silent = format_of(with_settings(model, reasoning_parser="none"))
    assert silent is not None and silent.kind.reasoning is None and silent.calls
    only = format_of(with_settings(model, tool_parser="none"))
    assert only is not None and not only.calls
    neither = with_settings(model, tool_parser="none", reasoning_parser="none")
    assert format_of(neither) is None
    with pytest.raises(Unsupported, match="--tool-parser none"):
        grammar(with_settings(model, tool_parser="none"), tool_choice="required")


@pytest.mark.parametrize("name", ["tool_parser", "reasoning_parser"])
def test_an_unknown_parser_is_refused_at_load(model: ServedModel, name: str) -> None:
    with pytest.raises(UsageError, match=r"the parser 'x'; expected none or .*hermes"):
        Preparer(with_settings(model, **{name: "x"}))


def test_two_parsers_of_a_template_are_refused(model: ServedModel) -> None:
    again = replace(model.parsers["hermes"], name="mine")
    parsers: Mapping[str, Parser] = {**model.parsers, "mine": again}
    with pytest.raises(UsageError, match="matches the parsers hermes, mine; set --tool-parser"):
        Preparer(replace(model, parsers=parsers))
    chosen = with_settings(replace(model, parsers=parsers), tool_parser="hermes")
    assert format_of(chosen)


def test_the_parser_with_the_highest_precedence_is_used(model: ServedModel) -> None:
    """A plugin's notation needs no other one to name it."""
    mine = Parser(name="mine", matches=lambda source: True, parser="mine:Mine")
    assert model.template is not None
    for precedence, name in ((0, "mine"), (-3, "hermes")):
        parsers = {**model.parsers, "mine": replace(mine, precedence=precedence)}
        assert matching(model.template, parsers) == name


@pytest.mark.parametrize(
    ("source", "effort", "prompt"),
    [
        ("{{ reasoning_effort }}", "low", "low"),
        ("{{ reasoning_effort }}{{ enable_thinking }}", "none", "False"),
        ("{{ reasoning_effort }}{{ enable_thinking }}", "high", "high"),
        ("{{ enable_thinking }}", "high", "True"),
        ("{{ thinking }}", "none", "False"),
    ],
)
def test_efforts(model: ServedModel, source: str, effort: str, prompt: str) -> None:
    chosen = replace(model, template=ChatTemplate(source, tokens={}))
    assert Preparer(chosen).render_chat(chat(tools=None, reasoning_effort=effort)) == prompt


def test_an_effort_that_a_template_does_not_know_is_refused(model: ServedModel) -> None:
    plain = replace(model, template=ChatTemplate("{{ messages[0].content }}", tokens={}))
    with pytest.raises(Unsupported, match="reads neither an effort nor enable_thinking"):
        Preparer(plain).render_chat(chat(tools=None, reasoning_effort="high"))


def test_the_template_of_an_adapter_selects_its_parser(model: ServedModel) -> None:
    preparer = Preparer(model)
    own = format_of(model, "{{ messages[0].content }}[TOOL_CALLS][ARGS]")
    assert own is not None and own.kind.__name__ == "MistralNamedParser"
    for template, name in (("[TOOL_CALLS][ARGS]", "MistralNamedParser"), (None, "HermesParser")):
        parser = preparer.parsers(preparer.understand(chat(), template), "a")
        assert parser is not None and cast(Any, parser()).kind.__name__ == name


def test_the_template_named_tool_use_renders_tools_and_selects_their_parser(
    model: ServedModel,
) -> None:
    tool_use = ChatTemplate("{{ tools and '' }}tools [TOOL_CALLS][ARGS]{{ effort }}", tokens={})
    plain = ChatTemplate("plain", tokens={}, tool_use=tool_use)
    preparer = Preparer(replace(model, template=plain))
    assert preparer.render_chat(chat(tools=None)) == "plain"
    assert preparer.render_chat(chat(tool_choice="none")) == "plain"
    request = chat(chat_template_kwargs={"effort": "!"})
    assert preparer.render_chat(request) == "tools [TOOL_CALLS][ARGS]!"
    ids = preparer.prepare_chat(chat(), no_media).request.tokens
    assert preparer.tokenizer.decode(ids) == "tools [TOOL_CALLS][ARGS]"
    for tools, name in ((TOOLS, "MistralNamedParser"), (None, "FallbackParser")):
        parser = preparer.parsers(preparer.understand(chat(tools=tools)), "a")
        assert parser is not None and cast(Any, parser()).kind.__name__ == name
    alone = Preparer(replace(model, template=ChatTemplate("plain", tokens={})))
    with pytest.raises(Unsupported, match="does not read them"):
        alone.prepare_chat(chat(), no_media)


PARAMETERS = {"type": "object", "$defs": {}, "properties": {"b": {"default": None}, "a": {}}}
NONE = {"type": "object", "properties": {}}
DECLARATIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "all keys": (
        {
            "z": 1,
            "strict": True,
            "parameters": PARAMETERS,
            "a": {"c": 2},
            "null": None,
            "description": "d",
            "name": "f",
        },
        {"name": "f", "description": "d", "parameters": PARAMETERS, "z": 1, "a": {"c": 2}},
    ),
    "a name": ({"name": "f"}, {"name": "f", "parameters": NONE}),
    "nulls": (
        {"name": "f", "description": None, "parameters": None, "strict": None},
        {"name": "f", "parameters": NONE},
    ),
    "empty": (
        {"name": "f", "description": "", "parameters": {}, "strict": False},
        {"name": "f", "description": "", "parameters": NONE},
    ),
}
"""Functions of requests, and of prompts."""


@pytest.mark.parametrize(("given", "written"), DECLARATIONS.values(), ids=DECLARATIONS.keys())
def test_declarations_of_tools_in_the_prompt(
    model: ServedModel, given: dict[str, Any], written: dict[str, Any]
) -> None:
    """Name, description, parameters, and then further keys; `strict` is not for the model."""
    plain = replace(model, template=ChatTemplate("{{ tools | tojson }}", tokens={}))
    tool = {"function": given, "strict": True, "type": "function", "cache_control": {}}
    text = Preparer(plain).render_chat(chat(tools=[tool]))
    assert text == json.dumps([{"type": "function", "function": written}])


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}, {"content": []}])
def test_a_message_of_tool_calls_may_have_no_text(
    model: ServedModel, content: dict[str, Any]
) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "tool_calls": [call], **content},
        {"role": "tool", "tool_call_id": "1", "content": "42"},
    ]
    assert Preparer(model).render_chat(chat(messages=messages)) == "42"
