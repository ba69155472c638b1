"""Responses and conversations over HTTP, with the official client."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec
import openai
import pytest
from echo.server import LOGPROBS, Running, Start, make_client, make_state, user
from openai.types.responses import ResponseIncludable

from ostro.entrypoints.api.openai.responses.chat import chat_messages
from ostro.entrypoints.api.openai.responses.items import Item, ReasoningItem, read_items

FUNCTION = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
FUNCTION_CHOICE = {"type": "function", "name": "weather"}
SPAWN: dict[str, Any] = {
    "type": "function",
    "name": "spawn",
    "description": "Starts an agent.",
    "parameters": {"type": "object", "properties": {"task": {"type": "string"}}},
}
AGENTS: dict[str, Any] = {
    "type": "namespace",
    "name": "agents",
    "description": "Other agents.",
    "tools": [SPAWN],
}
JOINED = {**SPAWN, "name": "agents__spawn"}
UNSUMMARIZED = {"effort": "low", "summary": None, "generate_summary": None}
TEMPLATE = (
    "{% if tools %}{% endif %}{% if false %}<tool_call>"
    '{"name": "f", "arguments": {}}</tool_call>{% endif %}'
    "{% for m in messages %}{% for c in m.tool_calls or () %}({{ c.function.name }}){% endfor %}"
    "{% endfor %}{{ messages[-1].content }}"
)
"""The echo engine answers with the prompt: names of earlier calls, and the last message."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store") / "state"


@pytest.fixture(scope="module")
def server(start: Start, folder: Path) -> Running:
    return start(state=make_state(str(folder)))


