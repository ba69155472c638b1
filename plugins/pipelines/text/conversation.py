"""Read and validate the messages, tools and prompts of requests."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import to_builtins

from ostro.errors import RequestError, Unsupported
from ostro.pipelines import RESERVED_TEMPLATE_VARIABLES as RESERVED
from ostro.pipelines import RequestMedium as Medium
from ostro.pipelines import split_media
from ostro.plugins.pipelines.text.schema import ChatRequest, ContentPart, Message

MAX_MESSAGES = 10_000
MAX_TOOLS = 512
ROLES = ("system", "developer", "user", "assistant", "tool")
ADDRESSES = {
    "image_url": "image_url",
    "input_image": "image_url",
    "audio_url": "audio_url",
    "video_url": "video_url",
}
"""Types of content parts with a URL, and the field that contains it."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


def read_conversation(request: ChatRequest) -> tuple[list[Mapping[str, Any]], list[Medium]]:
    """The messages for the chat template, and their media in order.

    Raises RequestError naming a malformed message.
    """
    given = request.messages
    messages = [Message(role="user", content=given)] if isinstance(given, str) else given
    if not 0 < len(messages) <= MAX_MESSAGES:
        raise RequestError(
            f"{len(messages)} messages; expected 1..{MAX_MESSAGES}", param="messages"
        )
    if request.continue_final_message:
        raise Unsupported(
            "continue_final_message is not implemented; leave it out",
            param="continue_final_message",
        )
    for i, message in enumerate(messages):
        check_message(message, f"messages[{i}]")
    if messages[-1].role == "assistant" and request.add_generation_prompt is not False:
        raise RequestError(
            "the last message has the role assistant; end with another role", param="messages"
        )
    return split_media([without_nulls(message) for message in messages])


def without_nulls(message: Message) -> dict[str, Any]:
    """A message as plain data, without the fields that were not given."""
    fields = {name: x for name, x in to_builtins(message).items() if x is not None}
    if isinstance(message.content, list):
        fields["content"] = [
            {"type": "text", "text": part.text}
            if part.type == "text"
            else {name: x for name, x in to_builtins(part).items() if x is not None}
            for part in message.content
        ]
    return fields


def has_media(request: ChatRequest) -> bool:
    """Whether a message has parts other than text."""
    messages = request.messages if isinstance(request.messages, list) else []
    contents = [message.content for message in messages if isinstance(message.content, list)]
    return any(part.type != "text" for content in contents for part in content)


def check_message(message: Message, where: str) -> None:
    """Raise RequestError unless a text model can take this message."""
    if message.role not in ROLES:
        raise RequestError(
            f"{where}: unknown role {message.role!r:.40}; expected one of {', '.join(ROLES)}",
            param=f"{where}.role",
        )
    if message.role == "tool" and not message.tool_call_id:
        raise RequestError(
            f"{where}: a tool message needs tool_call_id", param=f"{where}.tool_call_id"
        )
    where = f"{where}.content"
    if message.content is None and not (message.role == "assistant" and message.tool_calls):
        raise RequestError(f"{where} is missing", param=where)
    if isinstance(message.content, list):
        if not message.content:
            raise RequestError(f"{where} is an empty list", param=where)
        for part in message.content:
            check_part(part, where)


def check_part(part: ContentPart, where: str) -> None:
    """Raise RequestError unless a part is text, or a medium with a URL or data."""
    if part.type == "text":
        good = part.text is not None
    elif part.type == "input_audio":
        good = isinstance((part.input_audio or {}).get("data"), str)
    else:
        value = getattr(part, ADDRESSES.get(part.type, ""), None)
        good = isinstance(value.get("url") if isinstance(value, dict) else value, str)
    if not good:
        raise RequestError(
            f"{where}: unknown or empty content part of type {part.type!r:.40}; expected text, "
            "image_url, input_audio, audio_url and video_url",
            param=where,
        )


def tools_of(request: ChatRequest) -> list[dict[str, Any]] | None:
    """The tools that the template receives. Raises RequestError for a malformed one."""
    choice, tools = request.tool_choice, request.tools or []
    if choice not in (None, "auto", "none"):
        raise Unsupported(
            "tool_choice: only auto and none are implemented; forcing a call needs constrained "
            "output",
            param="tool_choice",
        )
    if len(tools) > MAX_TOOLS:
        raise RequestError(f"{len(tools)} tools; at most {MAX_TOOLS}", param="tools")
    names: set[str] = set()
    for i, tool in enumerate(tools):
        name = tool_name(tool, f"tools[{i}]")
        if name in names:
            raise RequestError(f"tools[{i}]: duplicate name {name!r}", param="tools")
        names.add(name)
    return None if choice == "none" or not tools else tools


def tool_name(tool: dict[str, Any], where: str) -> str:
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
    return name


def options_of(request: ChatRequest) -> dict[str, Any]:
    """The template's options; the template refuses unknown ones.

    Raises RequestError for names that a request may not set.
    """
    options = dict(request.chat_template_kwargs or {})
    if taken := RESERVED & options.keys():
        raise RequestError(
            f"{min(taken)!r} is set by the server and is not a chat template option",
            param="chat_template_kwargs",
        )
    if request.reasoning_effort is not None:
        options.setdefault("reasoning_effort", request.reasoning_effort)
    return options


def prompts_of(prompt: str | Sequence[str | int | list[int]]) -> list[str | list[int]]:
    """The prompts of a completion, each text or token ids. Raises RequestError for a mixture."""
    if isinstance(prompt, str):
        return [prompt]
    if prompt and all(isinstance(item, int) for item in prompt):
        return [[item for item in prompt if isinstance(item, int)]]
    texts = [item for item in prompt if isinstance(item, str)]
    lists = [item for item in prompt if isinstance(item, list)]
    if not prompt or len(prompt) not in (len(texts), len(lists)):
        raise RequestError(
            "expected text, a list of texts, token ids, or a list of lists of token ids as prompt",
            param="prompt",
        )
    return [*texts, *lists]
