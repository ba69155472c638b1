"""Anthropic's typed tools that the client runs: bash, text editor, memory and computer."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import anthropic
import httpx
import msgspec
import pytest
from anthropic.lib.tools import BetaAbstractMemoryTool
from anthropic.types.beta import BetaToolUnionParam
from echo.server import Running, Start, make_state, wait_until
from tiny.grammars import Walker, vocabulary

from ostro.pipelines import Tool
from ostro.plugins.apis.anthropic.client_tools import CLIENT_TOOLS
from ostro.plugins.apis.anthropic.conversation import chat_request
from ostro.plugins.apis.anthropic.schema import CountTokensRequest

TEMPLATE = (
    '{% if false %}<tool_call>{"name": "f", "arguments": {}}</tool_call>{% endif %}'
    "{% if messages[-1].content == 'show' %}{% for tool in tools or [] %}{{ tool | tojson }}"
    "{% endfor %}{% else %}{{ messages[-1].content }}{% endif %}"
)
"""The answer of the echo engine: the last message, or the tools if that is "show"."""
MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
DISPLAY = {"display_width_px": 1024, "display_height_px": 768}
REPLACE = {"command": "str_replace", "path": "/a", "old_str": "x", "new_str": ""}
EDITS: list[dict[str, Any]] = [
    {"command": "view", "path": "/a"},
    {"command": "view", "path": "/a", "view_range": [2, -1]},
    {"command": "create", "path": "/a", "file_text": 'print("ö")\n'},
    REPLACE,
]
UNDO = {"command": "undo_edit", "path": "/a"}
OLD_INSERT = {"command": "insert", "path": "/a", "insert_line": 0, "new_str": "x"}
INSERT = {"command": "insert", "path": "/a", "insert_line": 0, "insert_text": "x"}
SHELL: list[dict[str, Any]] = [{"command": "ls -l"}, {"restart": True}]
MEMORY: list[dict[str, Any]] = [
    *EDITS,
    INSERT,
    {"command": "delete", "path": "/memories/a"},
    {"command": "rename", "old_path": "/memories/a", "new_path": "/memories/b"},
]
FIRST_ACTIONS: list[dict[str, Any]] = [
    {"action": "key", "text": "ctrl+s"},
    {"action": "type", "text": "hello"},
    {"action": "mouse_move", "coordinate": [0, 767]},
    {"action": "left_click"},
    {"action": "left_click_drag", "coordinate": [3, 4]},
    {"action": "right_click"},
    {"action": "middle_click"},
    {"action": "double_click"},
    {"action": "screenshot"},
    {"action": "cursor_position"},
]
LATER_ACTIONS: list[dict[str, Any]] = [
    {"action": "left_click", "coordinate": [3, 4], "text": "shift"},
    {"action": "left_click_drag", "coordinate": [5, 6], "start_coordinate": [3, 4]},
    {"action": "left_mouse_down"},
    {"action": "left_mouse_up"},
    {
        "action": "scroll",
        "coordinate": [3, 4],
        "scroll_direction": "down",
        "scroll_amount": 3,
    },
    {"action": "hold_key", "text": "space", "duration": 2},
    {"action": "wait", "duration": 0.5},
    {"action": "triple_click", "coordinate": [3, 4]},
]
ZOOM = {"action": "zoom", "region": [0, 0, 100, 200]}
EDITOR, BASED_EDITOR = "str_replace_editor", "str_replace_based_edit_tool"
GOOD: Mapping[str, tuple[str, dict[str, Any], list[dict[str, Any]]]] = {
    "bash_20241022": ("bash", {}, SHELL),
    "bash_20250124": ("bash", {}, SHELL),
    "text_editor_20241022": (EDITOR, {}, [*EDITS, OLD_INSERT, UNDO]),
    "text_editor_20250124": (EDITOR, {}, [*EDITS, OLD_INSERT, UNDO]),
    "text_editor_20250429": (BASED_EDITOR, {}, [*EDITS, OLD_INSERT]),
    "text_editor_20250728": (BASED_EDITOR, {"max_characters": 900}, [*EDITS, INSERT]),
    "memory_20250818": ("memory", {}, MEMORY),
    "computer_20241022": ("computer", {**DISPLAY, "display_number": 1}, FIRST_ACTIONS),
    "computer_20250124": ("computer", DISPLAY, FIRST_ACTIONS + LATER_ACTIONS),
    "computer_20251124": (
        "computer",
        {**DISPLAY, "enable_zoom": True},
        [*FIRST_ACTIONS, *LATER_ACTIONS, ZOOM],
    ),
}
"""The name, the fields of a declaration, and the inputs of each type."""
WRONG: Mapping[str, list[dict[str, Any]]] = {
    "bash_20241022": [{"command": 1}, {"restart": "yes"}, {"command": "ls", "timeout": 1}],
    "bash_20250124": [{"command": 1}, {"restart": "yes"}, {"command": "ls", "timeout": 1}],
    "text_editor_20241022": [INSERT, {"command": "view"}, {"command": "delete", "path": "/a"}],
    "text_editor_20250124": [INSERT, {"command": "view"}, {"path": "/a"}],
    "text_editor_20250429": [INSERT, UNDO, {"command": "view", "path": "/a", "view_range": [1]}],
    "text_editor_20250728": [UNDO, {"command": "view", "path": "/a", "view_range": [1, 2, 3]}],
    "memory_20250818": [UNDO, {"path": "/a"}, {"command": "rename", "path": 1}],
    "computer_20241022": [{"action": "scroll"}, {"action": "key", "duration": 1}, {"text": "a"}],
    "computer_20250124": [ZOOM, {"action": "wait", "duration": "1"}, {"action": "fly"}],
    "computer_20251124": [
        {"action": "mouse_move", "coordinate": [1]},
        {"action": "mouse_move", "coordinate": [-1, 1]},
        {"action": "zoom", "region": [1, 2]},
        {"action": "scroll", "scroll_direction": "in"},
    ],
}
CALLS = [
    pytest.param(kind, given, id=f"{kind} {i}")
    for kind, (_, _, inputs) in GOOD.items()
    for i, given in enumerate(inputs)
]


@pytest.fixture(scope="module")
def server(start: Start) -> Running:
    """A server as `ostro serve` starts it: unknown fields are ignored."""
    return start(template=TEMPLATE, strict_fields=False)


@pytest.fixture(scope="module")
def strict(start: Start) -> Running:
    """A server that refuses unknown fields."""
    return start(template=TEMPLATE)


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=server.url, api_key="none", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


def declared(kind: str, **fields: Any) -> dict[str, Any]:
    """The declaration of a tool."""
    name, options, _ = GOOD[kind]
    return {"type": kind, "name": name, **options, **fields}


def without(name: str, tool: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in tool.items() if key != name}


def ask(server: Running, *tools: Any, text: str = "show", **fields: Any) -> httpx.Response:
    """Post a request with tools."""
    body = {"model": "echo", "max_tokens": 900, "tools": tools, **fields}
    body.setdefault("messages", [{"role": "user", "content": text}])
    return server.http.post(MESSAGES, json=body, headers={"anthropic-version": "2023-06-01"})


def shown(server: Running) -> str:
    """The tools in the last prompt of the engine."""
    return bytes(token for token in server.echo.seen[-1].tokens if token < 256).decode()


def written(name: str, given: dict[str, Any]) -> str:
    """A call as the model writes it."""
    call = json.dumps({"name": name, "arguments": given}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def tool_of(**declaration: Any) -> Tool:
    """The tool that the model gets for a declaration."""
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}], "tools": [declaration]}
    [tool] = chat_request(msgspec.convert(body, CountTokensRequest)).tools
    return tool


@pytest.mark.parametrize("kind", GOOD)
def test_the_model_gets_a_name_a_description_and_a_flat_schema(server: Running, kind: str) -> None:
    answer = ask(server, declared(kind))
    assert answer.status_code == 200, answer.text
    assert "x-ostro-ignored" not in answer.headers
    function = json.loads(shown(server))["function"]
    assert function["name"] == GOOD[kind][0] and len(function["description"]) > 20
    schema = function["parameters"]
    assert schema.keys() == {"type", "properties", "required", "additionalProperties"}
    assert schema["type"] == "object" and schema["additionalProperties"] is False
    for each in schema["properties"].values():
        assert isinstance(each["type"], str) and each["description"]


@pytest.mark.parametrize(("kind", "given"), CALLS)
def test_a_call_is_a_tool_use_block(server: Running, kind: str, given: dict[str, Any]) -> None:
    name = GOOD[kind][0]
    answer = ask(server, declared(kind), text=written(name, given))
    [block] = answer.json()["content"]
    assert (block["type"], block["name"], block["input"]) == ("tool_use", name, given)
    assert answer.json()["stop_reason"] == "tool_use"


@pytest.mark.parametrize("kind", GOOD)
def test_the_schema_of_a_strict_tool(kind: str) -> None:
    tool = tool_of(**declared(kind, strict=True))
    assert tool.strict
    walker = Walker({"json_schema": dict(tool.parameters)}, vocabulary())
    for given in GOOD[kind][2]:
        assert walker.accepts_json(given), given
    assert WRONG[kind]
    for given in WRONG[kind]:
        assert not walker.accepts_json(given), given


def test_a_strict_tool_and_a_choice_constrain_the_output(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def grammar(*tools: Any, **fields: Any) -> str:
        answer = ask(server, *tools, **fields)
        assert answer.status_code == 200, answer.text
        return str(server.echo.seen[-1].sampling.processors["grammar"])

    text: Any = server.service.models["echo"]["text"]
    monkeypatch.setattr(text, "model", replace(text.model, processors=frozenset({"grammar"})))
    assert "view_range" in grammar(declared("text_editor_20250728", strict=True))
    tools = declared("bash_20250124"), declared("memory_20250818")
    chosen = grammar(*tools, tool_choice={"type": "tool", "name": "bash"})
    assert "restart" in chosen and "file_text" not in chosen


def test_every_version_of_the_client_is_known() -> None:
    found = {}
    for each in typing.get_args(BetaToolUnionParam):
        hints = typing.get_type_hints(each)
        [kind, *_] = typing.get_args(hints.get("type")) or [""]
        if str(kind).startswith(("bash_", "text_editor_", "memory_", "computer_2")):
            found[kind] = (*typing.get_args(hints["name"]), {*hints} - COMMON)
    assert found == {k: (tool.name, {*tool.options}) for k, tool in CLIENT_TOOLS.items()}
    assert found.keys() == GOOD.keys()


COMMON = frozenset(
    "name type allowed_callers cache_control defer_loading input_examples strict".split()
)
"""The fields of all declarations."""


class Notes(BetaAbstractMemoryTool):
    """The memory tool of the client, which keeps its commands."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def keep(self, command: Any) -> str:
        self.seen.append(command)
        return f"done: {command.command}"

    view = create = str_replace = insert = delete = rename = keep