@pytest.fixture(scope="module")
def lenient(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Running:
    """A server as `ostro serve` starts it: what it does not know is ignored."""
    folder = tmp_path_factory.mktemp("lenient") / "state"
    return start(state=make_state(str(folder)), strict_fields=False)


@pytest.fixture(scope="module")
def speaker(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Running:
    """A server that finds reasoning and calls in what it answers."""
    folder = tmp_path_factory.mktemp("speaker") / "state"
    return start(state=make_state(str(folder)), template=TEMPLATE)


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with make_client(server) as found:
        yield found


def test_a_response_has_the_text_of_a_chat_completion(
    server: Running, client: openai.OpenAI
) -> None:
    found = client.responses.create(model="echo", input="Where is Rome?", instructions="Be short.")
    messages = [{"role": "system", "content": "Be short."}, user("Where is Rome?")]
    chat = client.chat.completions.create(model="echo", messages=messages)  # type: ignore[arg-type]
    assert found.output_text == chat.choices[0].message.content
    assert (found.status, found.model, found.object) == ("completed", "echo", "response")
    assert found.usage is not None and chat.usage is not None
    assert found.usage.input_tokens == chat.usage.prompt_tokens
    assert found.usage.output_tokens == chat.usage.completion_tokens
    assert found.instructions == "Be short." and found.completed_at is not None


def test_sampling_reaches_the_engine(server: Running) -> None:
    body = {"input": "hi", "seed": 7, "top_k": 3, "cache_salt": "a", "temperature": 0.5}
    assert server.post("/v1/responses", **body).status_code == 200
    found = server.echo.seen[-1]
    assert (found.sampling.seed, found.sampling.top_k, found.salt) == (7, 3, "a")
    refused = server.post("/v1/responses", **{**body, "top_k": "3"})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "top_k"


def test_fields_are_echoed(client: openai.OpenAI) -> None:
    given: dict[str, Any] = {
        "metadata": {"a": "b"},
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 5,
        "max_tool_calls": 3,
        "parallel_tool_calls": True,
        "truncation": "auto",
        "user": "u",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "reasoning": {"effort": "low", "summary": "auto"},
        "tools": [FUNCTION, AGENTS],
        "tool_choice": "auto",
        "top_logprobs": 1,
    }
    options = {"mode": "explicit", "ttl": "12h"}
    found = client.responses.create(
        model="echo",
        input="hi",
        service_tier="auto",
        include=LOGPROBS,
        prompt_cache_options=options,  # type: ignore[arg-type]
        **given,
    )
    sent = found.model_dump(exclude_unset=True)
    tool, space = sent["tools"]
    assert {name: tool[name] for name in FUNCTION} == FUNCTION
    assert {**space, "tools": [{name: space["tools"][0][name] for name in SPAWN}]} == AGENTS
    for name in given.keys() - {"tools"}:
        assert sent[name] == (given[name] if name != "reasoning" else UNSUMMARIZED), name
    assert sent["prompt_cache_options"] == options and sent["service_tier"] == "default"
    assert found.status == "incomplete" and found.incomplete_details is not None
    assert found.incomplete_details.reason == "max_output_tokens"
    message: Any = found.output[0]
    assert message.status == "incomplete" and len(message.content[0].logprobs) == 5
    assert len(message.content[0].logprobs[0].top_logprobs) == 1


def test_the_bytes_of_tokens_are_those_of_the_text(client: openai.OpenAI) -> None:
    found: Any = client.responses.create(model="echo", input="\U0001f600", include=LOGPROBS)
    entries = found.output[0].content[0].logprobs
    written = b"".join(bytes(x.bytes) for x in entries if not x.token.startswith("<|"))
    assert "\U0001f600" in found.output_text and written == found.output_text.encode()


def test_the_stream_has_every_event_in_order(client: openai.OpenAI) -> None:
    events: list[Any] = [
        *client.responses.create(
            model="echo", input="abc", stream=True, include=LOGPROBS, max_output_tokens=4
        )
    ]
    assert [event.sequence_number for event in events] == [*range(len(events))]
    kinds = list(dict.fromkeys(event.type for event in events))
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    text = "".join(event.delta for event in deltas)
    assert events[-1].response.output_text == text == events[-4].text
    assert sum(len(event.logprobs) for event in deltas) == 4
    assert events[0].response.id == events[-1].response.id
    assert client.responses.retrieve(events[0].response.id) == events[-1].response


def test_a_stream_is_replayed_from_any_event(server: Running, client: openai.OpenAI) -> None:
    events = [*client.responses.create(model="echo", input="abc", stream=True)]
    id = events[0].response.id  # type: ignore[union-attr]
    for after in (None, 0, 4, len(events) - 2, len(events) - 1, 10**6):
        more: Any = {} if after is None else {"starting_after": after}
        again = [*client.responses.retrieve(id, stream=True, **more)]
        assert again == events[0 if after is None else after + 1 :]
    whole = client.responses.create(model="echo", input="abc")
    for query, param in (("stream=true", "stream"), ("starting_after=3", "starting_after")):
        response = server.http.get(f"/v1/responses/{whole.id}?{query}")
        assert response.status_code == 400 and response.json()["error"]["param"] == param
    client.responses.delete(id)
    assert server.http.get(f"/v1/responses/{id}?stream=true&starting_after=2").status_code == 404


def test_ten_turns_are_those_of_one_list_of_messages(
    server: Running, client: openai.OpenAI
) -> None:
    messages: list[Any] = []
    previous: str | None = None
    for turn in range(10):
        messages.append(user(f"turn {turn}"))
        found = client.responses.create(
            model="echo", input=f"turn {turn}", previous_response_id=previous, max_output_tokens=8
        )
        prompt = server.echo.seen[-1].tokens
        assert found.previous_response_id == previous
        previous = found.id
        chat = client.chat.completions.create(model="echo", messages=messages, max_tokens=8)
        assert server.echo.seen[-1].tokens == prompt
        assert chat.choices[0].message.content == found.output_text
        messages.append({"role": "assistant", "content": found.output_text})


def test_items_become_the_messages_that_a_chat_would_have(
    server: Running, client: openai.OpenAI
) -> None:
    first = client.responses.create(model="echo", input=[user("one")])  # type: ignore[list-item]
    items: Any = [
        {"type": "message", "role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "input_text", "text": "one"}]},
        *[item.model_dump() for item in first.output],
        {"role": "assistant", "content": "yes"},
        user("two"),
    ]
    client.responses.create(model="echo", input=items)
    prompt = server.echo.seen[-1].tokens
    messages: Any = [
        {"role": "developer", "content": "Be kind."},
        user("one"),
        {"role": "assistant", "content": first.output_text},
        {"role": "assistant", "content": "yes"},
        user("two"),
    ]
    client.chat.completions.create(model="echo", messages=messages)
    assert server.echo.seen[-1].tokens == prompt


def test_input_items_are_listed(client: openai.OpenAI, server: Running) -> None:
    given: Any = [user(f"text {i}") for i in range(5)]
    found = client.responses.create(model="echo", input=given)
    page = client.responses.input_items.list(found.id, limit=2, order="asc")
    assert page.has_more and len(page.data) == 2
    items: list[Any] = [*page]
    assert [item.content[0].text for item in items] == [f"text {i}" for i in range(5)]
    newest = [*client.responses.input_items.list(found.id)]
    assert newest == items[::-1]
    rest = client.responses.input_items.list(found.id, after=items[1].id, order="asc")
    assert [*rest] == items[2:]
    for query in ("after=banana", "limit=0", "limit=x", "order=up", "include[]=banana"):
        response = server.http.get(f"/v1/responses/{found.id}/input_items?{query}")
        assert response.status_code == 400, query


def test_a_deleted_response_is_gone(client: openai.OpenAI, folder: Path) -> None:
    found = client.responses.create(model="echo", input="zebra-4711")
    client.responses.delete(found.id)
    for method in (
        client.responses.retrieve,
        client.responses.delete,
        client.responses.input_items.list,
    ):
        with pytest.raises(openai.NotFoundError) as caught:
            method(found.id)
        assert caught.value.code == "not_found"
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="echo", input="x", previous_response_id=found.id)
    stored = b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())
    assert b"zebra-4711" not in stored


def test_a_response_that_is_not_stored_leaves_nothing(client: openai.OpenAI, folder: Path) -> None:
    found = client.responses.create(model="echo", input="zebra-4712", store=False)
    *_, last = client.responses.create(model="echo", input="zebra-4712", store=False, stream=True)
    for id in (found.id, last.response.id):  # type: ignore[union-attr]
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(id)
    stored = b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())
    assert b"zebra-4712" not in stored


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": None}, "input", "invalid_request_error"),
        ({"input": []}, "input", "invalid_request_error"),
        ({"input": 5}, "input", "invalid_request_error"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role", None),
        ({"input": [{"type": "computer_call", "id": "x"}]}, "input[0].type", "unsupported"),
        ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input[0].type", None),
        (
            {"input": [{"type": "tool_search_call", "execution": "client", "arguments": {}}]},
            "input[0].call_id",
            "invalid_request_error",
        ),
        ({"input": [{"type": "local_shell_call_output", "output": "x"}]}, "input[0].call_id", None),
        ({"input": [{"role": "user", "content": [{"type": "banana"}]}]}, None, None),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input", None),
        (
            {"input": [{"role": "user", "content": [{"type": "output_text", "text": "x"}]}]},
            "input[0].content",
            None,
        ),
        ({"tools": [{"type": "computer_use"}]}, "tools[0]", "unsupported"),
        ({"tools": [{**AGENTS, "tools": [{"type": "shell"}]}]}, "tools[0].tools[0]", "unsupported"),
        (
            {"tools": [{"type": "shell", "environment": {"type": "container_auto"}}]},
            "tools[0]",
            "unsupported",
        ),
        ({"tools": [{"type": None}]}, "tools[0]", "unsupported"),
        ({"tools": [5]}, "tools[0]", "invalid_request_error"),
        ({"tools": [FUNCTION, {"type": "function"}]}, "tools[1].name", None),
        ({"tools": [{**AGENTS, "tools": [AGENTS]}]}, "tools[0].tools[0]", "unsupported"),
        ({"tools": [{**AGENTS, "tools": None}]}, "tools[0].tools", None),
        ({"tools": [SPAWN, AGENTS, {**SPAWN, "name": "agents__spawn"}]}, "tools[2]", None),
        ({"tools": [AGENTS, SPAWN, SPAWN]}, "tools[2]", "invalid_request_error"),
        ({"tools": [FUNCTION, {**AGENTS, "name": "a b"}]}, "tools[1].tools[0].name", None),
        (
            {"tools": [{**AGENTS, "tools": [{**SPAWN, "parameters": 5}]}]},
            "tools[0].tools[0].parameters",
            None,
        ),
        ({"tools": [{**FUNCTION, "strict": True}]}, "tools[0].strict", "unsupported"),
        ({"tool_choice": "required"}, "tool_choice", None),
        ({"tools": [FUNCTION], "tool_choice": "required"}, "tool_choice", "unsupported"),
        ({"tool_choice": {"type": "function", "name": "weather"}}, "tool_choice", None),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice", "unsupported"),
        (
            {"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}},
            "tool_choice",
            "unsupported",
        ),
        (
            {
                "tools": [FUNCTION, {"type": "mcp", "server_label": "x"}],
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "auto",
                    "tools": [FUNCTION_CHOICE, {"type": "mcp", "server_label": "x"}],
                },
            },
            "tool_choice",
            "unsupported",
        ),
        ({"tools": [{"type": "mcp"}], "tool_choice": "required"}, "tools[0]", "unsupported"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema", None),
        ({"text": {"format": {"schema": {}}}}, "text.format.schema", None),
        ({"text": {"format": {"type": "banana"}}}, "text.format.type", None),
        ({"prompt": {"id": "pmpt_1"}}, "prompt", "unsupported"),
        ({"moderation": {"model": "m"}}, "moderation", "unsupported"),
        ({"context_management": [{"type": "compaction"}]}, "context_management", "unsupported"),
        ({"service_tier": "priority"}, "service_tier", None),
        ({"truncation": "banana"}, "truncation", None),
        ({"reasoning": {"effort": "banana"}}, "reasoning.effort", None),
        ({"reasoning": {"summary": "banana"}}, "reasoning.summary", None),
        ({"max_output_tokens": 0}, "max_output_tokens", None),
        ({"max_output_tokens": 2**31 + 1}, "max_output_tokens", None),
        ({"temperature": -1}, "temperature", None),
        ({"top_logprobs": 3}, "top_logprobs", None),
        ({"top_logprobs": 21, "include": LOGPROBS}, "top_logprobs", None),
        ({"stream_options": {}}, "stream_options", None),
        ({"stream_options": {"include_obfuscation": True}, "stream": True}, None, None),
        ({"store": False, "background": True}, "store", None),
        ({"previous_response_id": "resp_1", "conversation": "c"}, "previous_response_id", None),
        ({"metadata": {"k" * 65: "v"}}, None, None),
        ({"client_metadata": 5}, "client_metadata", None),
    ],
)
def test_invalid_requests_are_refused_by_name(
    server: Running, fields: dict[str, Any], param: str | None, code: str | None
) -> None:
    response = server.post("/v1/responses", **{"input": "hi", **fields})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    if param is not None:
        assert error["param"] == param, error
    if code is not None:
        assert error["code"] == code, error
    assert server.post("/v1/responses", input="hi", max_output_tokens=1).status_code == 200


