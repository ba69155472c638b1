"""Custom tools of chats: the input of their calls is a text, in answers as in histories."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import openai
import pytest
from echo.server import Running, Start, make_client, make_state, user, wait_until
from tiny.server import RunningServer

from ostro.core.messages.text import ChoiceEnd, Event, ToolCallArguments, ToolCallStart
from ostro.core.messages.text_requests import Grammar, Regex, Tool
from ostro.entrypoints.api.openai.bodies import ChatBody
from ostro.entrypoints.api.openai.chat_choices import ChatChoices
from ostro.entrypoints.api.openai.custom_tools import custom_tool
from ostro.entrypoints.operations.requests.decoding import decode

NOTATION = '{% if false %}<tool_call>{"name": , "arguments": }</tool_call>{% endif %}'
ECHO = f"{{% if tools %}}{{% endif %}}{NOTATION}{{{{ messages[-1].content }}}}"
"""The echo engine answers with the prompt: the last message. The notation is that of Hermes."""
WHOLE = f"{NOTATION}{{{{ tools | tojson }}}} {{{{ messages | tojson }}}}"
"""The prompt shows all that a template reads."""
PATCH: dict[str, Any] = {"type": "custom", "custom": {"name": "patch", "description": "Edits."}}
WEATHER: dict[str, Any] = {"type": "function", "function": {"name": "weather"}}
TOOLS = [PATCH, WEATHER, {"type": "custom", "custom": {"name": "run", "format": {"type": "text"}}}]


def written(name: str, arguments: str) -> str:
    """A call as the model writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>\n'


CALLS = (
    written("patch", '{"input": "one\\n\\"1\\""}')
    + written("weather", '{"input": "Bern"}')
    + written("run", '{"input": "ls"}')
    + written("patch", '{"file": 1}')
)
INPUTS = [
    ("custom", {"name": "patch", "input": 'one\n"1"'}),
    ("function", {"name": "weather", "arguments": '{"input": "Bern"}'}),
    ("custom", {"name": "run", "input": "ls"}),
    ("custom", {"name": "patch", "input": '{"file": 1}'}),
]
"""The calls. Arguments that are not those of a custom tool are its input."""


