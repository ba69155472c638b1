"""Conversion of messages to the form that a chat template expects, as found in its source."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from jinja2 import nodes

from ostro.core.errors import RequestError

ROLE = re.compile(r"\w[\w .:-]{0,63}")
TEXT_PARTS = ("text", "input_text", "output_text")
REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of the field for reasoning, the standard one first, as in transformers."""


WRITTEN = "ostro_call"
"""The text in a rendered `PROBE` whose template has written the tool call."""

CUT = "ostro_arguments"
"""The text in the arguments of a tool call that are not JSON."""

PROBE: Sequence[Mapping[str, Any]] = (
    {"role": "user", "content": "a"},
    {
        "role": "assistant",
        "tool_calls": [
            {
                "id": "abcdefghi",
                "type": "function",
                "function": {"name": WRITTEN, "arguments": {"value": WRITTEN}},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "abcdefghi", "content": "b"},
)
"""A conversation with a message of tool calls without text."""

PROBE_TOOLS: Sequence[Mapping[str, Any]] = (
    {
        "type": "function",
        "function": {
            "name": "c",
            "description": "d",
            "parameters": {
                "type": "object",
                "properties": {"value": {"type": "string", "description": "e"}},
                "required": ["value"],
            },
        },
    },
)
"""The tools of `PROBE`. Their names differ from `WRITTEN`: templates list them, too."""

PROBE_REASONING: Sequence[Mapping[str, Any]] = (
    {"role": "user", "content": "a"},
    {"role": "assistant", "reasoning_content": "b"},
    {"role": "user", "content": "c"},
)
"""A conversation with an answer of reasoning without text."""

EMPTY_FORMS: Sequence[Mapping[str, Any]] = (
    {"content": ""},
    {"content": None},
    {},
    {"content": []},
)
"""The forms of a message without text that templates expect beside tool calls."""


@dataclass(frozen=True, kw_only=True)
class TemplateFeatures:
    """Properties of a template, read from its syntax tree.

    parts: it iterates over the parts of a content. text: it accepts a string as content. none: it
    tests for null content. text_arguments: it concatenates tool arguments to text. developer: it
    knows this role. variables: the names it reads. constants: its string literals.

    The tree is walked only. jinja2's own analysis (`jinja2.meta`) would evaluate constant
    expressions, that is, run a hostile template in this process.
    """

    parts: bool
    text: bool
    none: bool
    text_arguments: bool
    developer: bool
    variables: frozenset[str]
    constants: frozenset[str]

    @classmethod
    def read(cls, tree: nodes.Template) -> TemplateFeatures:
        """Read the properties of a template from its syntax tree."""
        tests = [(test.name, test.node) for test in tree.find_all(nodes.Test)]
        content = _aliases(tree, "content")
        walks = any(
            _mentions(loop.iter, content) and not _is_split(loop.iter)
            for loop in tree.find_all(nodes.For)
        )
        kinds = {name for name, node in tests if _mentions(node, content)}
        constants = [constant.value for constant in tree.find_all(nodes.Const)]
        return cls(
            parts=walks,
            text=not walks or bool(kinds & {"string", "iterable", "sequence", "mapping"}),
            none="none" in kinds,
            text_arguments=_joins_arguments(tree, tests),
            developer="developer" in constants,
            variables=frozenset(n.name for n in tree.find_all(nodes.Name) if n.ctx == "load"),
            constants=frozenset(text for text in constants if isinstance(text, str) and text),
        )


def arrange(
    messages: Sequence[Mapping[str, Any]], features: TemplateFeatures
) -> list[dict[str, Any]]:
    """Convert messages to the form that a template expects.

    Messages of tool calls without text have no content: `ChatTemplate.empty_form` adds it. Raises
    RequestError with the message and the field that is malformed.
    """
    arranged = []
    for i, message in enumerate(messages):
        place = f"messages[{i}]"
        if not isinstance(message, Mapping):
            raise RequestError(f"{place} is not an object", param="messages")
        role = message.get("role")
        if not (isinstance(role, str) and ROLE.fullmatch(role)):
            raise RequestError(f"{place}.role {role!r:.60} is not a valid role", param="messages")
        fields = present(message)
        if role == "developer" and not features.developer:
            fields["role"] = "system"
        calls = fields.get("tool_calls")
        content = content_of(fields.get("content"), features, place)
        reasoning = next((fields[key] for key in REASONING if fields.get(key) is not None), None)
        if calls and is_empty(content):
            fields.pop("content", None)
        elif reasoning is not None and is_empty(content):
            # Templates take null for tool calls, or write it as text.
            fields["content"] = content_of("", features)
        else:
            fields["content"] = content
        if reasoning is not None:
            names = {"thinking": reasoning, "reasoning": reasoning}
            fields = {**names, **fields, "reasoning_content": reasoning}
        if calls:
            if not isinstance(calls, list):
                raise RequestError(f"{place}.tool_calls is not a list", param="messages")
            fields["tool_calls"] = [_call(call, features, place) for call in calls]
        arranged.append(fields)
    return arranged


def tool_fields(tool: Any) -> dict[str, Any]:
    """A tool and its function without null fields. Raises RequestError unless it is an object."""
    if not isinstance(tool, Mapping):
        raise RequestError("tools has an entry that is not an object", param="tools")
    fields = present(tool)
    function = fields.get("function")
    return fields | {"function": present(function)} if isinstance(function, Mapping) else fields


def present(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are not null. Null means absent, but templates would render it."""
    return {name: value for name, value in fields.items() if value is not None}


def is_empty(content: Any) -> bool:
    """Whether a content has no text and no media. Clients send "", null, [] or an empty part."""
    if isinstance(content, list):
        return all(part.get("type") == "text" and not part["text"] for part in content)
    return not content


def is_reasoning_alone(message: Mapping[str, Any]) -> bool:
    """Whether an arranged message has reasoning, and neither text nor calls of tools."""
    given = message.get("reasoning_content") is not None
    return given and not message.get("tool_calls") and is_empty(message["content"])


def thinking_part(message: Mapping[str, Any]) -> dict[str, Any]:
    """The reasoning of an arranged message as a part of a content."""
    return {"type": "thinking", "thinking": message["reasoning_content"]}


def content_of(content: Any, features: TemplateFeatures, place: str = "") -> Any:
    """A content in the form that a template expects. Raises RequestError if it is malformed."""
    if content is None:
        return None if features.none else [] if not features.text else ""
    if isinstance(content, str):
        return content if features.text else [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise RequestError(f"{place}.content is not a string or a list", param="messages")
    parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
    for part in parts:
        if not isinstance(part, Mapping):
            raise RequestError(
                f"{place}.content has a part that is not an object", param="messages"
            )
        if part.get("type") in TEXT_PARTS and not isinstance(part.get("text"), str):
            raise RequestError(f"{place}.content has a text part without text", param="messages")
    if features.parts:
        return [{**p, "type": "text"} if p.get("type") in TEXT_PARTS else dict(p) for p in parts]
    for part in parts:
        if part.get("type") not in TEXT_PARTS:
            raise RequestError(
                f"{place}.content has a part of type {part.get('type')!r}; this model's chat "
                "template supports text only",
                param="messages",
            )
    return "\n".join(part["text"] for part in parts)


def _call(call: Any, features: TemplateFeatures, place: str) -> dict[str, Any]:
    """Convert a tool call's arguments to an object, or to text if the template expects it.

    Text that is not a JSON object stays: see `ChatTemplate.takes_text_arguments`.
    """
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(f"{place}.tool_calls has an entry without a function", param="messages")
    function = present(function)
    arguments = function.get("arguments")
    if isinstance(arguments, str) and not features.text_arguments:
        function["arguments"] = _parse(arguments)
    elif isinstance(arguments, Mapping) and features.text_arguments:
        function["arguments"] = json.dumps(arguments, ensure_ascii=False)
    return {**present(call), "function": function} if "function" in call else function


def parse_arguments(arguments: str) -> dict[str, Any]:
    """Return the arguments of a tool call, which are JSON of a model, as an object.

    Other text, such as that of a call that was cut off, is the field `INVALID_JSON` of one.
    """
    parsed = _parse(arguments)
    return parsed if isinstance(parsed, dict) else {"INVALID_JSON": arguments}


def _parse(arguments: str) -> dict[str, Any] | str:
    """Parse arguments; text that is not a JSON object is returned unchanged."""
    try:
        return msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    except (ValueError, RecursionError):
        return arguments


def _aliases(tree: nodes.Template, field: str) -> set[str]:
    """The names of variables that are assigned a field or a value computed from it."""
    names = {field}
    pairs = [(a.target, a.node) for a in tree.find_all(nodes.Assign)]
    for _ in range(3):
        for target, node in pairs:
            if isinstance(target, nodes.Name) and _mentions(node, names):
                names.add(target.name)
    return names


def _mentions(node: nodes.Node, names: set[str]) -> bool:
    """Whether an expression reads one of the fields: by name, attribute, item or get()."""
    if isinstance(node, nodes.Name):
        return node.name in names
    if isinstance(node, nodes.Getattr):
        return node.attr in names or _mentions(node.node, names)
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value in names
    if isinstance(node, nodes.Call):
        given = [arg.value for arg in node.args if isinstance(arg, nodes.Const)]
        return any(value in names for value in given) or _mentions(node.node, names)
    if isinstance(node, nodes.Filter):
        return node.node is not None and _mentions(node.node, names)
    return False


def _is_split(node: nodes.Node) -> bool:
    return (
        isinstance(node, nodes.Call)
        and isinstance(node.node, nodes.Getattr)
        and node.node.attr in ("split", "splitlines")
    )


def _joins_arguments(tree: nodes.Template, tests: Sequence[tuple[str, nodes.Node]]) -> bool:
    """Whether a template writes a tool call's arguments without testing their type."""
    if any(name in ("string", "mapping") and _is_arguments(node) for name, node in tests):
        return False
    written: list[nodes.Node] = []
    for node in tree.find_all((nodes.Add, nodes.Concat, nodes.Output)):
        written += node.iter_child_nodes()
    return any(_is_arguments(node) for node in written)


def _is_arguments(node: nodes.Node) -> bool:
    if isinstance(node, nodes.Getattr):
        return node.attr == "arguments"
    return (
        isinstance(node, nodes.Getitem)
        and isinstance(node.arg, nodes.Const)
        and node.arg.value == "arguments"
    )
