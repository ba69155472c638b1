"""Tool calls and reasoning over HTTP: what the model writes, as each API shows it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from echo.server import Running, Start

from ostro.plugins.parsers.hermes.parser import HermesParser

TEMPLATE = (
    "{% if tools %}{% endif %}{% if false %}<tool_call>"
    '{"name": "f", "arguments": {}}</tool_call>{% endif %}{{ messages[-1].content }}'
)
"""The echo engine answers with the prompt: the last message. The notation is that of Hermes."""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    for name in ("weather", "time")
]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich, \\"</tool_call>\\""}}\n'
CALL += '</tool_call>\n<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
ANSWER = f"<think>\nHm, <b>.\n</think>\n\nLet me see.\n{CALL}"
ARGUMENTS = {"city": 'Zürich, "</tool_call>"'}


@pytest.fixture(scope="module")
def speaker(start: Start) -> Running:
    return start(template=TEMPLATE)


def collected(events: list[Any]) -> dict[str, Any]:
    """The message that the chunks of a chat add up to, and its reason to end."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "calls": {}}
    for choice in (choice for event in events for choice in event["choices"]):
        delta = choice["delta"]
        for name in ("content", "reasoning_content"):
            message[name] += delta.get(name) or ""
        for call in delta.get("tool_calls") or ():
            known = message["calls"].setdefault(call["index"], {"arguments": ""})
            if "id" in call:
                assert call["type"] == "function" and "id" not in known
                known |= {"id": call["id"], "name": call["function"]["name"]}
            known["arguments"] += call["function"].get("arguments", "")
        message["finish"] = choice["finish_reason"]
    return message


def test_a_whole_chat(speaker: Running) -> None:
    choice = speaker.chat(ANSWER, tools=TOOLS).json()["choices"][0]
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert message["content"] == "Let me see." and message["reasoning_content"] == "Hm, <b>."
    assert message["reasoning"] == message["reasoning_content"]
    first, second = message["tool_calls"]
    assert (first["type"], first["function"]["name"]) == ("function", "weather")
    assert json.loads(first["function"]["arguments"]) == ARGUMENTS
    assert second["function"] == {"name": "time", "arguments": "{}"}
    assert first["id"] != second["id"]


def test_a_streamed_chat(speaker: Running) -> None:
    body = {"messages": [{"role": "user", "content": ANSWER}], "tools": TOOLS}
    message = collected(speaker.events("/v1/chat/completions", **body))
    assert message["content"] == "Let me see." and message["reasoning_content"] == "Hm, <b>."
    assert message["finish"] == "tool_calls"
    assert [call["name"] for call in message["calls"].values()] == ["weather", "time"]
    assert json.loads(message["calls"][0]["arguments"]) == ARGUMENTS


def test_calls_come_back_to_the_template(speaker: Running) -> None:
    message = speaker.chat(ANSWER, tools=TOOLS).json()["choices"][0]["message"]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
        for call in message["tool_calls"]
    ]
    turns = [{"role": "user", "content": "hi"}, message, *results]
    answer = speaker.post("/v1/chat/completions", messages=turns, tools=TOOLS)
    assert answer.json()["choices"][0]["message"]["content"] == "sunny"


def test_without_tools_calls_are_text(speaker: Running) -> None:
    for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        choice = speaker.chat(CALL, **fields).json()["choices"][0]
        assert choice["message"]["content"] == CALL and choice["finish_reason"] == "stop"
        assert "tool_calls" not in choice["message"]


@pytest.mark.parametrize("cut", [len('<tool_call>\n{"name": "weather", "arguments": {"ci'), 12])
def test_a_call_that_is_cut_off_is_not_complete(speaker: Running, cut: int) -> None:
    choice = speaker.chat(CALL, tools=TOOLS, max_tokens=cut).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    if cut > 20:
        assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"ci'
    else:
        assert choice["message"]["content"] == CALL[:cut]


def test_stop_strings_are_found_in_the_text_only(speaker: Running) -> None:
    answer = speaker.chat(ANSWER, tools=TOOLS, stop=["Hm", "city", "see"]).json()["choices"][0]
    assert answer["message"]["reasoning_content"] == "Hm, <b>."
    assert answer["message"]["content"] == "Let me " and answer["finish_reason"] == "stop"


def test_log_probabilities_cover_every_token(speaker: Running) -> None:
    answer = speaker.chat(ANSWER, tools=TOOLS, logprobs=True).json()
    entries = answer["choices"][0]["logprobs"]["content"]
    assert bytes(byte for entry in entries for byte in entry["bytes"])[: len(CALL)]
    assert len(entries) == len(ANSWER.encode())
    usage = answer["usage"]["completion_tokens_details"]
    assert len("Hm, <b>.") <= usage["reasoning_tokens"] <= len("<think>\nHm, <b>.\n</think>\n\n")


