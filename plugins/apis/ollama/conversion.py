"""Converts Ollama's requests to those of the operations."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from ostro.errors import RequestError, Unsupported
from ostro.http import ModelEntry
from ostro.plugins.apis.ollama.options import sampling_fields
from ostro.plugins.apis.ollama.schema import (
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaGeneration,
    OllamaMessage,
)
from ostro.plugins.apis.ollama.templates import check_tools, reasoning_fields

REJECTED: Mapping[str, str] = {
    "context": "token ids of an earlier response are not supported; use /api/chat",
    "template": "a template in a request is not supported; use `ostro serve --chat-template`",
}
"""Fields that have to be empty, and the reasons."""


def chat_fields(request: OllamaChatRequest, entry: ModelEntry) -> dict[str, Any]:
    """Return the chat request for a conversation; a final message of the assistant is continued.

    Raises RequestError for malformed messages, Unsupported for what the model cannot do.
    """
    check_tools(request.tools or (), entry)
    messages = converted(request.messages or ())
    continued = messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]
    return {
        **shared_fields(request, entry),
        **reasoning_fields(request.think, entry, request.tools or ()),
        **logprob_fields(request),
        "messages": messages,
        "tools": request.tools or None,
        "continue_final_message": continued or None,
    }


def prompt_fields(request: OllamaGenerateRequest, entry: ModelEntry) -> dict[str, Any]:
    """Return the chat request for a prompt. Raises RequestError for images that are not base64."""
    messages = [OllamaMessage(role="user", content=request.prompt, images=request.images)]
    if request.system:
        messages.insert(0, OllamaMessage(role="system", content=request.system))
    return {
        **shared_fields(request, entry),
        **reasoning_fields(request.think, entry),
        **logprob_fields(request),
        "messages": converted(messages, "images"),
    }


def completion_fields(request: OllamaGenerateRequest, entry: ModelEntry) -> dict[str, Any]:
    """Return the completion request for a raw prompt. Raises Unsupported for what needs a chat."""
    for name in ("system", "images", "think"):
        if getattr(request, name):
            raise Unsupported(
                f"{name}: not supported with raw or suffix, which use no chat template", param=name
            )
    top = request.top_logprobs
    if top is not None and not request.logprobs:
        raise RequestError("top_logprobs needs logprobs=true", param="top_logprobs")
    return {
        **shared_fields(request, entry),
        "prompt": request.prompt,
        "suffix": request.suffix or None,
        "logprobs": top or 0 if request.logprobs else None,
    }


def shared_fields(request: OllamaGeneration, entry: ModelEntry) -> dict[str, Any]:
    """Return the model, the adapters and the sampling of a request.

    Raises Unsupported for a field in `REJECTED`, RequestError for an option out of range.
    """
    for name, reason in REJECTED.items():
        if getattr(request, name, None):
            raise Unsupported(f"{name}: {reason}", param=name)
    return {
        "model": entry.id,
        "adapter": msgspec.to_builtins(request.adapter),
        "adapters": msgspec.to_builtins(request.adapters),
        "logits_processors": processors_of(request.format),
        **sampling_fields(request.options, entry),
    }


def processors_of(format: str | dict[str, Any]) -> dict[str, Any] | None:
    """Return the logits processor of a format: "json" or a JSON schema; None for "".

    Raises RequestError for another text.
    """
    if format in ("", {}):
        return None
    if isinstance(format, dict):
        return {"grammar": {"json_schema": format, "field": "format"}}
    if format != "json":
        raise RequestError(
            f"format: {format!r:.40} is unknown; expected json or a JSON schema", param="format"
        )
    return {"grammar": {"json_object": True, "field": "format"}}


def logprob_fields(request: OllamaGeneration) -> dict[str, Any]:
    """Return the fields for log probabilities of a chat request."""
    return {"logprobs": request.logprobs, "top_logprobs": request.top_logprobs}


def converted(messages: Sequence[OllamaMessage], images: str = "") -> list[dict[str, Any]]:
    """Return the messages of a chat request.

    Calls without an id get one, and tool messages the id of their call. `images` is the name of the
    field with the images in errors.
    """
    found, calls = [], list[tuple[str, str]]()  # ids and names of the calls without a result
    for number, message in enumerate(messages):
        fields: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.images:
            place = images or f"messages[{number}].images"
            fields["content"] = parts(message.content or "", message.images, place)
        if message.thinking:
            fields["reasoning_content"] = message.thinking
        if message.tool_calls:
            fields["tool_calls"] = [
                {
                    "id": call.id or f"call_{number}_{index}",
                    "type": "function",
                    "function": {
                        "name": call.function.name,
                        "arguments": msgspec.json.encode(call.function.arguments).decode(),
                    },
                }
                for index, call in enumerate(message.tool_calls)
            ]
            calls += [(each["id"], each["function"]["name"]) for each in fields["tool_calls"]]
        if message.role == "tool":
            fields |= result_fields(message, calls, f"messages[{number}]")
        found.append(fields)
    return found


def result_fields(
    message: OllamaMessage, calls: list[tuple[str, str]], place: str
) -> dict[str, str]:
    """Return the id and the name of the call that a tool message has the result of.

    Removes the call from `calls`. Raises RequestError if there is none.
    """
    named = message.tool_call_id or message.tool_name
    for call in calls:
        if not named or named in call:
            calls.remove(call)
            return {"tool_call_id": call[0], "name": call[1]}
    wanted = f" of {named!r:.80}" if named else ""
    raise RequestError(f"{place}: no message before it has a tool call{wanted}", param=place)


def parts(text: str, images: Iterable[str], place: str) -> list[dict[str, Any]]:
    """Return the content of a message with images, which precede the text as in Ollama."""
    found: list[dict[str, Any]] = []
    for index, image in enumerate(images):
        check_base64(image, f"{place}[{index}]")
        address = f"data:application/octet-stream;base64,{image}"
        found.append({"type": "image_url", "image_url": {"url": address}})
    return [*found, {"type": "text", "text": text}]


def check_base64(image: str, place: str) -> None:
    """Raise RequestError for an image that is not base64."""
    try:
        good = bool(base64.b64decode(image, validate=True))
    except (binascii.Error, ValueError):
        good = False
    if not good:
        raise RequestError(f"{place} is not base64; encode the bytes of an image", param=place)