@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        (
            {"input": [user([{"type": "input_file", "file_url": "http://a/b"}])]},
            "input[0].content[0].file_url: a file by its address is not supported; use file_data "
            "or file_id",
            "input[0].content[0].file_url",
        ),
        (
            {"input": [user([{"type": "input_file", "file_data": "x"}])]},
            "input: file_data is not base64",
            "input",
        ),
        (
            {"input": [user([{"type": "input_file", "file_id": "file-1"}])]},
            "input: there is no 'file-1'; it may be deleted or expired",
            "input",
        ),
        (
            {"input": [user([{"type": "input_image", "file_id": "file-1", "detail": "auto"}])]},
            "input: there is no 'file-1'; it may be deleted or expired",
            "input",
        ),
    ],
)
def test_errors_name_the_fields_of_responses(
    server: Running, fields: dict[str, Any], message: str, param: str
) -> None:
    for path in ("/v1/responses", "/v1/responses/input_tokens"):
        error = server.post(path, **{"input": "hi", **fields}).json()["error"]
        assert (error["message"], error["param"]) == (message, param)


SEARCHED = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {}}


@pytest.mark.parametrize(
    ("fields", "param", "ignored"),
    [
        ({"include": ["banana"]}, "include", "include: banana"),
        ({"client_data": {"a": 1}}, "client_data", "client_data"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode", "reasoning.mode"),
        (
            {"tools": [{"type": "web_search_2025_08_26", "external_web_access": False}]},
            "tools[0]",
            "tools of the type web_search_2025_08_26",
        ),
        ({"tools": [{"type": "tool_search"}]}, "tools[0]", "tools of the type tool_search"),
        (
            {"tools": [{"type": "shell", "environment": {"type": "container_auto"}}]},
            "tools[0]",
            "tools of the type shell",
        ),
        ({"tools": [{**FUNCTION, "colour": 1}]}, "tools[0].colour", "tools[].colour"),
        (
            {"input": [user("hi"), SEARCHED]},
            "input[1].type",
            "items of the type web_search_call",
        ),
        ({"input": [{**user("hi"), "colour": "red"}]}, "input[0].colour", "input[].colour"),
        (
            {"input": [user([{"type": "input_text", "text": "hi", "colour": "red"}])]},
            "input[0].content[0].colour",
            "input[].content[].colour",
        ),
    ],
)
def test_what_the_server_lacks_is_ignored_by_name_or_refused(
    lenient: Running, server: Running, fields: dict[str, Any], param: str, ignored: str
) -> None:
    plain: dict[str, Any] = {"input": "hi"}
    if "tools" in fields and "colour" in ignored:
        plain["tools"] = [FUNCTION]
    assert lenient.post("/v1/responses", **plain).status_code == 200
    prompt = lenient.echo.seen[-1].tokens
    answer = lenient.post("/v1/responses", **{"input": "hi", **fields})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-ostro-ignored"] == ignored
    assert lenient.echo.seen[-1].tokens == prompt
    refused = server.post("/v1/responses", **{"input": "hi", **fields})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), refused.text


