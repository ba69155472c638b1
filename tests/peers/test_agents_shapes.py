"""The shapes of requests keep no text of a vendor."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))

from agents_server import PROMPT, Exchange
from agents_shapes import conversation, save
from echo.turns import Call

ARGUMENTS = {"command": "touch a"}
CALL: dict[str, Any] = {"name": "bash", "arguments": json.dumps(ARGUMENTS)}
ANSWER = {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "function": CALL}]}
SCHEMA = {
    "type": "object",
    "title": "secret",
    "properties": {"command": {"type": "string", "description": "secret", "enum": ["a", "b"]}},
    "required": ["command"],
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "secret", "parameters": SCHEMA}}
    for name in ("bash", "read", "write")
]
ASKED = [
    {"role": "system", "content": "secret"},
    {"role": "user", "content": [{"type": "text", "text": "secret"}]},
    {"role": "user", "content": f"secret {PROMPT}"},
]


def exchange(messages: list[Any], answer: Any = None) -> Exchange:
    """A request of a chat and its answer."""
    fields = {"model": "m", "stream": False, "prompt_cache_key": "secret", "tools": TOOLS}
    body = json.dumps({**fields, "messages": messages}).encode()
    found = {"choices": [{"message": answer or {"content": "ok"}}]}
    return Exchange(
        "POST",
        "/v1/chat/completions",
        bytearray(body),
        200,
        {"x-ostro-ignored": "a, b"},
        bytearray(json.dumps(found).encode()),
    )


def shape() -> dict[str, Any]:
    compact = {**CALL, "arguments": '{"command":"touch a"}'}
    call = {**ANSWER, "tool_calls": [{"id": "c1", "function": compact}]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "secret"}
    turns = [exchange(ASKED, ANSWER), exchange([*ASKED, call, result])]
    return conversation("chat", Call("bash", ARGUMENTS), turns)


def test_texts_are_ours_and_the_answer_is_named() -> None:
    found = shape()
    assert "secret" not in json.dumps(found)
    assert found["fields"]["model"] == "m" and found["ignored"] == ["a", "b"]
    assert found["changed"] == {} and found["call"] == {"bash": ARGUMENTS}
    *asked, said, result = found["turns"][1]
    assert asked == found["turns"][0] and asked[-1]["content"] == PROMPT
    assert [message["role"] for message in asked] == ["system", "user", "user"]
    named = {"name": "bash", "arguments": "{compact}"}
    assert said["tool_calls"] == [{"id": "{id}", "function": named}]
    assert result["tool_call_id"] == "{id}"


def test_one_tool_of_each_kind_is_kept() -> None:
    tools = shape()["fields"]["tools"]
    assert [tool["function"]["name"] for tool in tools] == ["bash", "read"]
    schema = tools[0]["function"]["parameters"]
    assert schema["properties"] == {"command": {"type": "string", "enum": ["a", "b"]}}


def test_a_wire_replaces_that_of_an_earlier_version(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    for version, wire in (("1", "chat"), ("1", "messages"), ("2", "chat")):
        save(file, "a", version, {**shape(), "wire": wire})
    found = json.loads(file.read_text())
    assert found["version"] == "2"
    assert [each["wire"] for each in found["conversations"]] == ["messages", "chat"]
    assert {**found["conversations"][1]} == shape()
