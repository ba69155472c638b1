"""Custom tools of chats: tools whose input is a text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from echo.server import Running, Start, make_client, make_state, user
from openai.types.chat import ChatCompletionMessageCustomToolCall

from ostro.core.messages.text_requests import Grammar, Regex, Tool
from ostro.entrypoints.api.openai.tools import read_tools

TEMPLATE = (
    '{% if false %}<tool_call>{"name": "f", "arguments": {}}</tool_call>{% endif %}'
    "{% for t in tools or () %}{{ t | tojson }}{% endfor %}{% for m in messages %}"
    "{% for c in m.tool_calls or () %}({{ c.function.name }} {{ c.function.arguments | tojson }})"
    "{% endfor %}{% endfor %}{{ messages[-1].content }}"
)
"""The echo engine answers with the prompt: tools, earlier calls, and the last message."""
PATCH = {"type": "custom", "custom": {"name": "patch", "description": "Edits files."}}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALLS = (
    ("patch", {"input": 'a\n"b"'}),
    ("weather", {"city": "Rome"}),
    ("patch", {"input": "ö"}),
    ("patch", {"other": 1}),
)
READ = [("patch", 'a\n"b"'), ("weather", {"city": "Rome"}), ("patch", "ö"), ("patch", {"other": 1})]


@pytest.fixture(scope="module")
def server(start: Start) -> Running:
    return start(template=TEMPLATE, state=make_state("memory"))


@pytest.fixture(scope="module")
def lenient(start: Start) -> Running:
    """A server as `ostro serve` starts it: what it does not know is ignored."""
    return start(template=TEMPLATE, strict_fields=False)


def written(*calls: tuple[str, Any]) -> str:
    """Calls as the model writes them."""
    texts = (json.dumps({"name": name, "arguments": given}) for name, given in calls)
    return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in texts)


def ask(server: Running, *tools: Any, text: str = "hi", **fields: Any) -> Any:
    return server.chat(text, tools=[*tools], **fields)


def read(calls: Sequence[Any]) -> list[tuple[str, Any]]:
    """The names and inputs of calls; arguments of functions as objects."""
    found = list[tuple[str, Any]]()
    for call in calls:
        if call["type"] == "custom":
            name, text = call["custom"]["name"], call["custom"]["input"]
            found.append((name, json.loads(text) if text.startswith("{") else text))
        else:
            function = call["function"]
            found.append((function["name"], json.loads(function["arguments"])))
    return found


def test_a_custom_tool_is_a_function_of_one_text(server: Running) -> None:
    [tool] = read_tools([PATCH])
    assert (tool.name, tool.description, tool.format) == ("patch", "Edits files.", None)
    assert tool.parameters["required"] == [*tool.parameters["properties"]] == ["input"]
    named = Tool("patch", tool.parameters, description="Edits files.")
    function = {"name": named.name, "description": "Edits files.", "parameters": tool.parameters}
    prompts = []
    for declared in (PATCH, {"type": "function", "function": function}):
        assert ask(server, declared).status_code == 200
        prompts.append(server.echo.seen[-1].tokens)
    assert prompts[0] == prompts[1]


@pytest.mark.parametrize(
    ("given", "form"),
    [
        ({"type": "text"}, None),
        ({"type": "grammar", "grammar": {"syntax": "lark", "definition": 'start: "a"'}}, Grammar),
        ({"type": "grammar", "grammar": {"syntax": "regex", "definition": "a+"}}, Regex),
    ],
)
def test_the_format_of_a_custom_tool(given: Any, form: Any) -> None:
    [tool] = read_tools([{"type": "custom", "custom": {"name": "f", "format": given}}])
    made = {None: None, Grammar: Grammar("lark", 'start: "a"'), Regex: Regex("a+")}
    assert tool.format == made[form]


def test_a_call_has_the_input(server: Running) -> None:
    answer = ask(server, PATCH, WEATHER, text=written(*CALLS)).json()["choices"][0]
    calls = answer["message"]["tool_calls"]
    assert read(calls) == READ and answer["finish_reason"] == "tool_calls"
    assert [call["type"] for call in calls] == ["custom", "function", "custom", "custom"]
    assert calls[0].keys() == {"type", "id", "custom"}


def test_a_stream_has_the_input_in_one_piece(server: Running) -> None:
    """Before the end of its choice, each with its own calls; functions stay as they are."""
    text = written(*CALLS[:3])
    events = server.events(
        "/v1/chat/completions", messages=[user(text)], tools=[PATCH, WEATHER], n=2
    )
    for index in range(2):
        calls = dict[int, Any]()
        choices = [c for event in events for c in event["choices"] if c["index"] == index]
        for choice in choices:
            assert choice["finish_reason"] is None or choice is choices[-1]
            for delta in choice["delta"].get("tool_calls", ()):
                kind = "custom" if delta["index"] != 1 else "function"
                own = calls.setdefault(delta["index"], {"type": kind, kind: {}})
                assert {"custom", "function"} & delta.keys() == {kind}
                assert delta.get("type", kind) == kind
                for key, value in delta[kind].items():
                    own[kind][key] = own[kind].get(key, "") + value
                own["pieces"] = own.get("pieces", 0) + bool(delta[kind].get("input"))
        assert read([calls[i] for i in range(3)]) == READ[:3]
        assert [calls[i]["pieces"] for i in (0, 2)] == [1, 1]


def test_the_client_of_openai_reads_and_returns_calls(server: Running) -> None:
    body: Any = {"model": "echo", "tools": [PATCH]}
    with make_client(server) as client:
        asked = user(written(CALLS[0]))
        made = client.chat.completions.create(messages=[asked], store=True, **body)
        message = made.choices[0].message
        [call] = message.tool_calls or ()
        assert isinstance(call, ChatCompletionMessageCustomToolCall)
        assert call.custom.input == 'a\n"b"'
        stored = client.chat.completions.retrieve(made.id)
        assert stored.choices[0].message.tool_calls == [call]
        result: Any = {"role": "tool", "tool_call_id": call.id, "content": "done"}
        history: Any = [asked, message.model_dump(exclude_none=True), result]
        text = client.chat.completions.create(messages=history, **body).choices[0].message.content
        assert text is not None and '(patch {"input": "a\\n\\"b\\""})done' in text


@pytest.mark.parametrize(
    ("tools", "choice", "param"),
    [
        ([{"type": "custom"}], None, "tools[0].custom"),
        ([WEATHER, {"type": "custom", "custom": {"name": 5}}], None, "tools[1].custom.name"),
        ([{"type": "custom", "custom": {}}], None, "tools[0].custom.name"),
        ([PATCH, PATCH], None, "tools"),
        ([PATCH], {"type": "custom"}, "tool_choice"),
        ([PATCH], {"type": "custom", "custom": {"name": "other"}}, "tool_choice"),
        (
            [{"type": "custom", "custom": {"name": "f", "format": {"type": "xml"}}}],
            None,
            "tools[0].custom.format.type",
        ),
        (
            [
                {
                    "type": "custom",
                    "custom": {
                        "name": "f",
                        "format": {
                            "type": "grammar",
                            "grammar": {"syntax": "gbnf", "definition": "a"},
                        },
                    },
                }
            ],
            None,
            "tools[0].custom.format.grammar.syntax",
        ),
        ([{"type": "custom", "custom": {"name": "f", "x": 1}}], None, "tools[0].custom.x"),
        ([{"type": "browser"}], None, "tools[0]"),
    ],
)
def test_malformed_tools(server: Running, tools: Any, choice: Any, param: str) -> None:
    answer = ask(server, *tools, **({} if choice is None else {"tool_choice": choice}))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


def test_unknown_fields_are_ignored_by_name(lenient: Running) -> None:
    answer = ask(lenient, {"type": "custom", "custom": {"name": "f", "x": 1}})
    assert (answer.status_code, answer.headers["x-ostro-ignored"]) == (200, "tools[].custom.x")


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "custom", "custom": {"name": "patch"}},
        {
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "required",
                "tools": [{"type": "custom", "custom": {"name": "patch"}}],
            },
        },
    ],
)
def test_a_choice_names_a_custom_tool(server: Running, choice: Any) -> None:
    """The echo engine has no grammars: the error names what constrains the calls."""
    answer = ask(server, PATCH, WEATHER, tool_choice=choice)
    assert answer.status_code == 400 and "tool_choice: constraining calls" in answer.text