@pytest.mark.parametrize("given", MEMORY)
def test_the_memory_tool_of_the_client_runs(
    client: anthropic.Anthropic, given: dict[str, Any]
) -> None:
    notes = Notes()
    run = client.beta.messages.tool_runner(
        model="echo",
        max_tokens=4000,
        messages=[{"role": "user", "content": written("memory", given)}],
        tools=[notes],
    )
    [block] = run.until_done().content
    assert block.type == "text" and block.text == f"done: {given['command']}"
    [command] = notes.seen
    assert command.to_dict() == given


@pytest.mark.parametrize("kind", GOOD)
def test_the_client_declares_and_streams(client: anthropic.Anthropic, kind: str) -> None:
    name, _, inputs = GOOD[kind]
    tool: Any = declared(kind)
    message: Any = {"role": "user", "content": written(name, inputs[0])}
    with client.beta.messages.stream(
        model="echo", max_tokens=4000, messages=[message], tools=[tool]
    ) as stream:
        [block] = stream.get_final_message().content
    assert block.type == "tool_use" and (block.name, block.input) == (name, inputs[0])


def test_the_declaration_is_in_the_description() -> None:
    def described(kind: str, **fields: Any) -> str:
        return tool_of(**{**declared(kind), **fields}).description or ""

    for kind in ("computer_20241022", "computer_20250124", "computer_20251124"):
        assert "1024" in described(kind) and "768" in described(kind)
    assert "display :7" in described("computer_20250124", display_number=7)
    assert "display :0" in described("computer_20250124", display_number=0)
    assert "display :" not in described("computer_20250124")
    assert "900 characters" in described("text_editor_20250728")
    assert "characters" not in described("text_editor_20250728", max_characters=None)


