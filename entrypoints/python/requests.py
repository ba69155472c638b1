"""Requests of Python: messages, prompts and keyword arguments become those of every entry point."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cache
from operator import index
from typing import Any, TypeVar, get_type_hints
from warnings import warn

import msgspec

from ostro.core.deprecated import RemovedInOstro1
from ostro.core.errors import RequestError, UsageError
from ostro.core.messages.prompt import Prompt
from ostro.core.messages.target import ModelTarget
from ostro.core.messages.text_requests import (
    ChatRequest,
    Choices,
    CompletionRequest,
    Constraint,
    Grammar,
    JsonSchema,
    MediaPart,
    Message,
    Regex,
    StructuralTag,
    TextRequest,
)
from ostro.core.pipeline import mistyped
from ostro.entrypoints.api.openai import messages as openai
from ostro.entrypoints.api.openai.constraints import ResponseFormat, format_constraint
from ostro.entrypoints.api.openai.tools import read_choice, read_tools
from ostro.entrypoints.python.media import read_medium

R = TypeVar("R", bound=TextRequest)

PromptLike = str | Sequence[int] | Sequence[Mapping[str, Any] | Message] | Prompt
"""Text, messages ({"role": ..., "content": ...}) with media among their parts, or token ids."""

CONSTRAINTS = (
    "schema",
    "regex",
    "choice",
    "lark",
    "gbnf",
    "yacc",
    "structural_tag",
    "response_format",
)
"""Arguments that state what the text of an answer has to satisfy."""

RENAMED = {
    "stop_ids": "stop_token_ids",
    "processors": "logits_processors",
    "options": "chat_template_kwargs",
}
"""Arguments with older names, and their names."""

NO_ARGUMENTS = frozenset(
    {
        *ModelTarget.__struct_fields__,
        *("messages", "prompts", "constraint", "allowed_tools"),
        "best_of",  # only the pipeline's own answers select choices
    }
)
"""Fields of requests that are no arguments."""

TYPES = {
    "bool": "true or false",
    "float": "a number",
    "int": "an integer",
    "str": "a text",
    "array": "a list",
    "object": "an object",
}
"""The words of messages for the types of JSON."""


def make_request(x: PromptLike, arguments: Mapping[str, Any]) -> ChatRequest | CompletionRequest:
    """Return the request for a prompt: a chat for messages, else a completion.

    Raises UsageError for a prompt of another type, an unknown argument and a wrong type,
    RequestError for a malformed message or tool.
    """
    if isinstance(x, str | Prompt):
        return completion_request(x, arguments)
    try:
        items: list[Any] = list(x)
        is_chat = bool(items) and isinstance(items[0], Mapping | Message)
        tokens = [] if is_chat else [index(item) for item in items]
    except TypeError as error:
        raise UsageError(f"expected text, messages or token ids as prompt: {error}") from None
    return chat_request(items, arguments) if is_chat else completion_request(tokens, arguments)


def completion_request(
    prompt: str | list[int] | Prompt, arguments: Mapping[str, Any]
) -> CompletionRequest:
    """Return the request for text or token ids. Raises as `make_request`."""
    return read_arguments(CompletionRequest(prompts=[prompt]), arguments)


def chat_request(
    messages: str | Sequence[Mapping[str, Any] | Message], arguments: Mapping[str, Any]
) -> ChatRequest:
    """Return the request for messages, or one text of the user. Raises as `make_request`."""
    if isinstance(messages, str):
        messages = [Message(role="user", content=messages)]
    stated = dict(arguments)
    tools, calls = stated.pop("tools", None), read_choice(stated.pop("tool_choice", None))
    request = read_arguments(ChatRequest(messages=read_messages(messages)), stated)
    request.tools = read_tools(tools)
    request.tool_choice, request.allowed_tools = calls.mode, calls.tools
    return request


def read_messages(messages: Sequence[Mapping[str, Any] | Message]) -> list[Message]:
    """Return the messages of a chat: those of OpenAI's API, with media as in `read_medium`.

    Raises RequestError for a malformed message.
    """
    called = dict[str, str]()  # see `openai.read_message`
    return [read_message(message, i, called) for i, message in enumerate(messages)]


def read_message(
    given: Mapping[str, Any] | Message, number: int, called: dict[str, str]
) -> Message:
    if isinstance(given, Message):
        return given
    where = f"messages[{number}]"
    message: Any = dict(given) if isinstance(given, Mapping) else given
    media = dict[int, MediaPart]()
    if isinstance(given, Mapping) and isinstance(parts := given.get("content"), list | tuple):
        message["content"] = [plain_part(part) for part in parts]
        for i, part in enumerate(parts):
            if (medium := read_medium(part, f"{where}.content")) is not None:
                media[i], message["content"][i] = medium, plain_part("")
    try:
        wire = msgspec.convert(message, openai.Message)
    except msgspec.ValidationError as error:
        raise mistyped(error, where) from None
    read = openai.read_message(wire, number, called)
    if media:
        read.content = [media.get(i, part) for i, part in enumerate(read.parts)]
    return read


def plain_part(part: Any) -> Any:
    """Return a part in OpenAI's form; a text may be a part by itself."""
    return {"type": "text", "text": part} if isinstance(part, str) else part