@pytest.fixture(scope="module")
def server(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Running:
    state = make_state(str(tmp_path_factory.mktemp("store") / "state"))
    return start(template=ECHO, state=state)


@pytest.fixture(scope="module")
def whole(start: Start) -> Running:
    return start(template=WHOLE)


def parts(calls: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """The types and contents of calls, which have no other fields."""
    assert all(call.keys() == {"id", "type", call["type"]} for call in calls), calls
    assert len({call["id"] for call in calls}) == len(calls)
    return [(call["type"], call[call["type"]]) for call in calls]


def streamed(events: list[Any]) -> list[dict[str, Any]]:
    """The calls that the chunks of a chat add up to."""
    calls: dict[int, dict[str, Any]] = {}
    for choice in (choice for event in events for choice in event["choices"]):
        for delta in choice["delta"].get("tool_calls") or ():
            known = calls.setdefault(delta["index"], {})
            known |= {name: delta[name] for name in ("id", "type") if name in delta}
            for name, text in delta[known["type"]].items():
                content = known.setdefault(known["type"], {})
                content[name] = content.get(name, "") + text
    return [calls[index] for index in sorted(calls)]


def test_calls_of_custom_tools_have_a_text(server: Running) -> None:
    choice = server.chat(CALLS, tools=TOOLS).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert parts(choice["message"]["tool_calls"]) == INPUTS


def test_streams_have_the_same_calls(server: Running) -> None:
    events = server.events("/v1/chat/completions", messages=[user(CALLS)], tools=TOOLS)
    assert parts(streamed(events)) == INPUTS
    ends = [choice["finish_reason"] for event in events for choice in event["choices"]]
    assert ends == [*[None] * (len(ends) - 1), "tool_calls"]


def test_choices_have_calls_of_their_own(server: Running) -> None:
    body = {"messages": [user(CALLS)], "tools": TOOLS, "n": 2}
    choices = server.post("/v1/chat/completions", **body).json()["choices"]
    calls = [call for choice in choices for call in choice["message"]["tool_calls"]]
    assert parts(calls) == INPUTS * 2
    events = server.events("/v1/chat/completions", **body)
    for index in range(2):
        own = [x for x in events if [choice["index"] for choice in x["choices"]] == [index]]
        assert parts(streamed(own)) == INPUTS


def test_a_call_that_is_cut_off_has_what_was_written(server: Running) -> None:
    text = written("patch", '{"input": "one"}')
    choice = server.chat(text, tools=TOOLS, max_tokens=text.index("ne")).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    expected = [("custom", {"name": "patch", "input": '{"input": "o'})]
    assert parts(choice["message"]["tool_calls"]) == expected


def deltas(*events: Event) -> list[dict[str, Any]]:
    """The contents of the chunks of a stream."""
    choices = ChatChoices(lambda token: b"", frozenset({"patch"}))
    made = [x for i, event in enumerate(events) for x in choices.chunks(event, i == 0)]
    return [msgspec.to_builtins(each) for each in made]


def test_inputs_are_sent_at_the_end_of_their_choice() -> None:
    """Arguments of several calls may alternate, and choices end one by one."""
    made = deltas(
        ToolCallStart(call=0, id="a", name="patch"),
        ToolCallArguments(call=0, text='{"input": "on'),
        ToolCallStart(index=1, call=0, id="b", name="patch"),
        ToolCallStart(call=1, id="c", name="weather"),
        ToolCallArguments(call=1, text="{}"),
        ToolCallStart(call=2, id="d", name="patch"),
        ToolCallArguments(call=2, text="two"),
        ToolCallArguments(call=0, text='e"}'),
        ToolCallArguments(index=1, call=0, text="three"),
        ChoiceEnd(finish="tool_calls"),
        ChoiceEnd(index=1, finish="length"),
    )
    found = [(each["index"], *each["delta"].get("tool_calls", ())) for each in made]
    empty = {"name": "patch", "input": ""}
    function = {"name": "weather", "arguments": ""}
    assert found == [
        (0, {"index": 0, "id": "a", "type": "custom", "custom": empty}),
        (1, {"index": 0, "id": "b", "type": "custom", "custom": empty}),
        (0, {"index": 1, "id": "c", "type": "function", "function": function}),
        (0, {"index": 1, "function": {"arguments": "{}"}}),
        (0, {"index": 2, "id": "d", "type": "custom", "custom": empty}),
        (0, {"index": 0, "type": "custom", "custom": {"input": "one"}}),
        (0, {"index": 2, "type": "custom", "custom": {"input": "two"}}),
        (0,),
        (1, {"index": 0, "type": "custom", "custom": {"input": "three"}}),
        (1,),
    ]
    assert [each["finish_reason"] for each in made if each["finish_reason"]] == [
        "tool_calls",
        "length",
    ]


def test_the_official_client_reads_calls(server: Running) -> None:
    tools: Any = TOOLS
    with make_client(server) as client:
        made = client.chat.completions.create(
            model="echo",
            messages=[user(CALLS)],
            tools=tools,  # type: ignore[list-item]
        )
    calls = made.choices[0].message.tool_calls or []
    assert [call.type for call in calls] == [kind for kind, _ in INPUTS]
    assert calls[0].type == "custom" and calls[0].custom.input == 'one\n"1"'


def test_the_official_client_reads_streams(server: Running) -> None:
    """Its types of chunks have no custom calls, so that it is not strict."""
    tools: Any = TOOLS
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        chunks = client.chat.completions.create(
            model="echo",
            messages=[user(CALLS)],
            tools=tools,
            stream=True,  # type: ignore[list-item]
        )
        events = [chunk.to_dict(mode="json") for chunk in chunks]
    assert parts(streamed(events)) == INPUTS


def test_stored_chats_have_custom_calls(server: Running) -> None:
    turns = [user("hi"), *history("custom"), user(CALLS)]
    body = {"messages": turns, "tools": TOOLS, "store": True}
    made = server.post("/v1/chat/completions", **body).json()
    [first, *_] = server.events("/v1/chat/completions", **body)
    for id in (made["id"], first["id"]):
        found = server.http.get(f"/v1/chat/completions/{id}").json()
        assert parts(found["choices"][0]["message"]["tool_calls"]) == INPUTS
        messages = server.http.get(f"/v1/chat/completions/{id}/messages").json()["data"]
        assert messages[1]["tool_calls"] == turns[1]["tool_calls"]


def test_batches_have_custom_calls(server: Running) -> None:
    url = "/v1/chat/completions"
    body = {"messages": [user(CALLS)], "tools": TOOLS}
    line = json.dumps({"custom_id": "a", "method": "POST", "url": url, "body": body})
    with make_client(server) as client:
        file = client.files.create(file=("a.jsonl", line.encode()), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        wait_until(lambda: client.batches.retrieve(batch.id).completed_at)
        done = client.batches.retrieve(batch.id)
        assert done.output_file_id is not None, done
        answer = json.loads(client.files.content(done.output_file_id).text)["response"]["body"]
    assert parts(answer["choices"][0]["message"]["tool_calls"]) == INPUTS


def history(kind: str) -> list[dict[str, Any]]:
    """A call of a tool of either kind, and its result."""
    content = {"name": "patch", "input": 'a "b"'}
    if kind == "function":
        content = {"name": "patch", "arguments": json.dumps({"input": 'a "b"'})}
    call = {"id": "call_1", "type": kind, kind: content}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "done"},
    ]


def test_the_model_reads_a_function_of_one_text(whole: Running) -> None:
    tool = custom_tool("patch", "Edits.")
    function = {"name": "patch", "description": "Edits.", "parameters": tool.parameters}
    tools = {"custom": PATCH, "function": {"type": "function", "function": function}}
    prompts = [
        whole.post("/apply-template", messages=[user("hi"), *history(kind)], tools=[tools[kind]])
        for kind in tools
    ]
    assert prompts[0].status_code == 200 and "patch" in prompts[0].text
    assert prompts[0].json() == prompts[1].json()


def tools_of(*tools: dict[str, Any], **fields: Any) -> Any:
    """The request of a chat with tools."""
    body = {"messages": "hi", "tools": tools, **fields}
    return decode(msgspec.json.encode(body), ChatBody).to_request()


def with_format(definition: str, syntax: str = "lark") -> dict[str, Any]:
    """A tool whose input follows a grammar."""
    form = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
    return {"type": "custom", "custom": {"name": "patch", "format": form}}


def with_pattern(definition: str) -> dict[str, Any]:
    """A tool whose input matches a regular expression."""
    return with_format(definition, "regex")


def test_formats_are_those_of_the_function() -> None:
    """The model reads them, too."""
    request = tools_of(PATCH, with_format('start: "a"'), with_pattern("a+"), WEATHER)
    assert [request.tools[0], request.tools[3]] == [custom_tool("patch", "Edits."), Tool("weather")]
    for tool, form, text in (
        (request.tools[1], Grammar("lark", 'start: "a"'), 'start: "a"'),
        (request.tools[2], Regex("a+"), "a+"),
    ):
        assert (tool.name, tool.description, tool.format) == ("patch", None, form)
        assert text in tool.parameters["properties"]["input"]["description"]


def test_a_choice_names_a_custom_tool() -> None:
    named = {"type": "custom", "custom": {"name": "run"}}
    forced = tools_of(*TOOLS, tool_choice=named)
    assert (forced.tool_choice, forced.allowed_tools) == ("required", ["run"])
    allowed = {"mode": "auto", "tools": [named, WEATHER]}
    some = tools_of(*TOOLS, tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    assert (some.tool_choice, some.allowed_tools) == ("auto", ["run", "weather"])


@pytest.mark.process
@pytest.mark.parametrize(
    ("tool", "inputs"),
    [
        (with_format('start: "x" /[a-c]{3}/ "\\n"'), r"x[a-c]{3}\n"),
        (with_pattern('["/]x{3}'), r'["/]x{3}'),
    ],
)
@pytest.mark.parametrize("allowed", [False, True])
def test_the_input_follows_the_format(
    random_server: RunningServer, tool: dict[str, Any], inputs: str, allowed: bool
) -> None:
    choice: dict[str, Any] = {"type": "custom", "custom": {"name": "patch"}}
    if allowed:
        some = {"mode": "required", "tools": [choice]}
        choice = {"type": "allowed_tools", "allowed_tools": some}
    body = {"messages": [user("hi")], "tools": [WEATHER, tool], "tool_choice": choice}
    sampling = {"max_tokens": 200, "temperature": 2, "seed": 1}
    answer = random_server.post("/v1/chat/completions", **body, **sampling)
    assert answer.status_code == 200, answer.text
    calls = answer.json()["choices"][0]["message"]["tool_calls"]
    assert calls[0]["type"] == "custom" and calls[0]["custom"]["name"] == "patch"
    assert re.fullmatch(inputs, calls[0]["custom"]["input"]), calls


@pytest.mark.process
@pytest.mark.parametrize(
    ("tool", "words"),
    [(with_format("start: absent"), "absent"), (with_pattern("[a"), "regular expression")],
)
def test_formats_that_are_no_grammars_are_refused(
    random_server: RunningServer, tool: dict[str, Any], words: str
) -> None:
    answer = random_server.post(
        "/v1/chat/completions", messages=[user("hi")], tools=[WEATHER, tool]
    )
    error = answer.json()["error"]
    assert answer.status_code == 400 and words in error["message"], error
    assert error["message"].startswith("tools[1].custom.format: ")
    assert error["param"] == "tools[1].custom.format"
    body = {"messages": [user("hi")], "tools": [WEATHER, tool], "stream": True}
    assert random_server.post("/v1/chat/completions", **body).json() == answer.json()


def changed(**fields: Any) -> dict[str, Any]:
    return {"type": "custom", "custom": {"name": "patch", **fields}}


def malformed() -> list[tuple[dict[str, Any], str]]:
    """Malformed tools, and the field that the error names."""
    lark = {"syntax": "lark", "definition": "start:"}
    forms = [
        ("text", ""),
        ({"type": "xml"}, ".type"),
        ({"type": "grammar"}, ".grammar"),
        ({"type": "grammar", **lark}, ".syntax"),
        ({"type": "grammar", "grammar": {"syntax": "lark"}}, ".grammar.definition"),
        ({"type": "grammar", "grammar": {**lark, "syntax": "gbnf"}}, ".grammar.syntax"),
    ]
    return [
        ({"type": "custom"}, ""),
        ({"type": "custom", "custom": "patch"}, ""),
        ({"type": "custom", "custom": {}}, ".name"),
        (changed(name=1), ".name"),
        (changed(name="a b"), ".name"),
        (changed(description=[]), ".description"),
        (changed(strict=True), ".strict"),
        *((changed(format=form), f".format{field}") for form, field in forms),
    ]


@pytest.mark.parametrize(("tool", "field"), malformed())
def test_malformed_tools_are_refused(server: Running, tool: dict[str, Any], field: str) -> None:
    answer = server.chat("hi", tools=[WEATHER, tool])
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == f"tools[1].custom{field}", error
    assert "tools[1]" in error["message"]


def test_the_count_of_tokens_names_the_fields_of_custom_tools(server: Running) -> None:
    body = {"messages": [user("hi")], "tools": [WEATHER, changed(name="a b")]}
    error = server.post("/v1/chat/completions/input_tokens", **body).json()["error"]
    assert error["param"] == "tools[1].custom.name", error


def test_other_types_are_refused(server: Running) -> None:
    error = server.chat("hi", tools=[{"type": "web_search"}]).json()["error"]
    assert error["param"] == "tools[0]" and "function and custom" in error["message"]


def test_names_of_functions_keep_their_place(server: Running) -> None:
    function = {"type": "function", "function": {"name": "a b"}}
    assert server.chat("hi", tools=[PATCH, function]).json()["error"]["param"] == "tools[1].name"


def test_unknown_fields_are_ignored_by_name(start: Start) -> None:
    server = start(template=ECHO, strict_fields=False)
    answer = server.chat(CALLS, tools=[changed(strict=True)])
    assert (
        answer.status_code == 200 and answer.headers["x-ostro-ignored"] == "tools[].custom.strict"
    )
    assert answer.json()["choices"][0]["message"]["tool_calls"][0]["type"] == "custom"


@pytest.mark.parametrize(
    "choice", [{"type": "custom"}, {"type": "custom", "custom": {}}, {"type": "custom", "name": 1}]
)
def test_choices_need_a_name(server: Running, choice: dict[str, Any]) -> None:
    error = server.chat("hi", tools=TOOLS, tool_choice=choice).json()["error"]
    assert error["param"] == "tool_choice" and "custom" in error["message"], error


@pytest.mark.parametrize(
    "content", [None, {"name": "patch"}, {"input": "a"}, {"name": "patch", "input": {}}]
)
def test_calls_in_histories_need_name_and_input(server: Running, content: Any) -> None:
    call = {"id": "call_1", "type": "custom", "custom": content}
    turns = [user("hi"), {"role": "assistant", "tool_calls": [call]}]
    answer = server.post("/v1/chat/completions", messages=turns, tools=TOOLS)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert "messages[1].tool_calls" in error["message"] and "input" in error["message"]
    assert error["param"] == "messages"