@pytest.mark.parametrize("given", [False, None])
def test_zoom_is_an_action_only_if_it_is_enabled(given: bool | None) -> None:
    parameters = tool_of(**declared("computer_20251124", enable_zoom=given)).parameters
    assert "region" not in parameters["properties"]
    assert "zoom" not in str(parameters)
    assert "zoom" in str(tool_of(**declared("computer_20251124")).parameters)


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    (declared("bash_20250124", name="shell"), "tools[0].name", "'bash'"),
    (declared("text_editor_20250728", name=EDITOR), "tools[0].name", BASED_EDITOR),
    (declared("memory_20250818", input_schema={}), "tools[0].input_schema", "memory_20250818"),
    (without("display_width_px", declared("computer_20250124")), "tools[0].display_width_px", ""),
    (without("display_height_px", declared("computer_20241022")), "tools[0].display_height_px", ""),
    (declared("computer_20241022", display_width_px=0), "tools[0].display_width_px", ""),
    (declared("text_editor_20250728", max_characters="9"), "tools[0].max_characters", ""),
    (
        {"type": "bash_20990101", "name": "bash"},
        "'bash_20990101'",
        "bash_20241022 or bash_20250124",
    ),
    ({"type": "memory_1", "name": "memory"}, "'memory_1'", "memory_20250818"),
    ({"type": "computer_toolset_20260801", "name": "c"}, "tools[0].type", "computer_20251124"),
    ({"type": "text_editor_20250728x", "name": "t"}, "tools[0].type", "text_editor_20241022"),
]