def test_arguments_that_are_not_json_are_passed_on(speaker: Running) -> None:
    text = '<tool_call>{"name": "weather", "arguments": {city: 7]}</tool_call>'
    call = speaker.chat(text, tools=TOOLS).json()["choices"][0]["message"]["tool_calls"][0]
    assert call["function"]["arguments"].startswith("{city: 7]")


FUNCTIONS = [{"type": "function", **tool["function"]} for tool in TOOLS]


def test_the_items_of_a_response(speaker: Running) -> None:
    body = {"model": "echo", "input": ANSWER, "tools": FUNCTIONS}
    response = speaker.post("/v1/responses", **body).json()
    kinds = [item["type"] for item in response["output"]]
    assert kinds == ["reasoning", "message", "function_call", "function_call"]
    reasoning, message, first, second = response["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hm, <b>."}]
    assert message["content"][0]["text"] == "Let me see."
    assert (first["name"], json.loads(first["arguments"])) == ("weather", ARGUMENTS)
    assert (second["name"], second["arguments"]) == ("time", "{}")
    assert first["call_id"] != second["call_id"]
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


def test_the_events_of_a_response(speaker: Running) -> None:
    body = {"model": "echo", "input": ANSWER, "tools": FUNCTIONS, "stream": True}
    texts: dict[str, str] = {}
    with speaker.http.stream("POST", "/v1/responses", json=body) as stream:
        lines = [line.removeprefix("data: ") for line in stream.iter_lines() if "data: " in line]
    events = [json.loads(line) for line in lines]
    for event in events:
        if event["type"].endswith(".delta"):
            key = f"{event['output_index']} {event['type']}"
            texts[key] = texts.get(key, "") + event["delta"]
    assert texts["0 response.reasoning_text.delta"] == "Hm, <b>."
    assert texts["1 response.output_text.delta"] == "Let me see."
    assert json.loads(texts["2 response.function_call_arguments.delta"]) == ARGUMENTS
    assert texts["3 response.function_call_arguments.delta"] == "{}"
    done = events[-1]["response"]
    assert done["status"] == "completed" and len(done["output"]) == 4


def test_the_blocks_of_anthropic(speaker: Running) -> None:
    tools = [{"name": x["name"], "input_schema": x["parameters"]} for x in FUNCTIONS]
    body = {"model": "echo", "max_tokens": 4000, "tools": tools}
    messages = [{"role": "user", "content": ANSWER}]
    answer = speaker.post("/v1/messages", messages=messages, **body).json()
    thought, text, first, second = answer["content"]
    assert (thought["type"], thought["thinking"]) == ("thinking", "Hm, <b>.")
    assert (text["type"], text["text"]) == ("text", "Let me see.")
    assert (first["type"], first["name"], first["input"]) == ("tool_use", "weather", ARGUMENTS)
    assert (second["type"], second["name"], second["input"]) == ("tool_use", "time", {})
    assert answer["stop_reason"] == "tool_use"
    cut = {**body, "max_tokens": len(ANSWER) - 10}
    answer = speaker.post("/v1/messages", messages=messages, **cut).json()
    assert answer["stop_reason"] == "max_tokens"


def test_the_message_of_ollama(speaker: Running) -> None:
    messages = [{"role": "user", "content": ANSWER}]
    body = {"model": "echo", "messages": messages, "tools": TOOLS, "stream": False}
    answer = speaker.post("/api/chat", **body).json()
    message = answer["message"]
    assert message["thinking"] == "Hm, <b>." and message["content"] == "Let me see."
    called = [call["function"] for call in message["tool_calls"]]
    assert [(call["name"], call["arguments"]) for call in called] == [
        ("weather", ARGUMENTS),
        ("time", {}),
    ]
    assert answer["done_reason"] == "stop"


@pytest.mark.parametrize("method", ["__init__", "add", "finish", "grammar"])
@pytest.mark.parametrize("error", [RuntimeError("broken"), SystemExit(3)], ids=["error", "exit"])
def test_a_parser_that_raises_ends_its_request_alone(
    speaker: Running, monkeypatch: pytest.MonkeyPatch, method: str, error: BaseException
) -> None:
    def broken(*arguments: Any, **options: Any) -> Any:
        raise error

    body: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "tools": TOOLS}
    fields = {"response_format": {"type": "json_object"}} if method == "grammar" else {}
    what = f"HermesParser raised {type(error).__name__}: {error}"
    with monkeypatch.context() as patch:
        changed: Any = classmethod(broken) if method == "grammar" else broken
        patch.setattr(HermesParser, method, changed)
        answer = speaker.chat("hello", tools=TOOLS, **fields)
        assert answer.status_code == 500 and what in answer.json()["error"]["message"]
        stream = speaker.http.post("/v1/chat/completions", json={**body, **fields, "stream": True})
        assert what in stream.text and '"code":"plugin_error"' in stream.text
    assert speaker.chat("hello", tools=TOOLS).json()["choices"][0]["message"]["content"] == "hello"
    assert not speaker.echo.live
