"""The shape of what a program sends: its fields and values without the texts of its vendor."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agents_server import PROMPT, Exchange
from echo.turns import Call, read_turn

FACTS = frozenset(
    "type role name model effort reasoning_effort summary tool_choice display mode status ttl "
    "include $schema required enum format verbosity truncation service_tier stop scope keep "
    "keep_alive".split()
)
"""Names of fields whose texts are kept: those that an API or a schema lists."""
LEFT_OUT = frozenset(("title", "description", "examples", "default", "pattern"))
"""Parts of schemas that may be texts of a vendor."""
TEXTS = {
    "system": "You write code.",
    "developer": "You write code.",
    "user": "The folder is empty.",
    "assistant": "Good.",
    "tool": "It is done.",
}
"""The texts of messages in the place of a vendor's, by role."""
SCHEMAS = ("parameters", "input_schema")


class Cleaner:
    """Replaces texts. `values` are those of the answer before, which the program sends back."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def clean(self, value: Any, key: str = "", role: str = "") -> Any:
        """A part of a request, with own texts; what the program sends back is named in braces."""
        name = next((name for name, known in self.values.items() if value == known), None)
        if name is not None and key not in FACTS:
            return name
        if isinstance(value, dict):
            return self.clean_object(value, role)
        if isinstance(value, list):
            return [self.clean(each, key, role) for each in value]
        if not isinstance(value, str) or not value or key in FACTS:
            return value
        if key == "id":
            return f"id-of-{role or 'the-request'}"
        if PROMPT in value and role == "user":
            return PROMPT
        thought = self.values.get("{thought}")
        return "{thought}" if value.strip() == thought else TEXTS.get(role, "text")

    def clean_object(self, value: dict[str, Any], role: str) -> dict[str, Any]:
        role = value.get("role", role)
        if str(value.get("type")) in ("tool_result", "function_call_output"):
            role = "tool"
        cleaned = {}
        for key, each in value.items():
            if key in SCHEMAS:
                cleaned[key] = schema_of(each)
            elif key == "tools":
                cleaned[key] = self.tools(each)
            else:
                cleaned[key] = self.clean(each, key, "system" if key == "system" else role)
        return cleaned

    def tools(self, tools: Sequence[Any]) -> list[Any]:
        """The first tool of each kind, and the tool that the model calls."""
        kept: dict[str, Any] = {}
        for tool in tools:
            function = tool.get("function", tool)
            called = function.get("name") == self.values.get("{name}")
            kept.setdefault("called" if called else kind_of(tool), self.clean(tool))
        return list(kept.values())


def kind_of(tool: Any) -> str:
    """The names of the fields and the keywords of a tool, which those of its kind share."""
    function = tool.get("function", tool)
    schema: Any = next((function[name] for name in SCHEMAS if name in function), {})
    parts = [tool.get("type"), sorted(tool), sorted(function), sorted(schema)]
    keywords = {word for each in (schema.get("properties") or {}).values() for word in each}
    return json.dumps([*parts, "properties" in keywords, "anyOf" in keywords, "enum" in keywords])


def schema_of(value: Any) -> Any:
    """A schema without the texts of a vendor."""
    if isinstance(value, list):
        return [schema_of(each) for each in value]
    if not isinstance(value, dict):
        return value
    cleaned = {}
    for key, each in value.items():
        if key == "properties":
            cleaned[key] = {name: schema_of(schema) for name, schema in each.items()}
        elif key not in LEFT_OUT:
            cleaned[key] = schema_of(each)
    return cleaned


def conversation(wire: str, call: Call, turns: Sequence[Exchange]) -> dict[str, Any]:
    """The shape of the requests of a conversation."""
    first = turns[0]
    cleaner = Cleaner(read_turn(first.path, first.received.decode()).values())
    bodies = [cleaner.clean(turn.body) for turn in turns]
    key = "input" if "input" in bodies[0] else "messages"
    lists = [body.pop(key) for body in bodies]
    changed = {name: value for name, value in bodies[-1].items() if value != bodies[0].get(name)}
    return {
        "wire": wire,
        "path": first.path,
        "call": {"text": call.text} if call.text else {call.tool: call.arguments},
        "ignored": first.ignored.split(", ") if first.ignored else [],
        "fields": bodies[0],
        "changed": changed,
        "turns": lists,
    }


def other(exchange: Exchange) -> dict[str, Any]:
    """The shape of a request beside the conversation."""
    found: dict[str, Any] = {"method": exchange.method, "path": exchange.path}
    if exchange.body is not None:
        found["body"] = Cleaner({}).clean(exchange.body)
    found["status"] = exchange.status
    return {**found, "ignored": exchange.ignored.split(", ") if exchange.ignored else []}


def save(file: Path, program: str, version: str, found: Mapping[str, Any]) -> None:
    """Write a conversation to the file of a program, in the place of that with the same wire."""
    known: dict[str, Any] = {"conversations": []}
    if file.exists():
        known = json.loads(file.read_text())
    rest = [each for each in known["conversations"] if each["wire"] != found["wire"]]
    both = [*rest, found]
    text = f'{{\n "program": "{program}",\n "version": "{version}",\n "conversations": ['
    text += ",".join("\n  {" + ",".join(lines_of(each)) + "\n  }" for each in both)
    file.write_text(text + "\n ]\n}\n")


def lines_of(conversation: Mapping[str, Any]) -> list[str]:
    """The members of a conversation as lines of JSON: one for each field, tool and message."""
    lines = []
    for name, value in conversation.items():
        if name == "turns":
            inner = ["\n    [" + ",".join(listed(turn, 5)) + "\n    ]" for turn in value]
            text = "[" + ",".join(inner) + "\n   ]"
        elif name in ("fields", "changed") and value:
            inner = [f"\n    {json.dumps(key)}: {shown(each)}" for key, each in value.items()]
            text = "{" + ",".join(inner) + "\n   }"
        else:
            text = shown(value, 4)
        lines.append(f"\n   {json.dumps(name)}: {text}")
    return lines


def shown(value: Any, indent: int = 5) -> str:
    """A value on a line; a list of objects on a line each."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[" + ",".join(listed(value, indent)) + "\n" + " " * (indent - 1) + "]"
    return json.dumps(value)


def listed(values: Sequence[Any], indent: int) -> list[str]:
    return ["\n" + " " * indent + json.dumps(each) for each in values]
