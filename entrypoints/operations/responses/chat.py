"""Items as the messages of a chat request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ostro.core.errors import RequestError
from ostro.entrypoints.operations.responses.items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputFile,
    InputImage,
    InputText,
    Item,
    MessageItem,
    OutputRefusal,
    OutputText,
    Part,
    ReasoningItem,
)


def chat_messages(instructions: str | None, items: Sequence[Item]) -> list[dict[str, Any]]:
    """Return the messages of a chat.

    Reasoning, text and function calls of one turn of the assistant become one message, as chat
    templates expect it.
    """
    messages: list[dict[str, Any]] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    for item in items:
        match item:
            case MessageItem(role="assistant"):
                answer = open_answer(messages, "content", "tool_calls")
                answer |= assistant_content(item)
            case MessageItem():
                messages.append({"role": item.role, "content": content_of(item.content)})
            case ReasoningItem():
                answer = open_answer(messages, "reasoning_content", "content", "tool_calls")
                answer["reasoning_content"] = reasoning_text(item)
            case FunctionCallItem():
                answer = open_answer(messages)
                answer.setdefault("tool_calls", []).append(tool_call(item))
            case FunctionCallOutputItem():
                content = content_of(item.output)
                messages.append({"role": "tool", "tool_call_id": item.call_id, "content": content})
    return messages


def open_answer(messages: list[dict[str, Any]], *taken: str) -> dict[str, Any]:
    """Return the last message if it is the assistant's and lacks the fields; else a new one."""
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant" or any(name in last for name in taken):
        messages.append(last := {"role": "assistant"})
    return last


def assistant_content(message: MessageItem) -> dict[str, Any]:
    """Return the fields of an answer: its text, and a refusal."""
    parts = message.content if isinstance(message.content, list) else []
    texts = [part.text for part in parts if isinstance(part, OutputText)]
    refusals = [part.refusal for part in parts if isinstance(part, OutputRefusal)]
    found = {"content": "".join(texts)} if texts or not refusals else {}
    return found | ({"refusal": "".join(refusals)} if refusals else {})


def reasoning_text(item: ReasoningItem) -> str:
    """Return the text of reasoning, or of its summary without one."""
    return "".join(part.text for part in (item.content or item.summary))


def tool_call(item: FunctionCallItem) -> dict[str, Any]:
    function = {"name": item.name, "arguments": item.arguments}
    return {"id": item.call_id, "type": "function", "function": function}


def content_of(content: str | Sequence[Part]) -> str | list[dict[str, Any]]:
    """Return the content of a message; a single text without the list around it."""
    if isinstance(content, str):
        return content
    if len(content) == 1 and isinstance(content[0], InputText):
        return content[0].text
    return [chat_part(part) for part in content]


def chat_part(part: Part) -> dict[str, Any]:
    """Return a part of a message. Raises RequestError for a file without content."""
    match part:
        case InputText():
            return {"type": "text", "text": part.text}
        case InputImage() if part.image_url:
            return {
                "type": "image_url",
                "image_url": {"url": part.image_url, "detail": part.detail},
            }
        case InputImage() if part.file_id:
            return {"type": "file", "file": {"file_id": part.file_id}}
        case InputFile() if part.file_data or part.file_id:
            names = ("file_data", "file_id", "filename")
            fields = {name: getattr(part, name) for name in names if getattr(part, name)}
            return {"type": "file", "file": fields}
    kind = part.__struct_config__.tag
    needed = "image_url or file_id" if isinstance(part, InputImage) else "file_data or file_id"
    raise RequestError(f"input: a part of type {kind} needs {needed}", param="input")


def without_orphans(items: Sequence[Item]) -> list[Item]:
    """Return items without the outputs of function calls that are not among them."""
    calls = {item.call_id for item in items if isinstance(item, FunctionCallItem)}

    def is_orphan(item: Item) -> bool:
        return isinstance(item, FunctionCallOutputItem) and item.call_id not in calls

    return [item for item in items if not is_orphan(item)]