def test_tools_that_are_skipped_are_not_among_those_of_the_response(lenient: Running) -> None:
    tools = [{"type": "image_generation"}, FUNCTION, {"type": "mcp", "server_label": "a"}]
    answer = lenient.post("/v1/responses", input="hi", tools=tools, parallel_tool_calls=True)
    assert [tool["name"] for tool in answer.json()["tools"]] == ["weather"]
    only = lenient.post("/v1/responses", input="hi", tools=tools[:1], parallel_tool_calls=True)
    assert (only.status_code, only.json()["tools"]) == (200, [])
    none = lenient.post("/v1/responses", input="hi", tools=tools[:1], tool_choice="required")
    assert (none.status_code, none.json()["error"]["param"]) == (400, "tool_choice")


def test_items_of_conversations_are_read_by_the_same_rule(
    lenient: Running, server: Running
) -> None:
    items = [user("one"), SEARCHED, {**user("two"), "colour": "red"}]
    made = lenient.post("/v1/conversations", items=items)
    assert made.status_code == 200, made.text
    names = "items of the type web_search_call, items[].colour"
    assert made.headers["x-ostro-ignored"] == names
    listed = lenient.http.get(f"/v1/conversations/{made.json()['id']}/items?order=asc").json()
    assert [item["content"][0]["text"] for item in listed["data"]] == ["one", "two"]
    refused = server.post("/v1/conversations", items=items)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "items[1].type")


@pytest.mark.parametrize("value", get_args(ResponseIncludable))
def test_every_include_is_accepted(server: Running, value: str) -> None:
    made = server.post("/v1/responses", input="hi", include=[value])
    assert made.status_code == 200, made.text
    parts = made.json()["output"][0]["content"]
    assert ("logprobs" in parts[0]) == (value == LOGPROBS[0])
    path = f"/v1/responses/{made.json()['id']}"
    for place in (path, f"{path}/input_items"):
        assert server.http.get(place, params={"include[]": value}).status_code == 200


def test_metadata_of_the_client_have_no_effect(server: Running) -> None:
    given = {"session_id": "a", "turn": {"id": 1}}
    answer = server.post("/v1/responses", input="hi", client_metadata=given)
    assert answer.status_code == 200 and "client_metadata" not in answer.json()


@pytest.mark.parametrize("name", ["summary", "generate_summary"])
@pytest.mark.parametrize("kind", ["auto", "concise", "detailed"])
def test_the_response_states_that_it_has_no_summary(server: Running, name: str, kind: str) -> None:
    answer = server.post("/v1/responses", input="hi", reasoning={"effort": "low", name: kind})
    assert (answer.status_code, answer.json()["reasoning"]) == (200, UNSUMMARIZED), answer.text


