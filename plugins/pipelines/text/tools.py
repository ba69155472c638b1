"""Read and validate the tools of a request, and which of them the model may or must call."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ostro.errors import RequestError
from ostro.pipelines import ChatRequest, Tool, ToolChoice

MAX_TOOLS = 512
CHOICES = 'auto, none, required, {"type": "function", ...} or {"type": "allowed_tools", ...}'

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


@dataclass(frozen=True, kw_only=True)
class CallRules:
    """The calls of an answer. field: the request field that constrains them; "" if none does.

    tools: those that may be called. See `OutputParser.grammar` for the others.
    """

    field: str = ""
    tools: Sequence[Tool] = ()
    choice: ToolChoice = "auto"
    parallel: bool = True


def tools_of(request: ChatRequest) -> list[dict[str, Any]] | None:
    """The tools that the template receives. Raises RequestError as `offered_tools`."""
    offered_tools(request.tools)
    return None if request.tool_choice == "none" else request.tools or None


def tool_name(tool: Mapping[str, Any], where: str) -> str:
    """The name of a tool. Raises RequestError for a malformed tool."""
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict):
        raise RequestError(f"{where}: only tools of type function are supported", param=where)
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RequestError(
            f"{where}: expected a name of 1..128 letters, digits, '_', '-' or '.'",
            param=f"{where}.name",
        )
    if not isinstance(function.get("parameters") or {}, dict):
        raise RequestError(f"{where}: parameters is not a JSON schema", param=f"{where}.parameters")
    if not isinstance(function.get("strict") or False, bool):
        raise RequestError(f"{where}: strict is not a boolean", param=f"{where}.strict")
    return name


def offered_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[Tool]:
    """The tools that the model may call.

    Raises RequestError for a malformed one, for two of the same name, and for too many.
    """
    tools, offered = tools or (), dict[str, Tool]()
    if len(tools) > MAX_TOOLS:
        raise RequestError(f"{len(tools)} tools; at most {MAX_TOOLS}", param="tools")
    for i, tool in enumerate(tools):
        name, function = tool_name(tool, f"tools[{i}]"), tool["function"]
        if name in offered:
            raise RequestError(f"tools[{i}]: duplicate name {name!r}", param="tools")
        parameters, strict = function.get("parameters") or {}, bool(function.get("strict"))
        offered[name] = Tool(name, parameters, strict)
    return [*offered.values()]


def check_needs_tools(tools: Sequence[Any] | None, tool_choice: Any, parallel: bool | None) -> None:
    """Raise RequestError for a field that constrains calls in a request without tools."""
    for name, value in (("tool_choice", tool_choice), ("parallel_tool_calls", parallel)):
        if value is not None and not tools:
            raise RequestError(f"{name} needs tools", param=name)


def call_rules(
    given: Sequence[Mapping[str, Any]] | None, tool_choice: Any = None, parallel: bool | None = None
) -> CallRules:
    """The calls that a request allows. given: its tools; None if the model is shown none.

    Raises RequestError for a malformed tool or `tool_choice`, for names of tools that are not
    offered, and for constraints of calls without tools.
    """
    tools = offered_tools(given)
    if tool_choice == "none":
        return CallRules()
    check_needs_tools(tools, tool_choice, parallel)
    if not tools:
        return CallRules()
    choice, allowed = read_choice(tool_choice)
    known = [tool.name for tool in tools]
    for name in allowed or ():
        if name not in known:
            raise RequestError(
                f"tool_choice: {name!r:.80} is none of the tools", param="tool_choice"
            )
    field = "tool_choice" if choice != "auto" or allowed is not None else ""
    if parallel is False:
        field = field or "parallel_tool_calls"
    strict = [f"tools[{i}].strict" for i, tool in enumerate(tools) if tool.strict]
    field = field or next(iter(strict), "")
    callable_tools = [tool for tool in tools if allowed is None or tool.name in allowed]
    return CallRules(
        field=field, tools=callable_tools, choice=choice, parallel=parallel is not False
    )


def read_choice(given: Any) -> tuple[ToolChoice, list[str] | None]:
    """The choice, and the names of the tools that may be called, None for all."""
    if given in (None, "auto", "none"):
        return "auto", None
    if given == "required":
        return "required", None
    kind = given.get("type") if isinstance(given, Mapping) else None
    if kind == "function":
        names = [function_name(given)]
        return names, names
    if kind == "allowed_tools":
        allowed = given.get("allowed_tools", given)
        mode = allowed.get("mode") if isinstance(allowed, Mapping) else None
        tools = allowed.get("tools") if isinstance(allowed, Mapping) else None
        if mode in ("auto", "required") and isinstance(tools, list) and tools:
            return mode, [function_name(tool) for tool in tools]
    raise RequestError(f"tool_choice: expected {CHOICES}", param="tool_choice")


def function_name(given: Any) -> str:
    """The name in a choice of a function: OpenAI's chats nest it, Responses do not."""
    inner = given.get("function", given) if isinstance(given, Mapping) else None
    name = inner.get("name") if isinstance(inner, Mapping) else None
    if not isinstance(name, str):
        raise RequestError("tool_choice: a function has no name", param="tool_choice")
    return name
