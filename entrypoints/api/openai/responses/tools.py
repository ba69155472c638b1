"""The tools of a response: functions, also those of namespaces, and the names that a model sees."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, get_args

import msgspec

from ostro.core.errors import OstroError, RequestError, Unsupported
from ostro.core.messages import text_requests
from ostro.core.pipeline import mistyped
from ostro.entrypoints.api.openai.custom_tools import custom_tool
from ostro.entrypoints.api.openai.responses.client_items import ToolSearchOutputItem, joined_name
from ostro.entrypoints.api.openai.responses.client_tools import client_tool, search_tool
from ostro.entrypoints.api.openai.responses.items import Item
from ostro.entrypoints.api.openai.responses.tool_types import (
    NO_SCHEMA,
    CallableTool,
    ClientTool,
    ClientToolChoice,
    CustomTool,
    FunctionTool,
    GrammarInput,
    NamedChoice,
    NamespaceTool,
    ResponseTool,
    ToolSearchTool,
)
from ostro.entrypoints.operations.requests.decoding import decode_part
from ostro.entrypoints.operations.requests.ignored import ignore

HOSTED = frozenset(
    (
        "code_interpreter",
        "computer",
        "computer_use",
        "computer_use_preview",
        "file_search",
        "image_generation",
        "mcp",
        "programmatic_tool_calling",
        "tool_search",
        "web_search",
        "web_search_preview",
    )
)
"""Types of tools that OpenAI's servers have, without the dates of their versions."""
CONTAINERS = ("container_auto", "container_reference")
"""Types of the environments of a shell that OpenAI's servers run."""
VERSION = re.compile(r"_\d{4}_\d{2}_\d{2}$")
"""The date at the end of a type."""
PLACE = re.compile(r"tools\[(\d+)\]")
"""The place of a tool at the beginning of an error, or of its parameter."""
E = TypeVar("E", bound=OstroError)


class NamespaceBody(NamespaceTool, kw_only=True, tag="namespace"):
    """The JSON of a `NamespaceTool`, before its tools are decoded."""

    tools: list[msgspec.Raw]  # type: ignore[assignment]


TYPES: Mapping[str, type[CallableTool]] = {
    str(kind.__struct_config__.tag): kind for kind in get_args(CallableTool)
}
"""The tools that a model can call, by their types."""


class ToolKind(msgspec.Struct):
    """The fields of a tool that say what it is."""

    type: Any = "function"
    execution: Any = None
    environment: Any = None

    @property
    def is_hosted(self) -> bool:
        """Whether OpenAI's servers run the tool, so that a client does without it elsewhere."""
        kind = VERSION.sub("", self.type) if isinstance(self.type, str) else ""
        if kind == "shell":
            place = self.environment
            return isinstance(place, Mapping) and place.get("type") in CONTAINERS
        return kind in HOSTED and self.execution != "client"


class Function(NamedTuple):
    """A tool of a request that the model can call; `place` is that of its declaration."""

    tool: CallableTool
    place: str
    namespace: NamespaceTool | None = None

    @property
    def name(self) -> str:
        """The name by which the model knows the function."""
        return joined_name(None if self.namespace is None else self.namespace.name, self.tool.name)

    @property
    def description(self) -> str | None:
        """What the model reads. The first function of a namespace also describes the namespace."""
        space, own = self.namespace, getattr(self.tool, "description", None)
        if space is None or not space.description or space.tools[0] is not self.tool:
            return own
        text = f"Functions {joined_name(space.name, '*')}: {space.description}"
        return f"{text}\n\n{own}" if own else text


def read_tools(given: Sequence[msgspec.Raw]) -> list[ResponseTool]:
    """Return the tools in a request's JSON, without those that only OpenAI's servers run.

    Raises Unsupported for other types, and for the latter if they are errors; RequestError for a
    malformed tool, and for two functions with one name for the model.
    """
    tools = list[ResponseTool]()
    for i, raw in enumerate(given):
        tool = read_tool(raw, f"tools[{i}]")
        if tool is not None:
            tools.append(tool)
    names = set[str]()
    for function in functions_of(tools):
        if function.name in names:
            raise RequestError(
                f"{function.place}: another function has the name {function.name!r:.200} as well",
                param=function.place,
            )
        names.add(function.name)
    return tools


