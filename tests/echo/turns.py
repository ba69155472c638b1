"""A turn of a conversation with a call: what a model writes, and what a client reads of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Call:
    """The call that a model writes: a tool with its arguments, or a text for a client that reads
    calls from texts.
    """

    tool: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    text: str = ""

    def written(self, template: str) -> str:
        """The call in the notation of a template."""
        if not self.tool:
            return self.text
        if "<function=" not in template:
            call = json.dumps({"name": self.tool, "arguments": self.arguments})
            return f"<tool_call>\n{call}\n</tool_call>"
        values = "".join(
            f"<parameter={name}>\n{value if isinstance(value, str) else json.dumps(value)}\n"
            "</parameter>\n"
            for name, value in self.arguments.items()
        )
        return f"<tool_call>\n<function={self.tool}>\n{values}</function>\n</tool_call>"


@dataclass
class Turn:
    """What a client reads of an answer.

    id: that of the call. item, reasoning: the ids of items of a response. signature: what proves a
    thought, on `/v1/messages`; encrypted: the same in a response.
    """

    text: str = ""
    thought: str = ""
    name: str = ""
    arguments: str = ""
    id: str = ""
    item: str = ""
    reasoning: str = ""
    signature: str = ""
    encrypted: str = ""

    def values(self) -> dict[str, Any]:
        """The values that a client sends back, by their names in braces."""
        found: dict[str, Any] = {f"{{{name}}}": value for name, value in vars(self).items()}
        if self.arguments:
            found["{input}"] = json.loads(self.arguments)
            found["{compact}"] = json.dumps(found["{input}"], separators=(",", ":"))
        return {name: value for name, value in found.items() if value}


def read_turn(path: str, answer: str) -> Turn:
    """Read the response of a route, a stream or not. Raises KeyError for another route."""
    turn = Turn()
    reader = READERS[path.partition("?")[0]]
    for event in events_of(answer):
        reader(turn, event)
    return turn


def events_of(answer: str) -> Iterator[Any]:
    """The JSON values of a response: of an event stream, of lines, or of the whole."""
    lines = answer.splitlines()
    if any(line.startswith("data:") for line in lines):
        lines = [line[5:].strip() for line in lines if line.startswith("data:")]
    return (json.loads(line) for line in lines if line and line != "[DONE]")


def read_chat(turn: Turn, event: Any) -> None:
    """Read a chunk of a chat completion, or all of it."""
    for choice in event["choices"]:
        delta = choice.get("delta") or choice.get("message") or {}
        turn.text += delta.get("content") or ""
        turn.thought += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls") or ():
            turn.id += call.get("id") or ""
            turn.name += call["function"].get("name") or ""
            turn.arguments += call["function"].get("arguments") or ""


def read_response(turn: Turn, event: Any) -> None:
    """Read an event of a response, or all of it. The last event has all of it."""
    whole = event.get("response", event)
    if whole.get("status") != "completed" or "output" not in whole:
        return
    for item in whole["output"]:
        if item["type"] == "reasoning":
            turn.reasoning, turn.encrypted = item["id"], item.get("encrypted_content") or ""
            turn.thought = "".join(part["text"] for part in item["content"])
        elif item["type"] == "function_call":
            turn.item, turn.id, turn.name = item["id"], item["call_id"], item["name"]
            turn.arguments = item["arguments"]
        else:
            turn.text = "".join(part["text"] for part in item["content"])


def read_message(turn: Turn, event: Any) -> None:
    """Read an event of a message, or all of it."""
    for block in event.get("content") or (
        [event["content_block"]] if "content_block" in event else ()
    ):
        turn.id, turn.name = block.get("id", turn.id), block.get("name", turn.name)
        if block.get("input"):
            turn.arguments += json.dumps(block["input"])
        read_delta(turn, block)
    if "delta" in event:
        read_delta(turn, event["delta"])


def read_delta(turn: Turn, delta: Any) -> None:
    """Read the texts of a block of a message."""
    turn.text += delta.get("text") or ""
    turn.thought += delta.get("thinking") or ""
    turn.arguments += delta.get("partial_json") or ""
    turn.signature += delta.get("signature") or ""


def read_ollama(turn: Turn, event: Any) -> None:
    """Read a line of a chat of Ollama's API, or all of it."""
    message = event["message"]
    turn.text += message.get("content") or ""
    turn.thought += message.get("thinking") or ""
    for call in message.get("tool_calls") or ():
        turn.id, turn.name = call.get("id") or "", call["function"]["name"]
        turn.arguments = json.dumps(call["function"]["arguments"])


READERS = {
    "/v1/chat/completions": read_chat,
    "/v1/responses": read_response,
    "/v1/messages": read_message,
    "/api/chat": read_ollama,
}
