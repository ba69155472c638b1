"""Tools that OpenAI has defined and the client runs: shells, patches, searches for tools."""

from __future__ import annotations

import json
from typing import Any

import pytest
from echo.server import Running, Start, make_client, make_state, user
from openai.types.responses import (
    ResponseApplyPatchToolCall,
    ResponseFunctionShellToolCall,
    ResponseToolSearchCall,
)
from openai.types.responses.response_output_item import LocalShellCall

LOCAL, SHELL, PATCH = {"type": "local_shell"}, {"type": "shell"}, {"type": "apply_patch"}
SEARCH = {"type": "tool_search", "execution": "client"}
TOOLS = {tool["type"]: tool for tool in (LOCAL, SHELL, PATCH, SEARCH)}
KINDS: dict[str, type] = {
    "local_shell": LocalShellCall,
    "shell": ResponseFunctionShellToolCall,
    "apply_patch": ResponseApplyPatchToolCall,
    "tool_search": ResponseToolSearchCall,
}
SPAWN = {"type": "function", "name": "spawn", "parameters": {"type": "object"}}
AGENTS = {"type": "namespace", "name": "agents", "description": "Others.", "tools": [SPAWN]}
TEMPLATE = (
    "{% if tools %}{% endif %}{% if false %}<tool_call>"
    '{"name": "f", "arguments": {}}</tool_call>{% endif %}'
    "{% for t in tools or () %}{{ t.function.name }} {% endfor %}"
    "{% for m in messages %}{% for c in m.tool_calls or () %}"
    "({{ c.function.name }} {{ c.function.arguments | tojson }}){% endfor %}{% endfor %}"
    "{{ messages[-1].content }}"
)
"""The echo engine answers with the prompt: names of tools, earlier calls, the last message."""

Case = tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], str]
CASES: list[Case] = [
    (
        "local_shell",
        {"command": ["ls", "-l"], "working_directory": "/src", "timeout_ms": 50},
        {
            "action": {
                "type": "exec",
                "command": ["ls", "-l"],
                "env": {},
                "timeout_ms": 50,
                "working_directory": "/src",
            }
        },
        {"type": "local_shell_call_output", "output": '{"stdout": "a.txt"}'},
        '{"stdout": "a.txt"}',
    ),
    (
        "shell",
        {"commands": ["ls", "false"], "max_output_length": 9},
        {"action": {"commands": ["ls", "false"], "max_output_length": 9}},
        {
            "type": "shell_call_output",
            "max_output_length": 9,
            "output": [
                {"stdout": "a\n", "stderr": "b\n", "outcome": {"type": "exit", "exit_code": 3}},
                {"stdout": "", "stderr": "", "outcome": {"type": "timeout"}},
            ],
        },
        "exit code 3\na\nb\n\ntimeout",
    ),
    (
        "apply_patch",
        {"type": "update_file", "path": "a.py", "diff": "@@\n-a\n+b"},
        {"operation": {"type": "update_file", "path": "a.py", "diff": "@@\n-a\n+b"}},
        {"type": "apply_patch_call_output", "status": "failed", "output": "No such line."},
        "failed\nNo such line.",
    ),
    (
        "apply_patch",
        {"type": "delete_file", "path": "a.py", "diff": ""},
        {"operation": {"type": "delete_file", "path": "a.py"}},
        {"type": "apply_patch_call_output", "status": "completed"},
        "completed",
    ),
    (
        "tool_search",
        {"query": "agents"},
        {"arguments": {"query": "agents"}, "execution": "client"},
        {"type": "tool_search_output", "execution": "client", "tools": [AGENTS]},
        "These tools can be called now: agents__spawn.",
    ),
]
"""A tool, arguments that the model writes, fields of the call, an output, and its text."""