def test_reasoning_continues_without_a_store(speaker: Running) -> None:
    """Clients that store nothing send items back as they came."""
    with make_client(speaker) as client:
        first = client.responses.create(
            model="echo",
            input="<think>\nHm.\n</think>\n\nYes.",
            store=False,
            include=["reasoning.encrypted_content"],
        )
        reasoning: Any = first.output[0]
        assert (reasoning.type, reasoning.content[0].text) == ("reasoning", "Hm.")
        plain: Any = client.responses.create(model="echo", input="<think>\nHm.\n</think>\n\nYes.")
        assert "encrypted_content" in plain.output[0].model_fields_set
        assert plain.output[0].encrypted_content is None
        items: list[Any] = [item.model_dump() for item in first.output]
        foreign = {**items[0], "encrypted_content": "gAAAAABo"}
        for given in (items, [foreign, items[1]]):
            found = client.responses.create(model="echo", input=[*given, user("more")])  # type: ignore[list-item]
            assert found.status == "completed"
        listed: list[Any] = [*client.responses.input_items.list(found.id, order="asc")]
        assert listed[0].encrypted_content == "gAAAAABo" and listed[0].content[0].text == "Hm."
        # Some clients keep nothing of reasoning besides what they take for its encryption.
        [message] = chat_messages(None, [items_kept(items[0])])
        assert message.reasoning == "Hm."


def items_kept(item: dict[str, Any]) -> Item:
    """An item of reasoning without its content."""
    kept = {key: value for key, value in item.items() if key != "content"}
    [read] = read_items([msgspec.Raw(msgspec.json.encode(kept))], "input")
    assert isinstance(read, ReasoningItem)
    return read


CALLS = [("agents", "spawn", {"task": "x"}), ("agents", "note", {"input": "a\n"})]


def called(*calls: tuple[str, str, dict[str, Any]]) -> str:
    """What the model writes to call functions."""
    return "".join(
        f"<tool_call>\n{json.dumps({'name': f'{space}__{name}', 'arguments': arguments})}\n"
        "</tool_call>\n"
        for space, name, arguments in calls
    )


def check_calls(items: Sequence[Any]) -> None:
    function, custom = items
    assert (function.type, function.namespace, function.name) == (
        "function_call",
        "agents",
        "spawn",
    )
    assert json.loads(function.arguments) == {"task": "x"}
    assert (custom.type, custom.namespace, custom.name, custom.input) == (
        "custom_tool_call",
        "agents",
        "note",
        "a\n",
    )


@pytest.mark.parametrize("background", [False, True])
def test_tools_of_a_namespace_are_called(speaker: Running, background: bool) -> None:
    space = {**AGENTS, "tools": [SPAWN, {"type": "custom", "name": "note"}]}
    body: Any = {"model": "echo", "tools": [FUNCTION, space], "background": background}
    text = called(*CALLS)
    with make_client(speaker) as client:
        made = client.conversations.create()
        first = client.responses.create(input=text, conversation=made.id, **body)
        first = end_of(client, first.id)
        check_calls(first.output)
        assert first.tools[1].type == "namespace" and first.tools[1].name == "agents"
        check_calls([*client.conversations.items.list(made.id, order="asc")][1:])
        events: list[Any] = [*client.responses.create(input=text, stream=True, **body)]
        added = [event.item for event in events if event.type == "response.output_item.added"]
        assert [(item.namespace, item.name) for item in added] == [call[:2] for call in CALLS]
        done = [event.item for event in events if event.type == "response.output_item.done"]
        check_calls(done)
        check_calls(events[-1].response.output)
        assert [*client.responses.retrieve(events[0].response.id, stream=True)] == events
        calls: list[Any] = [item.model_dump(exclude_none=True) for item in first.output]
        outputs: list[Any] = [
            {"type": f"{call['type']}_output", "call_id": call["call_id"], "output": output}
            for call, output in zip(calls, ("one", "two"), strict=True)
        ]
        references = [{"type": "item_reference", "id": call["id"]} for call in calls]
        body["background"] = False
        for more in (
            {"input": [user(text), *calls, *outputs]},
            {"input": outputs, "previous_response_id": first.id},
            {"input": outputs, "conversation": made.id},
            {"input": [user(text), *references, *outputs]},
        ):
            answer = client.responses.create(**body, **more)
            assert answer.output_text == "(agents__spawn)(agents__note)two", more
        count = client.responses.input_tokens.count(
            model="echo", input=[user(text), *calls, *outputs], tools=body["tools"]
        )
        assert answer.usage is not None and count.input_tokens == answer.usage.input_tokens


def test_the_model_sees_functions_of_a_namespace_by_their_joined_names(server: Running) -> None:
    described = "Functions agents__*: Other agents.\n\nStarts an agent."
    joined = {**JOINED, "description": described}
    prompts = []
    for tool in (AGENTS, joined):
        assert server.post("/v1/responses", input="hi", tools=[FUNCTION, tool]).status_code == 200
        prompts.append(server.echo.seen[-1].tokens)
        count = server.post("/v1/responses/input_tokens", input="hi", tools=[FUNCTION, tool])
        assert count.json()["input_tokens"] == len(prompts[-1])
    assert prompts[0] == prompts[1]