def read_tool(raw: msgspec.Raw, where: str, *, nested: bool = False) -> ResponseTool | None:
    """Return a tool, None for one to leave out. nested: it is one of a namespace."""
    kind = decode_part(raw, ToolKind, where)
    if kind.is_hosted and ignore(f"tools of the type {kind.type}"):
        return None
    if kind.type == "namespace" and not nested:
        return read_namespace(raw, where)
    struct = TYPES.get(kind.type) if isinstance(kind.type, str) and not kind.is_hosted else None
    if struct is None or (nested and issubclass(struct, ClientTool)):
        raise Unsupported(
            f"{where}: tools of type {kind.type!r:.80} are not supported; use functions",
            param=where,
        )
    return decode_part(raw, struct, where)


def read_namespace(raw: msgspec.Raw, where: str) -> NamespaceTool:
    """Return a namespace, without those of its tools that are left out."""
    space = decode_part(raw, NamespaceBody, where)
    tools = [
        read_tool(each, f"{where}.tools[{i}]", nested=True) for i, each in enumerate(space.tools)
    ]
    return NamespaceTool(
        name=space.name,
        description=space.description,
        tools=[tool for tool in tools if isinstance(tool, FunctionTool | CustomTool)],
    )


def functions_of(tools: Sequence[ResponseTool] | None, where: str = "tools") -> Iterator[Function]:
    """Yield all tools that a model can call, also those of namespaces."""
    for i, tool in enumerate(tools or ()):
        if isinstance(tool, NamespaceTool):
            for j, each in enumerate(tool.tools):
                yield Function(each, f"{where}[{i}].tools[{j}]", tool)
        else:
            yield Function(tool, f"{where}[{i}]")


def offered_functions(
    tools: Sequence[ResponseTool] | None, items: Sequence[Item]
) -> list[Function]:
    """Return the tools that the model can call at the end of items.

    Those of the request that are not deferred, and those that the client's searches have returned.
    Without a search of the client nothing is deferred: no other would return it.
    """
    searches = any(isinstance(tool, ToolSearchTool) for tool in tools or ())
    functions = {
        function.name: function
        for function in functions_of(tools)
        if not (searches and function.tool.defer_loading is True)
    }
    for item in items:
        if isinstance(item, ToolSearchOutputItem):
            for function in functions_of(item.tools, "tool_search_output.tools"):
                functions.setdefault(function.name, function)
    return [*functions.values()]


def chat_tool(function: Function) -> text_requests.Tool:
    """Return the tool of a chat. Raises RequestError for parameters that are no object."""
    tool = function.tool
    if isinstance(tool, CustomTool):
        match tool.format:
            case GrammarInput(syntax=syntax, definition=grammar):
                return custom_tool(function.name, function.description, syntax, grammar)
        return custom_tool(function.name, function.description)
    if isinstance(tool, ClientTool) and not isinstance(tool, ToolSearchTool):
        return client_tool(tool)
    parameters = dict[str, Any]()
    if tool.parameters != NO_SCHEMA:
        parameters = schema_object(tool.parameters, f"{function.place}.parameters")
    if isinstance(tool, ToolSearchTool):
        return search_tool(tool.description, parameters)
    return text_requests.Tool(function.name, parameters, bool(tool.strict), function.description)


def chosen_name(choice: NamedChoice | ClientToolChoice) -> str:
    """Return the name by which the model knows a function that a request names."""
    return joined_name(choice.namespace, choice.name)


def schema_object(schema: msgspec.Raw, where: str) -> dict[str, Any]:
    """Return a JSON schema as objects. Raises RequestError if it is none."""
    try:
        value = msgspec.json.decode(schema)
    except msgspec.ValidationError as error:  # a number beyond all floats
        raise mistyped(error, where) from None
    if not isinstance(value, dict):
        raise RequestError(f"{where}: expected an object", param=where)
    return value


def with_own_place(error: E, functions: Sequence[Function]) -> E:
    """Return an error of a chat request, with the place of its tool in the response's request.

    functions: those of the chat request. Tools that `read_tools` has left out are not counted.
    """
    match = PLACE.match(str(error))
    if match is not None:
        place = functions[int(match[1])].place
        error.args = (place + str(error)[match.end() :],)
        error.param = PLACE.sub(lambda _: place, error.param or "", count=1) or None
    return error


def check_choice(choice: Any) -> None:
    """Raise Unsupported for a `tool_choice` in JSON that names another kind of tool than it may."""
    given = [choice]
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        given = choice["tools"] if isinstance(choice.get("tools"), list) else []
    for each in given:
        if isinstance(each, Mapping) and each.get("type") not in TYPES:
            raise Unsupported(
                f"tool_choice: the type {each.get('type')!r:.80} is not supported; expected "
                f"{', '.join(TYPES)} or allowed_tools",
                param="tool_choice",
            )
