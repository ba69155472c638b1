"""Converts Ollama's requests to those of the operations."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ostro.errors import RequestError, Unsupported
from ostro.http import ModelEntry, read_logprobs, read_tools
from ostro.pipelines import (
    JSON_OBJECT,
    ChatRequest,
    CompletionRequest,
    Constraint,
    ContentPart,
    JsonSchema,
    MediaPart,
    Message,
    TextPart,
    TextRequest,
    Tool,
    ToolCall,
)
from ostro.plugins.apis.ollama.options import set_sampling
from ostro.plugins.apis.ollama.schema import (
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaGeneration,
    OllamaMessage,
)
from ostro.plugins.apis.ollama.templates import check_tools, ignore_effort, set_reasoning

REJECTED: Mapping[str, str] = {
    "context": "token ids of an earlier response are not supported; use /api/chat",
    "template": "a template in a request is not supported; use `ostro serve --chat-template`",
}
"""Fields that have to be empty, and the reasons."""


def chat_request(body: OllamaChatRequest, entry: ModelEntry) -> ChatRequest:
    """Return the request for a conversation.

    Raises RequestError for malformed messages and tools, Unsupported for what the model cannot do.
    """
    tools, messages = read_tools(body.tools), chat_messages(body.messages or ())
    check_tools(tools, entry)
    return request_of(body, entry, messages, tools)


def without_oldest(messages: Sequence[Message], count: int) -> Sequence[Message]:
    """Return messages without the first ones, except for those of the system.

    Results of tools whose calls are among these go with them.
    """
    kept = [message for message in messages[:count] if message.role == "system"]
    rest = messages[count:]
    while count and len(rest) > 1 and rest[0].role == "tool":
        rest = rest[1:]
    return [*kept, *rest]


def prompt_request(body: OllamaGenerateRequest, entry: ModelEntry) -> ChatRequest:
    """Return the chat request for a prompt. Raises RequestError for images that are not base64."""
    messages = [Message(role="user", content=content_of(body.prompt, body.images or [], "images"))]
    if body.system:
        messages.insert(0, Message(role="system", content=body.system))
    return request_of(body, entry, messages)


def request_of(
    body: OllamaGeneration, entry: ModelEntry, messages: list[Message], tools: Sequence[Tool] = ()
) -> ChatRequest:
    """Return the request for messages; a final message of the assistant is continued."""
    continued = messages[-1].role == "assistant" and not messages[-1].tool_calls
    request = ChatRequest(messages=messages, tools=tools, continue_final_message=continued)
    set_shared_fields(request, body, entry)
    set_reasoning(request, body, entry)
    return request


def completion_request(body: OllamaGenerateRequest, entry: ModelEntry) -> CompletionRequest:
    """Return the request for a raw prompt. Raises Unsupported for what needs a chat."""
    for name in ("system", "images", "think"):
        if getattr(body, name):
            raise Unsupported(
                f"{name}: not supported with raw or suffix, which use no chat template", param=name
            )
    request = CompletionRequest(
        prompts=[body.prompt],
        suffix=body.suffix or None,
    )
    set_shared_fields(request, body, entry)
    if body.options.reasoning_effort is not None:
        ignore_effort(body.options.reasoning_effort, "raw and suffix use no chat template")
    return request


def set_shared_fields(request: TextRequest, body: OllamaGeneration, entry: ModelEntry) -> None:
    """Set the model, the adapters, the format and the sampling of a request.

    Raises Unsupported for a field in `REJECTED`, RequestError for an option out of range.
    """
    for name, reason in REJECTED.items():
        if getattr(body, name, None):
            raise Unsupported(f"{name}: {reason}", param=name)
    request.logprobs = read_logprobs(body.logprobs, body.top_logprobs)
    request.model, request.adapter, request.adapters = entry.id, body.adapter, body.adapters
    request.constraint = constraint_of(body.format)
    set_sampling(request, body.options)


def constraint_of(format: str | dict[str, Any]) -> Constraint | None:
    """Return the constraint of a format: "json" or a JSON schema; None for "".

    Raises RequestError for another text.
    """
    if format in ("", {}):
        return None
    if isinstance(format, dict):
        return Constraint(JsonSchema(format), "format")
    if format != "json":
        raise RequestError(
            f"format: {format!r:.40} is unknown; expected json or a JSON schema", param="format"
        )
    return Constraint(JSON_OBJECT, "format")


def chat_messages(given: Sequence[OllamaMessage]) -> list[Message]:
    """Return the messages of a chat request.

    Calls without an id get one, and tool messages the id of their call. Raises RequestError for
    images that are not base64 and for results without a call.
    """
    messages, open_calls = list[Message](), list[ToolCall]()  # calls without a result
    own_ids = set[str]()
    for number, source in enumerate(given):
        place = f"messages[{number}]"
        message = Message(
            role=source.role,
            content=content_of(source.content, source.images or [], f"{place}.images"),
            reasoning=source.thinking or None,
            tool_calls=[
                ToolCall(
                    id=call.id or f"call_{number}_{index}",
                    name=call.function.name,
                    arguments=msgspec.json.encode(call.function.arguments).decode(),
                )
                for index, call in enumerate(source.tool_calls or ())
            ],
        )
        calls = zip(message.tool_calls, source.tool_calls or (), strict=True)
        own_ids |= {call.id for call, given_call in calls if not given_call.id}
        open_calls += message.tool_calls
        if source.role == "tool":
            call = take_call(open_calls, own_ids, source, place)
            message.name, message.tool_call_id = call.name, call.id
        messages.append(message)
    return messages


def take_call(
    open_calls: list[ToolCall], own_ids: set[str], message: OllamaMessage, place: str
) -> ToolCall:
    """Remove and return the call that a tool message has the result of.

    own_ids: the ids that the client did not send. Raises RequestError if there is no call.
    """
    named = message.tool_call_id or message.tool_name
    candidates = [call for call in open_calls if not named or named in (call.id, call.name)]
    # litellm sends an id of its own with the result, and none with the call.
    if message.tool_call_id:
        unnamed = [call for call in open_calls if call.id in own_ids]
        candidates += [call for call in unnamed if (message.tool_name or call.name) == call.name]
    if candidates:
        open_calls.remove(candidates[0])
        return candidates[0]
    wanted = f" of {named!r:.80}" if named else ""
    raise RequestError(f"{place}: no message before it has a tool call{wanted}", param=place)


def content_of(text: str | None, images: list[str], place: str) -> str | list[ContentPart] | None:
    """Return the content of a message. Images precede the text, as in Ollama.

    `place` is the name of the field with the images in errors.
    """
    parts: list[ContentPart] = []
    for index, image in enumerate(images):
        check_base64(image, f"{place}[{index}]")
        parts.append(MediaPart("image", f"data:application/octet-stream;base64,{image}"))
    return [*parts, TextPart(text or "")] if parts else text


def check_base64(image: str, place: str) -> None:
    """Raise RequestError for an image that is not base64."""
    try:
        good = bool(base64.b64decode(image, validate=True))
    except (binascii.Error, ValueError):
        good = False
    if not good:
        raise RequestError(f"{place} is not base64; encode the bytes of an image", param=place)