def test_compact_is_refused_by_name(server: Running) -> None:
    response = server.post("/v1/responses/compact", model="echo")
    assert response.status_code == 400 and response.json()["error"]["code"] == "unsupported"


def test_truncation_drops_the_oldest_items(server: Running, client: openai.OpenAI) -> None:
    items: Any = [user("x" * 1000), user("y" * 3000), user("z" * 100)]
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="echo", input=items)
    assert caught.value.code == "context_length_exceeded" and caught.value.param == "input"
    found = client.responses.create(
        model="echo", input=items, truncation="auto", max_output_tokens=5
    )
    assert found.truncation == "auto"
    prompt = bytes(token for token in server.echo.seen[-1].tokens if token < 256)
    assert b"xxx" not in prompt and prompt.count(b"y") >= 3000 and b"zzz" in prompt
    assert len([*client.responses.input_items.list(found.id)]) == 3
    with pytest.raises(openai.BadRequestError):
        client.responses.create(model="echo", input="x" * 5000, truncation="auto")


def test_input_tokens_are_those_that_a_response_has(client: openai.OpenAI) -> None:
    first = client.responses.create(model="echo", input="hi")
    more: Any = {"input": "again", "previous_response_id": first.id, "instructions": "Short."}
    count = client.responses.input_tokens.count(model="echo", **more)
    found = client.responses.create(model="echo", **more)
    assert found.usage is not None and count.input_tokens == found.usage.input_tokens


def test_a_conversation_collects_the_items_of_its_responses(
    server: Running, client: openai.OpenAI
) -> None:
    made = client.conversations.create(
        metadata={"topic": "x"},
        items=[{"role": "developer", "content": "Be kind."}],
    )
    one = client.responses.create(model="echo", input="one", conversation=made.id)
    assert one.conversation is not None and one.conversation.id == made.id
    two = client.responses.create(model="echo", input="two", conversation={"id": made.id})
    prompt = server.echo.seen[-1].tokens
    messages: Any = [
        {"role": "developer", "content": "Be kind."},
        user("one"),
        {"role": "assistant", "content": one.output_text},
        user("two"),
    ]
    client.chat.completions.create(model="echo", messages=messages)
    assert server.echo.seen[-1].tokens == prompt
    items: list[Any] = [*client.conversations.items.list(made.id, order="asc", limit=2)]
    assert [item.role for item in items] == ["developer", *["user", "assistant"] * 2]
    assert items[-1].content[0].text == two.output_text
    assert items[::-1] == [*client.conversations.items.list(made.id)]
    assert items[1::-1] == [*client.conversations.items.list(made.id, after=items[2].id)]
    assert client.conversations.items.retrieve(items[1].id, conversation_id=made.id) == items[1]
    client.conversations.items.delete(items[1].id, conversation_id=made.id)
    assert len([*client.conversations.items.list(made.id)]) == 4


def test_a_conversation_is_created_changed_and_deleted(
    server: Running, client: openai.OpenAI
) -> None:
    made = client.conversations.create()
    assert client.conversations.retrieve(made.id) == made and made.metadata == {}
    assert client.conversations.update(made.id, metadata={"a": "b"}).metadata == {"a": "b"}
    added = client.conversations.items.create(
        made.id,
        items=[
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "5"},
            {"type": "reasoning", "id": "rs_1", "summary": []},
        ],
    )
    kinds = ["function_call", "function_call_output", "reasoning"]
    assert [item.type for item in added.data] == kinds
    assert [item.type for item in client.conversations.items.list(made.id, order="asc")] == kinds
    url = f"/v1/conversations/{made.id}"
    assert server.http.get(f"{url}/items?after=banana").status_code == 400
    item = f"{url}/items/{added.data[0].id}"
    logprobs = client.conversations.items.retrieve(
        added.data[0].id, conversation_id=made.id, include=LOGPROBS
    )
    assert logprobs == added.data[0]
    assert server.http.get(f"{item}?include[]=banana").status_code == 400
    assert server.http.post(f"{url}/items?include[]=banana", json={"items": []}).status_code == 400
    assert server.http.get(f"{url}/items/msg_{'0' * 32}").status_code == 404
    assert server.post(url).status_code == 400
    many = [user("x")] * 21
    assert server.post(f"{url}/items", items=many).status_code == 400
    assert client.conversations.delete(made.id).deleted
    for path in (url, f"{url}/items", f"{url}/items/{added.first_id}"):
        assert server.http.get(path).status_code == 404
    response = server.post("/v1/responses", input="x", conversation=made.id)
    assert response.status_code == 404


def test_another_key_finds_nothing(start: Start, tmp_path: Path) -> None:
    server = start(keys=["one", "two"], state=make_state(str(tmp_path / "state")))
    with make_client(server, "one") as ann, make_client(server, "two") as bob:
        *_, last = ann.responses.create(model="echo", input="x", stream=True)
        id = last.response.id  # type: ignore[union-attr]
        item: Any = {"type": "item_reference", "id": last.response.output[0].id}  # type: ignore[union-attr]
        given: Any = {"type": "item_reference", "id": ann.responses.input_items.list(id).data[0].id}
        assert ann.responses.create(model="echo", input=[item, given, user("x")]).output_text
        made = ann.conversations.create()
        assert ann.responses.retrieve(id).id == id
        for refused in (
            lambda: bob.responses.retrieve(id),
            lambda: bob.responses.retrieve(id, stream=True),
            lambda: bob.responses.delete(id),
            lambda: bob.responses.input_items.list(id),
            lambda: bob.responses.create(model="echo", input="x", previous_response_id=id),
            lambda: bob.responses.create(model="echo", input=[item]),
            lambda: bob.responses.create(model="echo", input=[given]),
            lambda: bob.responses.create(model="echo", input="x", conversation=made.id),
            lambda: bob.conversations.retrieve(made.id),
            lambda: bob.conversations.items.list(made.id),
            lambda: bob.conversations.delete(made.id),
        ):
            with pytest.raises(openai.NotFoundError):
                refused()