def read_arguments(request: R, arguments: Mapping[str, Any]) -> R:
    """Set the fields of a request that arguments state; None is the default. Return the request.

    Raises UsageError for an unknown argument, for a wrong type, and for two constraints.
    """
    stated = {name: value for name, value in arguments.items() if value is not None}
    for old in RENAMED.keys() & stated.keys():
        new, value = RENAMED[old], stated.pop(old)
        if new in stated:
            raise UsageError(f"{old} is the older name of {new}; use {new} alone")
        warn(f"{old} is deprecated; write {new}", RemovedInOstro1, stacklevel=4)
        stated[new] = value
    request.constraint = read_constraint({n: stated.pop(n) for n in CONSTRAINTS if n in stated})
    check_known(stated, type(request))
    if isinstance(stated.get("stop"), str):
        stated["stop"] = [stated["stop"]]
    types = types_of(type(request))
    for name, value in stated.items():
        try:
            setattr(request, name, msgspec.convert(value, types[name], strict=False))
        except msgspec.ValidationError as error:
            raise UsageError(describe_type_error(name, value, error)) from None
    return request


@cache
def types_of(kind: type[TextRequest]) -> dict[str, Any]:
    """Return the types of the fields of a request that are arguments, by name."""
    types = get_type_hints(kind)
    return {name: types[name] for name in kind.__struct_fields__ if name not in NO_ARGUMENTS}


def check_known(stated: Mapping[str, Any], kind: type[TextRequest]) -> None:
    """Raise UsageError for an argument that a request does not have."""
    known, other = types_of(kind), CompletionRequest if kind is ChatRequest else ChatRequest
    for name in stated:
        if name in known:
            continue
        if name in types_of(other):
            needed = "messages" if other is ChatRequest else "a text or token ids"
            raise UsageError(f"{name} needs {needed} as prompt")
        listed = ", ".join([*known, *CONSTRAINTS])
        options = "; chat_template_kwargs has variables of the chat template"
        hint = options if kind is ChatRequest else ""
        raise UsageError(f"unknown argument {name:.40}{hint}; expected {listed}")


def describe_type_error(name: str, value: Any, error: msgspec.ValidationError) -> str:
    """Return the message for an argument of another type: "seed: expected an integer, got 'a'"."""
    fault, _, path = str(error).partition(" - at `$")
    expected = "".join(fault.split("`")[1:2]).removesuffix(" | null")
    if not expected:
        return f"{name}: {fault}"
    kinds = [TYPES.get(kind, kind) for kind in expected.split(" | ")]
    return f"{name}{path.strip('`')}: expected {' or '.join(kinds)}, got {value!r:.60}"


def read_constraint(stated: Mapping[str, Any]) -> Constraint | None:
    """Return the constraint of arguments; None without one.

    Raises UsageError for two, and for a type without a JSON schema.
    """
    if len(stated) > 1:
        raise UsageError(f"{', '.join(stated)}: one constraint at a time applies to an answer")
    for argument, value in stated.items():
        return constraint_of(argument, value)
    return None


def constraint_of(argument: str, value: Any) -> Constraint | None:
    """Return the constraint that an argument states. Raises as `schema_of`."""
    match argument:
        case "schema":
            return Constraint(JsonSchema(schema_of(value)), argument)
        case "regex":
            return Constraint(Regex(value), argument)
        case "choice":
            return Constraint(Choices(value), argument)
        case "structural_tag":
            return Constraint(StructuralTag(value), argument)
        case "response_format":
            try:
                return format_constraint(msgspec.convert(value, ResponseFormat))
            except msgspec.ValidationError as error:
                raise mistyped(error, argument) from None
        case "lark" | "gbnf" | "yacc" as notation:
            return Constraint(Grammar(notation, value), argument)
    raise AssertionError(f"{argument} is none of CONSTRAINTS")


def schema_of(value: Any) -> Any:
    """Return the JSON schema of a dict, a pydantic model, or a type that msgspec or pydantic knows.

    Raises UsageError for others.
    """
    if isinstance(value, dict | bool):
        return value
    if hasattr(value, "model_json_schema"):
        return value.model_json_schema()
    try:
        return msgspec.json.schema(value)
    except (TypeError, RuntimeError) as error:
        reason: Exception = error
    # A type with pydantic models inside implies that pydantic is imported.
    if (pydantic := sys.modules.get("pydantic")) is not None:
        try:
            return pydantic.TypeAdapter(value).json_schema()
        except pydantic.PydanticUserError as error:
            reason = error
    text = str(reason).partition("\n")[0]
    raise UsageError(f"schema: {value!r:.80} has no JSON schema: {text}")


async def refuse_upload(id: str, limit: int) -> tuple[str, bytes]:
    """Refuse an uploaded file: only a server has them."""
    raise RequestError(
        f"file_id {id:.60}: files are uploaded to a server; pass file_data", param="messages"
    )
