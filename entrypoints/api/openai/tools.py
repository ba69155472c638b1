"""The tools of OpenAI's chats, and which of them the model may or must call."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import msgspec

from ostro.core.errors import RequestError, Unsupported
from ostro.core.messages.text_requests import Tool
from ostro.entrypoints.api.openai.custom_tools import CustomFields
from ostro.entrypoints.operations.requests.decoding import decode_part

CHOICES = (
    'auto, none, required, {"type": "function", ...}, {"type": "custom", ...} or '
    '{"type": "allowed_tools", ...}'
)
KEYS = frozenset({"name", "description", "parameters", "strict"})
"""Keys of a function that fields of `Tool` stand for."""
FIELD = re.compile(r"tools\[(\d+)\]\.(?=format|name)")
"""The place of a tool before the fields by which the pipeline knows a custom one."""


class AllowedCalls(NamedTuple):
    """`tool_choice` and `allowed_tools` of a `ChatRequest`."""

    mode: Literal["auto", "none", "required"] | None = None
    tools: Sequence[str] | None = None


def read_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[Tool]:
    """Return tools of the type function. Raises RequestError for a malformed one."""
    return [read_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools or ())]


def read_tool(tool: Mapping[str, Any], where: str) -> Tool:
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict):
        raise RequestError(f"{where}: only tools of type function are supported", param=where)
    parameters, description = function.get("parameters") or {}, function.get("description")
    name, strict = function.get("name"), function.get("strict") or False
    if not isinstance(parameters, dict):
        raise RequestError(f"{where}: parameters is not a JSON schema", param=f"{where}.parameters")
    if not isinstance(strict, bool):
        raise RequestError(f"{where}: strict is not a boolean", param=f"{where}.strict")
    if not isinstance(description, str | None):
        raise RequestError(f"{where}: description is not a text", param=f"{where}.description")
    extra = {key: value for key, value in function.items() if key not in KEYS}
    # The pipeline checks names: it refuses the empty one, which stands for values that are no text.
    return Tool(name if isinstance(name, str) else "", parameters, strict, description, extra)


def read_chat_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[Tool]:
    """Return tools of the types function and custom. Raises RequestError for a malformed one."""
    return [read_chat_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools or ())]


def read_chat_tool(tool: Mapping[str, Any], where: str) -> Tool:
    match tool.get("type"):
        case "function":
            return read_tool(tool, where)
        case "custom":
            custom = msgspec.json.encode(tool.get("custom"))
            return decode_part(custom, CustomFields, f"{where}.custom").tool
    raise RequestError(
        f"{where}: only tools of the types function and custom are supported", param=where
    )


def is_custom(tool: Mapping[str, Any]) -> bool:
    """Whether a tool of a chat is a custom one."""
    return tool.get("type") == "custom"


def custom_names(tools: Sequence[Mapping[str, Any]] | None) -> frozenset[str]:
    """Return the names of the custom tools among those that `read_chat_tools` accepts."""
    return frozenset(tool["custom"]["name"] for tool in tools or () if is_custom(tool))


@contextmanager
def custom_places(tools: Sequence[Mapping[str, Any]] | None) -> Iterator[None]:
    """Name the fields of custom tools in errors of a chat request as its client states them."""

    def own(text: str) -> str:
        match = FIELD.match(text)
        if match is None or not is_custom((tools or ())[int(match[1])]):
            return text
        return f"{match[0]}custom.{text[match.end() :]}"

    try:
        yield
    except (RequestError, Unsupported) as error:
        if FIELD.match(error.param or ""):
            error.args, error.param = (own(str(error)),), own(error.param or "")
        raise


def read_choice(choice: str | Mapping[str, Any] | None) -> AllowedCalls:
    """Return the calls that a `tool_choice` allows. Raises RequestError for a malformed one."""
    match choice:
        case None:
            return AllowedCalls()
        case "auto" | "none" | "required":
            return AllowedCalls(choice)
        case {"type": "function" | "custom"}:
            return AllowedCalls("required", [chosen_name(choice)])
        case {"type": "allowed_tools", **rest}:
            match rest.get("allowed_tools", rest):
                case {"mode": "auto" | "required" as mode, "tools": [_, *_] as tools}:
                    return AllowedCalls(mode, [chosen_name(tool) for tool in tools])
    raise RequestError(f"tool_choice: expected {CHOICES}", param="tool_choice")


def chosen_name(choice: Any) -> str:
    """Return the name in a choice of a tool: chats nest it, Responses do not."""
    match choice:
        case {"type": "custom", "custom": {"name": str(name)}}:
            return name
        case {"function": {"name": str(name)}}:
            return name
        case {"name": str(name)} if "function" not in choice:
            return name
    raise RequestError("tool_choice: a function or custom tool has no name", param="tool_choice")