def test_without_a_store_only_what_needs_one_is_refused(start: Start) -> None:
    server = start()
    found = server.post("/v1/responses", input="hi").json()
    assert found["status"] == "completed" and found["store"] is False
    for fields in (
        {"store": True},
        {"previous_response_id": "resp_1"},
        {"conversation": "conv_1"},
        {"background": True},
        {"input": [{"type": "item_reference", "id": "msg_1"}]},
    ):
        response = server.post("/v1/responses", **{"input": "hi", **fields})
        assert response.status_code == 400 and "--store" in response.json()["error"]["message"]
    assert server.http.get(f"/v1/responses/{found['id']}").status_code == 400
    assert server.post("/v1/conversations").status_code == 400
    assert server.post("/v1/responses", input="hi", stream=True).status_code == 200


def test_a_store_that_does_not_work_stops_stateful_requests_only(
    start: Start, tmp_path: Path
) -> None:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    (folder / "state.db").write_bytes(b"not a database" * 1000)
    server = start(state=make_state(str(folder)))
    assert server.post("/v1/responses", input="hi").status_code == 503
    assert server.http.get("/v1/responses/resp_1").status_code == 503
    assert server.post("/v1/responses", input="hi", store=False).status_code == 200
    assert server.chat("hi").status_code == 200


def test_the_asynchronous_client_streams_and_continues(server: Running) -> None:
    async def main() -> None:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="none", _strict_response_validation=True
        ) as client:
            async with client.responses.stream(model="echo", input="one") as stream:
                kinds = [event.type async for event in stream]
                first = await stream.get_final_response()
            assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
            second = await client.responses.create(
                model="echo", input="two", previous_response_id=first.id
            )
            assert second.status == "completed"
            assert (await client.responses.retrieve(second.id)) == second

    asyncio.run(main())


LONG: Any = {"model": "echo", "input": "abc", "background": True}


