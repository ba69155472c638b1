"""The messages of OpenAI's chats, with the parts that vLLM adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ostro.core.errors import RequestError, Unsupported
from ostro.core.messages import text_requests
from ostro.core.messages.text_requests import MediaPart, TextPart, ToolCall
from ostro.entrypoints.api.openai.custom_tools import arguments_of

MEDIA = {
    "image_url": "image",
    "input_image": "image",
    "audio_url": "audio",
    "video_url": "video",
}
"""Types of parts with a URL, and the kinds of their media."""


class FilePart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A file: the id of an uploaded one, or its data in base64 or as a data URL."""

    file_id: str | None = None
    file_data: str | None = None
    filename: str | None = None


class ContentPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A part of a message's content: text, a medium with a URL or, for audio, data, or a file.

    Types as in OpenAI's API and vLLM: text, refusal, image_url, input_audio, audio_url, video_url,
    file. `prompt_cache_breakpoint` and `cache_control` have no effect: the prefix cache finds
    repeated prefixes by itself.
    """

    type: str
    text: str | None = None
    refusal: str | None = None
    file: FilePart | None = None
    prompt_cache_breakpoint: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None
    image_url: str | dict[str, Any] | None = None
    audio_url: str | dict[str, Any] | None = None
    video_url: str | dict[str, Any] | None = None
    input_audio: dict[str, Any] | None = None


class FunctionCall(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A function call in the predecessor of `tool_calls`; `arguments` are JSON."""

    name: str
    arguments: str


class Message(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One turn of a conversation.

    `function_call` and the role function are the predecessors of `tool_calls` and of the role tool.
    `annotations`, the citations of a web search, are not part of the prompt.
    """

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    function_call: FunctionCall | None = None
    annotations: list[Any] | None = None
    audio: dict[str, Any] | None = None


def read_messages(messages: str | Sequence[Message]) -> list[text_requests.Message]:
    """Return the messages of a request, which may state one text of the user.

    Functions become tools, and a refusal the text of its answer. Raises RequestError for a
    malformed message, Unsupported for audio answers.
    """
    if isinstance(messages, str):
        return [text_requests.Message(role="user", content=messages)]
    called = dict[str, str]()  # the id of the newest call of each function
    return [read_message(message, i, called) for i, message in enumerate(messages)]


def read_message(message: Message, index: int, called: dict[str, str]) -> text_requests.Message:
    """Return a message. `called` are the ids of the calls of functions before it, by name."""
    where = f"messages[{index}]"
    check_message(message, where)
    role, call_id = message.role, message.tool_call_id
    calls = [read_call(call, where) for call in message.tool_calls or ()]
    if (call := message.function_call) is not None:
        called[call.name] = f"call{index:05}"
        calls = [ToolCall(name=call.name, arguments=call.arguments, id=called[call.name])]
    if role == "function":
        role, call_id = "tool", called.get(message.name or "", f"function {message.name}")
    reasoning = message.reasoning_content
    return text_requests.Message(
        role=role,
        content=read_content(message.refusal or message.content, where),
        name=message.name,
        reasoning=message.reasoning if reasoning is None else reasoning,
        tool_calls=calls,
        tool_call_id=call_id,
    )


def check_message(message: Message, where: str) -> None:
    """Raise RequestError for fields that contradict each other, Unsupported for audio answers."""
    if message.role == "function" and not message.name:
        raise RequestError(f"{where}: a function message needs name", param=f"{where}.name")
    if message.role != "assistant":
        for name in ("tool_calls", "function_call", "reasoning", "reasoning_content", "refusal"):
            if getattr(message, name):
                raise RequestError(
                    f"{where}: {name} belongs to the role assistant", param=f"{where}.{name}"
                )
    if message.audio is not None:
        raise Unsupported(f"{where}: audio answers are not supported", param=f"{where}.audio")
    if message.refusal and message.content:
        raise RequestError(f"{where}: refusal excludes content", param=f"{where}.refusal")
    if message.function_call is not None and message.tool_calls:
        raise RequestError(f"{where}: function_call excludes tool_calls", param=where)


def read_call(call: Mapping[str, Any], where: str) -> ToolCall:
    """Return a tool call; its arguments may be an object, as transformers writes them."""
    if call.get("type") == "custom":
        return read_custom_call(call, where)
    function, id = call.get("function", call), call.get("id") or ""
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not isinstance(id, str):
        raise RequestError(f"{where}.tool_calls has an entry without a function", param="messages")
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = msgspec.json.encode({} if arguments is None else arguments).decode()
    return ToolCall(name=name, arguments=arguments, id=id)


def read_custom_call(call: Mapping[str, Any], where: str) -> ToolCall:
    """Return a call of a custom tool as the model has written it."""
    id = call.get("id") or ""
    match call.get("custom"):
        case {"name": str(name), "input": str(input)} if isinstance(id, str):
            return ToolCall(name=name, arguments=arguments_of(input), id=id)
    raise RequestError(
        f"{where}.tool_calls has a custom call without custom.name and custom.input",
        param="messages",
    )


def read_content(
    content: str | Sequence[ContentPart] | None, where: str
) -> str | list[text_requests.ContentPart] | None:
    if content is None or isinstance(content, str):
        return content
    return [read_part(part, f"{where}.content") for part in content]


def read_part(part: ContentPart, where: str) -> text_requests.ContentPart:
    """Return a part. Raises RequestError for one of an unknown type, and for an empty one."""
    kind = part.type
    if kind == "file":
        file = part.file or FilePart()
        return text_requests.FilePart(
            file_id=file.file_id, file_data=file.file_data, filename=file.filename
        )
    if kind in ("text", "refusal"):
        text = part.text if kind == "text" else part.refusal
        if text is not None:
            return TextPart(text)
    elif kind == "input_audio":
        data = (part.input_audio or {}).get("data")
        if isinstance(data, str):
            return MediaPart("audio", f"data:;base64,{data}")
    elif (medium := MEDIA.get(kind)) is not None:
        url = getattr(part, f"{medium}_url")
        url = url.get("url") if isinstance(url, dict) else url
        if isinstance(url, str):
            return MediaPart(medium, url)
    raise RequestError(
        f"{where}: unknown or empty content part of type {kind!r:.40}; expected text, refusal, "
        "image_url, input_audio, audio_url, video_url or file",
        param=where,
    )
