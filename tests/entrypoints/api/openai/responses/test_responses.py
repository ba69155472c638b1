"""Events and output of a response, from a scripted generation; items as messages of a chat."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from echo.generation import SCRIPT, ScriptedGeneration
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from ostro.core.errors import EngineDied, RequestError, Unsupported
from ostro.core.messages.text import ChoiceEnd, Event, ToolCallArguments, ToolCallStart
from ostro.core.messages.text_requests import (
    JSON_OBJECT,
    ChatRequest,
    Constraint,
    FilePart,
    Grammar,
    JsonSchema,
    MediaPart,
    Message,
    Regex,
    TextPart,
    Tool,
    ToolCall,
)
from ostro.entrypoints.api.openai.messages import MEDIA
from ostro.entrypoints.api.openai.responses import items
from ostro.entrypoints.api.openai.responses.chat import chat_messages, without_orphans
from ostro.entrypoints.api.openai.responses.events import ResponseEvent, name_of
from ostro.entrypoints.api.openai.responses.items import Item, carried, read_items, stored_items
from ostro.entrypoints.api.openai.responses.request import (
    ResponseBody,
    chat_request,
    read_response_request,
    with_own_field,
)
from ostro.entrypoints.api.openai.responses.response import new_response
from ostro.entrypoints.api.openai.responses.responses import ResponseRun, Responses
from ostro.entrypoints.api.openai.responses.tools import offered_functions
from ostro.entrypoints.operations.access.caller import ANYONE
from ostro.entrypoints.operations.documents.state import State
from ostro.entrypoints.operations.requests.decoding import decode


def run(
    script: Sequence[Event], error: Exception | None = None, **fields: Any
) -> list[ResponseEvent]:
    """Return the events of a response that is not stored."""
    request = read_response_request(ResponseBody(input="x", store=False, **fields))
    generation: Any = ScriptedGeneration(script, error)
    operations: Any = None
    responses = Responses(State(), operations)
    response = new_response(request, "m", store=False)

    async def main() -> list[ResponseEvent]:
        functions = offered_functions(request.tools, [])
        work = ResponseRun(responses, request, ANYONE, [], functions, response, generation)
        return [event async for event in work.events()]

    found = asyncio.run(main())
    assert generation.closed
    return found


def names(events: Sequence[ResponseEvent]) -> list[str]:
    return [name_of(event).removeprefix("response.") for event in events]


def test_reasoning_text_and_calls_become_items() -> None:
    events = run(SCRIPT)
    assert names(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert [event.sequence_number for event in events] == [*range(len(events))]
    last: Any = events[-1]
    reasoning, message, one, two = msgspec.to_builtins(last.response.output)
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "The user wants Paris."}]
    assert message["content"][0]["text"] == "Let me see."
    assert (one["call_id"], one["name"], one["arguments"]) == (
        "call_1",
        "weather",
        '{"city": "Paris"}',
    )
    assert (two["call_id"], two["name"], two["arguments"]) == ("call_2", "time", "{}")
    assert {each["status"] for each in (reasoning, message, one, two)} == {"completed"}
    added = [event for event in events if name_of(event).endswith("item.added")]
    done = [event for event in events if name_of(event).endswith("item.done")]
    assert [each.output_index for each in added] == [0, 1, 2, 3]  # type: ignore[attr-defined]
    assert [each.item for each in done] == last.response.output  # type: ignore[attr-defined]


def test_every_event_is_one_of_the_client() -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    for event in (*run(SCRIPT), *run(SCRIPT, EngineDied("x")), *custom_events()):
        data = msgspec.json.encode(event)
        found = adapter.validate_json(data, strict=True)
        assert found.type == name_of(event) and not (found.model_extra or {}).keys() - {"name"}


def test_an_answer_that_is_cut_is_incomplete() -> None:
    last: Any = run([*SCRIPT[:4], ChoiceEnd(finish="length")])[-1]
    assert name_of(last) == "response.incomplete"
    assert last.response.incomplete_details.reason == "max_output_tokens"
    assert [item.status for item in last.response.output] == ["completed", "incomplete"]


def test_an_answer_without_text_has_an_empty_message() -> None:
    last: Any = run([ChoiceEnd(finish="stop")])[-1]
    (message,) = last.response.output
    assert message.content[0].text == "" and message.status == "completed"


def test_an_error_of_the_generation_is_the_last_event() -> None:
    events = run(SCRIPT[:3], EngineDied("secret address"))
    last: Any = events[-1]
    assert name_of(last) == "response.failed" and last.sequence_number == len(events) - 1
    assert last.response.status == "failed" and last.response.error.code == "server_error"
    assert "secret" not in last.response.error.message


CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
OTHER = {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "[]"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "5"}
THOUGHT: dict[str, Any] = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "encrypted_content": None,
}
THOUGHT["content"] = [{"type": "reasoning_text", "text": "hm"}]


def items_of(*given: Any) -> list[Item]:
    return stored_items(read_items(raw(*given), "input"), "input")


def raw(*given: Any) -> list[msgspec.Raw]:
    return [msgspec.Raw(msgspec.json.encode(each)) for each in given]


def test_items_without_nulls_are_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "without_nulls", None)
    message, call, result = read_items(raw({"role": "user", "content": "a"}, CALL, RESULT), "input")
    assert message.content == "a" and call.name == "f" and result.output == "5"


@pytest.mark.parametrize(
    ("item", "param"),
    [
        (5, "items[1]"),
        ({"role": "user", "content": 5}, "items[1].content"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "items[1].content[0].text"),
        ({"role": "user", "content": "a", "colour": "red"}, "items[1].colour"),
        ({**CALL, "name": None}, "items[1].name"),
        ({"type": "item_reference", "id": "msg_1"}, "items[1].type"),
        ({"id": "msg_1"}, "items[1].type"),
    ],
)
def test_the_error_of_an_item_names_it(item: Any, param: str) -> None:
    with pytest.raises((RequestError, Unsupported)) as caught:
        read_items(raw({"role": "user", "content": "a"}, item), "items")
    assert caught.value.param == param and param.partition("]")[0] in str(caught.value)


def test_one_turn_of_the_assistant_is_one_message() -> None:
    answer = {"role": "assistant", "content": "I call."}
    items = items_of({"role": "user", "content": "hi"}, THOUGHT, answer, CALL, OTHER, RESULT, CALL)
    call = ToolCall(id="c1", name="f", arguments="{}")
    assert chat_messages("Be kind.", items) == [
        Message(role="system", content="Be kind."),
        Message(role="user", content="hi"),
        Message(
            role="assistant",
            reasoning="hm",
            content="I call.",
            tool_calls=[call, ToolCall(id="c2", name="g", arguments="[]")],
        ),
        Message(role="tool", tool_call_id="c1", content="5"),
        Message(role="assistant", tool_calls=[call]),
    ]


def test_another_turn_of_the_assistant_is_another_message() -> None:
    answer = {"role": "assistant", "content": "a"}
    assert chat_messages(None, items_of(answer, answer, THOUGHT, refusal("no"), CALL, answer)) == [
        Message(role="assistant", content="a"),
        Message(role="assistant", content="a"),
        Message(
            role="assistant",
            reasoning="hm",
            content="no",
            tool_calls=[ToolCall(id="c1", name="f", arguments="{}")],
        ),
        Message(role="assistant", content="a"),
    ]


def test_reasoning_alone_is_a_message() -> None:
    user = {"role": "user", "content": "a"}
    assert chat_messages(None, items_of(user, THOUGHT, user, THOUGHT, THOUGHT, user)) == [
        Message(role="user", content="a"),
        Message(role="assistant", reasoning="hm"),
        Message(role="user", content="a"),
        Message(role="assistant", reasoning="hm"),
        Message(role="assistant", reasoning="hm"),
        Message(role="user", content="a"),
    ]


def test_reasoning_that_another_server_has_encrypted_is_no_turn() -> None:
    hidden = {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "gAAA"}
    summed = {**hidden, "summary": [{"type": "summary_text", "text": "Adding."}]}
    hi = {"role": "user", "content": "hi"}
    expected = [Message(role="user", content="hi"), Message(role="assistant", reasoning="Adding.")]
    assert chat_messages(None, items_of(hidden, hi, hidden, summed, hidden)) == expected
    for broken in ("ostro:", "ostro:a", "ostro:/w=="):  # no base64, and no UTF-8
        assert (
            chat_messages(None, items_of(hi, {**hidden, "encrypted_content": broken}))
            == expected[:1]
        )


def test_reasoning_is_carried_in_what_clients_keep() -> None:
    kept = {"type": "reasoning", "summary": [], "encrypted_content": carried("Hm, ä.")}
    [message] = chat_messages(None, items_of(kept))
    assert message.reasoning == "Hm, ä."
    content = [{"type": "reasoning_text", "text": "own"}]
    [message] = chat_messages(None, items_of({**kept, "content": content}))
    assert message.reasoning == "own"


def refusal(text: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": [*parts, {"type": "refusal", "refusal": text}]}


def test_an_answer_has_text_or_a_refusal() -> None:
    empty, text = ({"type": "output_text", "text": text} for text in ("", "a"))
    assert chat_messages(None, items_of(refusal("no", empty))) == [
        Message(role="assistant", content="no")
    ]
    with pytest.raises(RequestError, match="input: refusal excludes content") as caught:
        chat_messages(None, items_of(refusal("no", text)))
    assert caught.value.param == "input"


def test_media_become_parts() -> None:
    parts = [
        {"type": "input_text", "text": "look"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"},
        {"type": "input_image", "file_id": "file-1", "detail": "auto"},
        {"type": "input_file", "file_data": "data:text/plain;base64,AA", "filename": "a.txt"},
    ]
    (message,) = chat_messages(None, items_of({"role": "user", "content": parts}))
    assert message.content == [
        TextPart("look"),
        # The text "image" would make this the test of the field `image` in docs/http-api.md.
        MediaPart(MEDIA["image_url"], "data:image/png;base64,AA"),
        FilePart(file_id="file-1"),
        FilePart(file_data="data:text/plain;base64,AA", filename="a.txt"),
    ]


def test_the_results_of_dropped_calls_are_dropped() -> None:
    items = items_of(CALL, RESULT, {"role": "user", "content": "hi"})
    assert without_orphans(items) == items
    assert without_orphans(items[1:]) == items[2:]


@pytest.mark.parametrize("field", ["id", "status", "phase"])
def test_null_fields_of_items_are_absent(field: str) -> None:
    (item,) = items_of({"role": "user", "content": "hi", field: None})
    assert item.id


def test_schemas_stay_text_until_a_chat_needs_them() -> None:
    """As objects they take twenty times the memory, in every copy of a request and a response."""
    schema = b'{"examples": [%s]}' % b",".join([b'{"k": [[], {}]}'] * 5000)
    tool = b'{"type": "function", "name": "f", "parameters": %s}' % schema
    body = b'{"input": "x", "tools": [%s, {"type": "function", "name": "g"}], "text": ' % tool
    body += b'{"format": {"type": "json_schema", "name": "s", "schema": %s}}}' % schema
    tracemalloc.start()
    request = read_response_request(decode(body, ResponseBody))
    assert tracemalloc.get_traced_memory()[0] < 2 * len(body)
    tracemalloc.stop()
    response = msgspec.json.decode(msgspec.json.encode(new_response(request, "m", store=False)))
    assert response["tools"][0]["parameters"] == msgspec.json.decode(schema)
    assert response["tools"][1]["parameters"] is None
    assert response["text"]["format"]["schema"] == msgspec.json.decode(schema)
    chat = asyncio.run(chat_request(request, items_of({"role": "user", "content": "x"})))
    schema_object = msgspec.json.decode(schema)
    assert chat.tools == [Tool("f", schema_object), Tool("g")]
    assert chat.constraint == Constraint(JsonSchema(schema_object), "text.format")


def chat_of(**fields: Any) -> ChatRequest:
    body = msgspec.json.encode({"input": "x", **fields})
    request = read_response_request(decode(body, ResponseBody))
    return asyncio.run(chat_request(request, []))


F: dict[str, Any] = {"type": "function", "name": "f"}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, (None, None)),
        ("auto", ("auto", None)),
        ("none", ("none", None)),
        ("required", ("required", None)),
        (F, ("required", ["f"])),
        ({"type": "allowed_tools", "mode": "auto", "tools": [F]}, ("auto", ["f"])),
        ({"type": "allowed_tools", "mode": "required", "tools": [F]}, ("required", ["f"])),
    ],
)
def test_the_choice_of_tools(choice: Any, expected: tuple[str | None, list[str] | None]) -> None:
    tool = {**F, "description": "Does it.", "strict": True}
    chat = chat_of(tools=[tool], tool_choice=choice, parallel_tool_calls=False)
    assert chat.tools == [Tool("f", strict=True, description="Does it.")]
    assert (chat.tool_choice, chat.allowed_tools) == expected and chat.parallel_tool_calls is False
    without = chat_of(tool_choice=choice, parallel_tool_calls=False)
    kept = (None, None) if choice in ("auto", "none") else expected
    assert (without.tool_choice, without.allowed_tools) == kept
    assert without.tools == [] and without.parallel_tool_calls is None


SPACE = {"type": "namespace", "name": "n", "description": "All.", "tools": [F, {**F, "name": "g"}]}


@pytest.mark.parametrize(
    ("choice", "allowed"),
    [
        ({**F, "name": "n__g"}, ["n__g"]),
        ({**F, "name": "g", "namespace": "n"}, ["n__g"]),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [F, {**F, "namespace": "n"}, {**F, "name": "n__g"}],
            },
            ["f", "n__f", "n__g"],
        ),
    ],
)
def test_functions_of_namespaces_have_joined_names(choice: Any, allowed: list[str]) -> None:
    chat = chat_of(tools=[SPACE, F], tool_choice=choice)
    described = Tool("n__f", description="Functions n__*: All.")
    assert chat.tools == [described, Tool("n__g"), Tool("f")]
    assert (chat.tool_choice, chat.allowed_tools) == ("required", allowed)


def test_a_call_in_a_namespace_is_joined_for_the_model() -> None:
    (message,) = chat_messages(None, items_of({**CALL, "namespace": "n"}))
    assert message.tool_calls == [ToolCall(id="c1", name="n__f", arguments="{}")]


def test_names_that_a_namespace_does_not_have_are_left_as_they_are() -> None:
    """Names are looked up, not split: `a__d` is a function of its own."""
    tools = [
        {"type": "namespace", "name": "a", "tools": [{**F, "name": "b__c"}]},
        {**F, "name": "a__d"},
    ]
    called = [ToolCallStart(call=i, id=f"call_{i}", name=n) for i, n in enumerate(CALLED)]
    last: Any = run([*called, ChoiceEnd(finish="tool_calls")], tools=raw(*tools))[-1]
    found = [(item.namespace, item.name) for item in last.response.output]
    assert found == [("a", "b__c"), (msgspec.UNSET, "a__d"), (msgspec.UNSET, "a__e")]


CALLED = ("a__b__c", "a__d", "a__e")
PATCH: dict[str, Any] = {"type": "custom", "name": "patch", "description": "Edits files."}
PATCHED: Sequence[Event] = (
    ToolCallStart(call=0, id="call_1", name="patch"),
    ToolCallArguments(call=0, text='{"input": "one\\n'),
    ToolCallStart(call=1, id="call_2", name="n__patch"),
    ToolCallArguments(call=1, text="two"),
    ToolCallArguments(call=0, text='\\"1\\""}'),
    ChoiceEnd(finish="tool_calls"),
)


def custom_events() -> list[ResponseEvent]:
    return run(PATCHED, tools=raw(PATCH, {**SPACE, "tools": [PATCH]}))


def test_a_custom_tool_is_a_function_of_one_text() -> None:
    given: Any = [PATCH, {**SPACE, "tools": [{**PATCH, "format": {"type": "text"}}]}]
    one, two = chat_of(tools=given, tool_choice={"type": "custom", "name": "patch"}).tools
    assert (one.name, two.name, one.description) == ("patch", "n__patch", "Edits files.")
    assert one.parameters == two.parameters and not one.strict
    assert one.parameters["required"] == [*one.parameters["properties"]] == ["input"]
    assert one.format is None and two.format is None


@pytest.mark.parametrize(
    ("syntax", "form"), [("lark", Grammar("lark", 'start: "a"')), ("regex", Regex('start: "a"'))]
)
def test_a_custom_tool_has_a_format(syntax: str, form: Regex | Grammar) -> None:
    """The model reads it, too."""
    given = {"type": "grammar", "syntax": syntax, "definition": 'start: "a"'}
    [tool] = chat_of(tools=[{**PATCH, "format": given}]).tools
    assert tool.format == form and not tool.strict
    assert 'start: "a"' in tool.parameters["properties"]["input"]["description"]


def test_calls_of_custom_tools_have_a_text() -> None:
    """Arguments that are not those of the tool are the text."""
    events = custom_events()
    last: Any = events[-1]
    one, two = msgspec.to_builtins(last.response.output)
    assert (one["type"], one["call_id"], one["name"]) == ("custom_tool_call", "call_1", "patch")
    assert (one["input"], one["status"], "namespace" in one) == ('one\n"1"', "completed", False)
    assert (two["namespace"], two["name"], two["input"]) == ("n", "patch", "two")
    assert names(events)[2:-1] == [
        "output_item.added",
        "output_item.added",
        *("custom_tool_call_input.delta", "custom_tool_call_input.done", "output_item.done") * 2,
    ]
    added: Any = events[2]
    assert added.item.input == "" and added.item.name == "patch"
    deltas: Any = [event for event in events if name_of(event).endswith("input.delta")]
    assert [(event.delta, event.output_index) for event in deltas] == [('one\n"1"', 0), ("two", 1)]


def test_calls_of_custom_tools_return_to_the_model() -> None:
    call = {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": 'a "b"'}
    output = {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"}
    items = items_of(CALL, call, {**call, "namespace": "n", "call_id": "c2"}, output)
    arguments = '{"input":"a \\"b\\""}'
    assert chat_messages(None, items) == [
        Message(
            role="assistant",
            tool_calls=[
                ToolCall(id="c1", name="f", arguments="{}"),
                ToolCall(id="c1", name="patch", arguments=arguments),
                ToolCall(id="c2", name="n__patch", arguments=arguments),
            ],
        ),
        Message(role="tool", tool_call_id="c1", content="done"),
    ]
    assert without_orphans(items[3:]) == [] and without_orphans(items[1:]) == items[1:]


def test_allowed_tools_are_some() -> None:
    choice = {"type": "allowed_tools", "mode": "auto", "tools": []}
    with pytest.raises(RequestError, match="tool_choice: expected auto, none, required") as caught:
        chat_of(tools=[F], tool_choice=choice)
    assert caught.value.param == "tool_choice"


def test_the_format_of_the_text() -> None:
    assert chat_of(text={"format": {"type": "text"}}).constraint is None
    any_object = chat_of(text={"format": {"type": "json_object"}}).constraint
    assert any_object == Constraint(JSON_OBJECT, "text.format")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function", "name": "f", "parameters": 5}]}, "tools[0].parameters"),
        (
            {"text": {"format": {"type": "json_schema", "name": "s", "schema": []}}},
            "text.format.schema",
        ),
        (
            {"text": {"format": {"type": "json_schema", "name": "s", "schema": None}}},
            "text.format.schema",
        ),
    ],
)
def test_a_schema_is_an_object(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError, match="expected an object") as caught:
        chat_of(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("message", "param", "expected"),
    [
        ("messages[2].content is missing", "messages[2].content", ("input is missing", "input")),
        ("thinking_budget: x", "thinking_budget", ("reasoning.effort: x", "reasoning.effort")),
        ("tools[1]: x", "tools[1].name", ("tools[1]: x", "tools[1].name")),
    ],
)
def test_an_error_names_the_field_of_the_response(
    message: str, param: str, expected: tuple[str, str]
) -> None:
    error = with_own_field(RequestError(message, param=param))
    assert (str(error), error.param) == expected