def end_of(client: openai.OpenAI, id: str) -> Any:
    deadline = time.monotonic() + 120
    while (found := client.responses.retrieve(id)).status in ("queued", "in_progress"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def test_a_response_in_the_background_is_that_of_the_foreground(
    server: Running, client: openai.OpenAI
) -> None:
    made = client.conversations.create()
    queued = client.responses.create(**LONG, conversation=made.id)
    assert queued.status == "queued" and queued.background and queued.output == []
    done = end_of(client, queued.id)
    assert done.status == "completed" and done.background
    plain = client.responses.create(model="echo", input="abc")
    assert done.output_text == plain.output_text and done.usage == plain.usage
    assert len([*client.conversations.items.list(made.id)]) == 2
    again = client.responses.create(model="echo", input="x", previous_response_id=done.id)
    assert again.status == "completed"
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(done.id)
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(plain.id)


def test_a_stream_in_the_background_goes_on_without_its_client(
    server: Running, client: openai.OpenAI
) -> None:
    server.echo.step_seconds = 0.03
    try:
        with client.responses.create(**LONG, stream=True) as stream:
            first: Any = next(iter(stream))
        rest: list[Any] = [
            *client.responses.retrieve(first.response.id, stream=True, starting_after=0)
        ]
    finally:
        server.echo.step_seconds = 0.0
    assert [event.sequence_number for event in rest] == [*range(1, len(rest) + 1)]
    assert rest[-1].type == "response.completed"
    text = "".join(x.delta for x in rest if x.type == "response.output_text.delta")
    assert text == rest[-1].response.output_text == end_of(client, first.response.id).output_text


def test_a_stream_whose_client_leaves_is_cancelled(server: Running, client: openai.OpenAI) -> None:
    server.echo.step_seconds = 0.03
    text, made = "", client.conversations.create()
    try:
        with client.responses.create(
            model="echo", input="x" * 200, stream=True, conversation=made.id
        ) as stream:
            for event in stream:
                if event.type == "response.output_text.delta":
                    text += event.delta
                elif event.type == "response.created":
                    id = event.response.id
                if len(text) > 3:
                    break
        deadline = time.monotonic() + 120
        while server.http.get(f"/v1/responses/{id}").status_code == 404:
            assert time.monotonic() < deadline, "the response is not stored"
            time.sleep(0.05)
    finally:
        server.echo.step_seconds = 0.0
    found = client.responses.retrieve(id)
    assert found.status == "cancelled" and found.output_text.startswith(text)
    assert len(found.output_text) < 200 and found.output[0].status == "incomplete"  # type: ignore[union-attr]
    assert found.usage is not None and found.usage.output_tokens >= len(text)
    events: list[Any] = [*client.responses.retrieve(id, stream=True)]
    assert [event.sequence_number for event in events] == [*range(len(events))]
    assert events[-2].type == "response.output_item.done"
    assert events[-1].type == "response.incomplete" and events[-1].response == found
    assert [*client.conversations.items.list(made.id)] == []
    refused = server.post("/v1/responses", input="x", previous_response_id=id)
    assert refused.status_code == 400 and "cancelled" in refused.json()["error"]["message"]


def test_references_stand_for_items_of_stored_responses(
    server: Running, client: openai.OpenAI
) -> None:
    one = client.responses.create(model="echo", input="one")
    background = client.responses.create(**LONG)
    two = end_of(client, background.id)
    references: Any = [
        {"type": "item_reference", "id": one.output[0].id},
        {"id": two.output[0].id},
        user("again"),
    ]
    found = client.responses.create(model="echo", input=references)
    prompt = server.echo.seen[-1].tokens
    answers: Any = [
        {"role": "assistant", "content": one.output_text},
        {"role": "assistant", "content": two.output_text},
        user("again"),
    ]
    client.responses.create(model="echo", input=answers)
    assert server.echo.seen[-1].tokens == prompt
    count = client.responses.input_tokens.count(model="echo", input=references)
    assert count.input_tokens == len(prompt)
    items: list[Any] = [*client.responses.input_items.list(found.id, order="asc")]
    assert [item.content[0].text for item in items] == [one.output_text, two.output_text, "again"]
    client.responses.delete(one.id)
    for id in (one.output[0].id, "msg_1"):
        refused = server.post("/v1/responses", input=[user("x"), {"id": id}])
        assert refused.status_code == 404, id
        assert refused.json()["error"]["param"] == "input[1].id"
    for name in ("previous_response_id", "conversation"):
        refused = server.post("/v1/responses", input="x", **{name: "none"})
        assert refused.status_code == 404 and refused.json()["error"]["param"] == name
    made = client.conversations.create()
    refused = server.post(f"/v1/conversations/{made.id}/items", items=references[:1])
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "items[0].type"


def test_references_stand_for_items_of_the_input(server: Running, client: openai.OpenAI) -> None:
    texts: Any = [user("one"), user("two")]
    one = client.responses.create(model="echo", input=texts)
    given: list[Any] = [*client.responses.input_items.list(one.id, order="asc")]
    for item, text in zip(given, ("one", "two"), strict=True):
        reference: Any = [{"type": "item_reference", "id": item.id}]
        client.responses.create(model="echo", input=reference)
        prompt = server.echo.seen[-1].tokens
        client.responses.create(model="echo", input=text)
        assert server.echo.seen[-1].tokens == prompt
    unstored = client.responses.create(model="echo", input="three", store=False)
    missing = [f"fc_{given[0].id[4:]}", "", "msg_1", unstored.output[0].id]
    client.responses.delete(one.id)
    for id in (*missing, *(item.id for item in given)):
        refused = server.post("/v1/responses", input=[{"type": "item_reference", "id": id}])
        assert refused.status_code == 404, id
        assert repr(id) in refused.json()["error"]["message"]


def test_two_servers_share_the_responses_of_one_store(start: Start, tmp_path: Path) -> None:
    folder = str(tmp_path / "state")
    one, two = (start(state=make_state(folder)) for _ in range(2))
    with make_client(one) as ann, make_client(two) as bob:
        done = end_of(bob, ann.responses.create(**LONG).id)
        assert done.status == "completed" and done.output_text
        more = bob.responses.create(model="echo", input="x", previous_response_id=done.id)
        assert ann.responses.retrieve(more.id) == more
        one.echo.step_seconds = two.echo.step_seconds = 0.05
        long: Any = {**LONG, "input": "x" * 1000, "stream": True}
        first: Any = next(iter(ann.responses.create(**long)))
        assert bob.responses.cancel(first.response.id).status == "cancelled"
        assert bob.responses.cancel(first.response.id).status == "cancelled"
        *_, last = ann.responses.retrieve(first.response.id, stream=True)
        assert last.type == "response.incomplete" and last.response.status == "cancelled"
        deadline = time.monotonic() + 120
        while one.echo.live or two.echo.live:
            assert time.monotonic() < deadline, "the generation goes on"
            time.sleep(0.05)


def test_a_batch_of_responses(client: openai.OpenAI) -> None:
    lines = [
        {"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": {"input": "hi"}},
        {
            "custom_id": "b",
            "method": "POST",
            "url": "/v1/responses",
            "body": {"input": "hi", "background": True},
        },
    ]
    data = b"".join(json.dumps(each).encode() + b"\n" for each in lines)
    file = client.files.create(file=("in.jsonl", data), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/responses", completion_window="24h"
    )
    deadline = time.monotonic() + 120
    while batch.status != "completed":
        assert time.monotonic() < deadline
        time.sleep(0.1)
        batch = client.batches.retrieve(batch.id)
    assert batch.request_counts is not None and batch.usage is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 1)
    assert batch.usage.input_tokens and batch.usage.output_tokens
    assert batch.output_file_id is not None
    result = json.loads(client.files.content(batch.output_file_id).text)
    assert client.responses.retrieve(result["response"]["body"]["id"]).status == "completed"
