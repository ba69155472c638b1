"""The tools of a chat: their declarations in the prompt, and which the model may or must call."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ostro.errors import RequestError
from ostro.pipelines import ChatRequest, Tool, ToolChoice

MAX_TOOLS = 512
NO_PARAMETERS = {"type": "object", "properties": {}}
"""The schema of a tool without parameters, as transformers writes it."""

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


def shown_tools(request: ChatRequest) -> Sequence[Tool]:
    """The tools that the prompt declares."""
    return () if request.tool_choice == "none" else request.tools


def check_tools(tools: Sequence[Tool]) -> None:
    """Raise RequestError for an invalid name, two tools of the same name, and too many tools."""
    if len(tools) > MAX_TOOLS:
        raise RequestError(f"{len(tools)} tools; at most {MAX_TOOLS}", param="tools")
    names = set[str]()
    for i, tool in enumerate(tools):
        where = f"tools[{i}]"
        if not _NAME.fullmatch(tool.name):
            raise RequestError(
                f"{where}: expected a name of 1..128 letters, digits, '_', '-' or '.'",
                param=f"{where}.name",
            )
        if tool.name in names:
            raise RequestError(f"{where}: duplicate name {tool.name!r}", param="tools")
        names.add(tool.name)


def declarations(tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
    """The tools in the form that chat templates read, None without any.

    The keys have the order of transformers. Whether the server enforces a schema is not part of it.
    """
    return [declaration(tool) for tool in tools] or None


def declaration(tool: Tool) -> dict[str, Any]:
    description = {} if tool.description is None else {"description": tool.description}
    parameters = tool.parameters or NO_PARAMETERS
    function = {"name": tool.name, **description, "parameters": parameters, **tool.extra}
    return {"type": "function", "function": function}


def call_rules(request: ChatRequest) -> CallRules:
    """The calls that the answer to a request may have.

    Raises RequestError as `check_tools`, for allowed names that no tool has, and for constraints of
    calls without tools.
    """
    tools, allowed = request.tools, request.allowed_tools
    check_tools(tools)
    for name in ("tool_choice", "parallel_tool_calls"):
        if getattr(request, name) is not None and not tools:
            raise RequestError(f"{name} needs tools", param=name)
    if not tools or request.tool_choice == "none":
        return CallRules()
    names = {tool.name for tool in tools}
    for name in allowed or ():
        if name not in names:
            raise RequestError(
                f"tool_choice: {name!r:.80} is none of the tools", param="tool_choice"
            )
    must, parallel = request.tool_choice == "required", request.parallel_tool_calls
    constraining = [
        *(f"tools[{i}].format" for i, tool in enumerate(tools) if tool.format is not None),
        *(["tool_choice"] if must or allowed is not None else []),
        *(["parallel_tool_calls"] if parallel is False else []),
        *(f"tools[{i}].strict" for i, tool in enumerate(tools) if tool.strict),
    ]
    return CallRules(
        field=next(iter(constraining), ""),
        tools=[tool for tool in tools if allowed is None or tool.name in allowed],
        choice="required" if must else "auto",
        parallel=parallel is not False,
    )