@pytest.mark.parametrize(("tool", "place", "word"), REFUSED)
def test_bad_declarations_are_refused_by_name(
    server: Running, tool: dict[str, Any], place: str, word: str
) -> None:
    answer = ask(server, tool)
    assert answer.status_code == 400, answer.text
    message = answer.json()["error"]["message"]
    assert place in message and word in message


CUSTOM = {"name": "f", "input_schema": {"type": "object"}}
STRANGE: list[tuple[dict[str, Any], str]] = [
    ({**CUSTOM, "max_characters": 9}, "max_characters"),
    ({**CUSTOM, "type": "custom", "display_width_px": 9}, "display_width_px"),
    (declared("text_editor_20250429", max_characters=9), "max_characters"),
    (declared("computer_20250124", enable_zoom=True), "enable_zoom"),
    (declared("bash_20250124", display_number=0), "display_number"),
    (declared("bash_20250124", description="Runs programs."), "description"),
    (declared("bash_20250124", eager_input_streaming=True), "eager_input_streaming"),
]


@pytest.mark.parametrize(("tool", "name"), STRANGE)
def test_a_field_of_other_types_is_an_unknown_field(
    server: Running, strict: Running, tool: dict[str, Any], name: str
) -> None:
    answer = ask(server, tool)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-ostro-ignored"] == f"tools[].{name}"
    assert "Runs programs." not in shown(server)
    assert "zoom" not in shown(server)
    refused = ask(strict, tool)
    assert refused.status_code == 400 and f"unknown field 'tools[0].{name}'" in refused.text
    assert ask(strict, without(name, tool)).status_code == 200


def test_fields_of_custom_tools(strict: Running) -> None:
    shared = {
        "cache_control": {"type": "ephemeral"},
        "allowed_callers": ["direct"],
        "input_examples": [{"command": "uname -a"}],
        "strict": False,
    }
    answer = ask(strict, declared("bash_20250124", **shared))
    assert answer.status_code == 200, answer.text
    assert "uname" not in shown(strict)
    code = declared("bash_20250124", allowed_callers=["code_execution_20250825"])
    refused = ask(strict, code)
    assert refused.status_code == 400 and "allowed_callers" in refused.text


def test_a_deferred_tool_and_cleared_results(server: Running) -> None:
    deferred = declared("memory_20250818", defer_loading=True)
    assert ask(server, deferred, declared("bash_20250124")).status_code == 200
    assert '"bash"' in shown(server) and '"memory"' not in shown(server)
    call = {"type": "tool_use", "id": "c", "name": "bash", "input": {"command": "ls"}}
    named = [{"type": "tool_reference", "tool_name": "memory"}]
    result = {"type": "tool_result", "tool_use_id": "c", "content": named}
    talk = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": "show"},
    ]
    tools = deferred, declared("bash_20250124")
    assert ask(server, *tools, messages=talk).status_code == 200
    assert '"bash"' in shown(server) and '"memory"' in shown(server)
    edit = {"type": "clear_tool_uses_20250919", "keep": {"type": "tool_uses", "value": 0}}
    edit["trigger"] = {"type": "input_tokens", "value": 1}
    for excluded, count in (([], 1), (["bash"], 0)):
        edits = {"edits": [{**edit, "exclude_tools": excluded}]}
        answer = ask(server, *tools, messages=talk, context_management=edits).json()
        assert len(answer["context_management"]["applied_edits"]) == count


def test_tokens_are_counted(server: Running) -> None:
    def count(*tools: Any) -> int:
        body = {"model": "echo", "messages": [{"role": "user", "content": "show"}], "tools": tools}
        return int(server.http.post(COUNT, json=body).json()["input_tokens"])

    assert ask(server, declared("bash_20250124")).status_code == 200
    assert count(declared("bash_20250124")) - count() == len(shown(server).encode())


def test_a_batch_has_typed_tools(start: Start) -> None:
    server = start(template=TEMPLATE, strict_fields=False, state=make_state("memory"))
    given = {"command": "ls"}
    params = {
        "model": "echo",
        "max_tokens": 400,
        "messages": [{"role": "user", "content": written("bash", given)}],
        "tools": [declared("bash_20250124")],
    }
    bad = {**params, "tools": [declared("bash_20250124", name="shell")]}
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        requests: Any = [
            {"custom_id": "a", "params": params},
            {"custom_id": "b", "params": bad},
        ]
        made = client.messages.batches.create(requests=requests)
        batches = client.messages.batches
        wait_until(lambda: batches.retrieve(made.id).processing_status == "ended")
        first, second = batches.results(made.id)
    assert first.result.type == "succeeded"
    [block] = first.result.message.content
    assert block.type == "tool_use" and block.input == given
    assert second.result.type == "errored"
    assert "tools[0].name" in second.result.error.error.message