@pytest.fixture(scope="module")
def speaker(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Running:
    """A server that finds calls in what it answers."""
    folder = tmp_path_factory.mktemp("speaker") / "state"
    return start(state=make_state(str(folder)), template=TEMPLATE)


def called(name: str, arguments: dict[str, Any]) -> str:
    """What the model writes to call a tool. The prompt begins with the name of the tool."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("case", CASES, ids=[case[0] + str(i) for i, case in enumerate(CASES)])
def test_a_call_has_the_fields_of_its_type(speaker: Running, case: Case, streams: bool) -> None:
    name, arguments, fields, output, text = case
    tools = [TOOLS[name]]
    with make_client(speaker) as client:
        given: Any = {"model": "echo", "input": called(name, arguments), "tools": tools}
        if streams:
            events: list[Any] = [*client.responses.create(**given, stream=True)]
            begun = next(
                x.item
                for x in events
                if x.type == "response.output_item.added" and x.item.type != "message"
            )
            done = [x.item for x in events if x.type == "response.output_item.done"]
            response = events[-1].response
            assert begun.status == "in_progress" and begun.id == done[-1].id
            assert done == response.output
        else:
            response = client.responses.create(**given)
        call: Any = response.output[-1]
        assert type(call) is KINDS[name] and call.status == "completed"
        assert call.model_dump(exclude_unset=True, include=set(fields)) == fields
        assert [tool.type for tool in response.tools] == [name]
        assert (call.id == call.call_id) == (name == "local_shell")
        again = client.responses.retrieve(response.id)
        assert again.output == response.output

        # The output returns to the model, by whichever way the conversation is continued.
        by_id = name == "local_shell" and streams  # as OpenAI's types state it
        link = {"id": call.call_id} if by_id else {"call_id": call.call_id}
        output = {**output, **link}
        rest: Any = {"model": "echo", "tools": tools}
        history = [user("hi"), *[x.model_dump(exclude_unset=True) for x in response.output], output]
        whole = client.responses.create(input=history, **rest)
        next_one = client.responses.create(input=[output], previous_response_id=response.id, **rest)
        assert whole.output_text.endswith(text) and next_one.output_text.endswith(text)
        written = json.dumps(arguments)
        assert f"({name} {written})" in whole.output_text and written in next_one.output_text
        items = client.responses.input_items.list(next_one.id).data
        assert items[0].type == output["type"]
        if name == "apply_patch":
            assert items[0].status == output["status"]  # type: ignore[union-attr]


def test_a_call_that_is_cut_off_runs_nothing(speaker: Running) -> None:
    """Neither a part of a command, nor arguments of another form."""
    for name, empty, status in (
        ("local_shell", {"type": "exec", "command": [], "env": {}}, "incomplete"),
        ("shell", {"commands": []}, "incomplete"),
        ("apply_patch", {"type": "update_file", "path": "", "diff": ""}, "in_progress"),
    ):
        arguments = next(case[1] for case in CASES if case[0] == name)
        whole = called(name, arguments)
        ask: dict[str, Any] = {"tools": [TOOLS[name]]}
        size = speaker.post("/v1/responses", input=whole, **ask).json()["usage"]["output_tokens"]
        for text, most in ((whole, size - 20), (called(name, {"command": "ls"}), None)):
            answer = speaker.post("/v1/responses", input=text, max_output_tokens=most, **ask).json()
            call = answer["output"][-1]
            assert answer["status"] == ("completed" if most is None else "incomplete")
            assert call["type"] == f"{name}_call" and call["status"] == status
            assert call.get("action", call.get("operation")) == empty


def test_a_search_brings_tools_into_the_prompt(speaker: Running) -> None:
    """Deferred tools are not there before, and a call of what was found has its namespace."""
    deferred = {**SPAWN, "name": "later", "defer_loading": True}
    tools = [SEARCH, {**SPAWN, "name": "now"}, deferred, {**AGENTS, "name": "far"}]
    tools[3] = {**tools[3], "tools": [{**SPAWN, "defer_loading": True}]}
    search = called("tool_search", {"query": "x"})
    first = speaker.post("/v1/responses", input=search, tools=tools).json()
    text, call = first["output"]
    assert text["content"][0]["text"].split() == ["tool_search", "now"]
    assert first["tools"][2]["defer_loading"] is True
    found = [{**AGENTS, "tools": [{**SPAWN, "defer_loading": True}]}, deferred]
    output = {"type": "tool_search_output", "execution": "client", "call_id": call["call_id"]}
    output["tools"] = found  # type: ignore[assignment]
    asks = [{**user(called("agents__spawn", {"a": 1})), "type": "message"}]
    for more in (
        {"input": [user(search), call, output, *asks]},
        {"input": [output, *asks], "previous_response_id": first["id"]},
    ):
        answer = speaker.post("/v1/responses", tools=tools, **more).json()
        text, spawned = answer["output"]
        assert text["content"][0]["text"].startswith("tool_search now agents__spawn later ")
        assert (spawned["namespace"], spawned["name"]) == ("agents", "spawn")
    # What was found before is known in later turns, also by its name in tool_choice.
    later = {"input": "hi", "previous_response_id": answer["id"], "tools": tools}
    choice = {"type": "function", "namespace": "agents", "name": "spawn"}
    refused = speaker.post("/v1/responses", tool_choice=choice, **later)
    assert "tool_choice: constraining calls" in refused.json()["error"]["message"], refused.text


def test_without_a_search_of_the_client_nothing_is_deferred(lenient: Running) -> None:
    tools = [{"type": "tool_search"}, {**SPAWN, "defer_loading": True}]
    answer = lenient.post("/v1/responses", input="hi", tools=tools)
    assert answer.json()["output"][0]["content"][0]["text"] == "spawn hi"
    assert answer.headers["x-ostro-ignored"] == "tools of the type tool_search"


@pytest.fixture(scope="module")
def lenient(start: Start) -> Running:
    """A server as `ostro serve` starts it: what it does not know is ignored."""
    return start(template=TEMPLATE, strict_fields=False)


def test_the_model_reads_of_skills_and_of_the_search(server: Running) -> None:
    skills = [{"name": "pdf", "description": "Reads PDF files.", "path": "/skills/pdf"}]
    shell = {**SHELL, "environment": {"type": "local", "skills": skills}}
    parameters = {"type": "object", "properties": {"goal": {"type": "string"}}}
    search = {**SEARCH, "description": "Finds tools for e-mail.", "parameters": parameters}
    answer = server.post("/v1/responses", input="hi", tools=[shell, search])
    [text] = answer.json()["output"][0]["content"]
    for words in ("- pdf: Reads PDF files. (/skills/pdf)", "Finds tools for e-mail.", '"goal"'):
        assert words in text["text"]
    assert answer.json()["tools"][0] == shell


@pytest.fixture(scope="module")
def server(start: Start) -> Running:
    """A server that answers with the declarations of its tools."""
    return start(template="{{ tools | tojson }}")


@pytest.mark.parametrize(
    ("tools", "choice", "param"),
    [
        ([SHELL, {**SPAWN, "name": "shell"}], "auto", "tools[1]"),
        ([SHELL], {"type": "apply_patch"}, "tool_choice"),
        ([{**SHELL, "environment": {"type": "moon"}}], "auto", "tools[0].environment.type"),
        ([{**SEARCH, "parameters": 5}], "auto", "tools[0].parameters"),
    ],
)
def test_malformed_tools(server: Running, tools: Any, choice: Any, param: str) -> None:
    answer = server.post("/v1/responses", input="hi", tools=tools, tool_choice=choice)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


@pytest.mark.parametrize("name", ["local_shell", "shell", "apply_patch"])
@pytest.mark.process
def test_a_call_that_has_to_come_follows_the_schema(random_server: Any, name: str) -> None:
    """Of a model that draws its tokens at random."""
    choices: list[Any] = ["required", {"type": name}]
    choices.append({"type": "allowed_tools", "mode": "required", "tools": [{"type": name}]})
    for seed, choice in enumerate(choices):
        tools = [TOOLS[name]] if choice == "required" else [TOOLS[name], SPAWN, SEARCH]
        body = {"input": "hi", "tools": tools, "tool_choice": choice, "seed": seed}
        answer = random_server.post(
            "/v1/responses", model="default", temperature=2, max_output_tokens=600, **body
        ).json()
        calls = [item for item in answer["output"] if item["type"] == f"{name}_call"]
        for call in calls[: len(calls) - (answer["status"] == "incomplete")]:
            assert call["status"] == "completed", call
        assert calls and {item["type"] for item in answer["output"]} <= {f"{name}_call"}
