"""Items as the messages of a chat request."""

from __future__ import annotations

from collections.abc import Sequence

from ostro.core.errors import RequestError
from ostro.core.messages.text_requests import (
    ContentPart,
    FilePart,
    MediaPart,
    Message,
    TextPart,
    ToolCall,
)
from ostro.entrypoints.api.openai.custom_tools import arguments_of
from ostro.entrypoints.api.openai.responses.client_items import (
    ClientCall,
    ClientCallOutput,
    joined_name,
)
from ostro.entrypoints.api.openai.responses.items import (
    CallItem,
    CallOutputItem,
    CustomCallItem,
    CustomCallOutputItem,
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    MessageItem,
    ReasoningItem,
    carried_reasoning,
    tag_of,
)
from ostro.entrypoints.api.openai.responses.parts import (
    InputFile,
    InputImage,
    InputText,
    OutputRefusal,
    OutputText,
    Part,
)


def chat_messages(instructions: str | None, items: Sequence[Item]) -> list[Message]:
    """Return the messages of a chat.

    Reasoning, text and function calls of one turn of the assistant become one message, as chat
    templates expect it. Raises RequestError as `chat_part` and `answer_text`.
    """
    messages, calls = list[Message](), list[ToolCall]()
    if instructions is not None:
        messages.append(Message(role="system", content=instructions))
    for item in items:
        match item:
            case MessageItem(role="assistant"):
                open_answer(messages, "content", "tool_calls").content = answer_text(item)
            case MessageItem():
                messages.append(Message(role=item.role, content=content_of(item.content)))
            case ReasoningItem() if text := reasoning_text(item):  # not of an encrypted one
                answer = open_answer(messages, "reasoning", "content", "tool_calls")
                answer.reasoning = text
            case FunctionCallItem() | CustomCallItem() | ClientCall():
                answer = open_answer(messages)
                if not answer.tool_calls:
                    answer.tool_calls = calls = []
                calls.append(chat_call(item))
            case FunctionCallOutputItem() | CustomCallOutputItem():
                content = content_of(item.output)
                messages.append(Message(role="tool", tool_call_id=item.call_id, content=content))
            case ClientCallOutput():
                messages.append(Message(role="tool", tool_call_id=item.call_id, content=item.text))
    return messages


def chat_call(item: CallItem) -> ToolCall:
    """Return a call as the model has written it."""
    if isinstance(item, ClientCall):
        return ToolCall(id=item.call_id, name=item.tool, arguments=item.arguments_text)
    if isinstance(item, FunctionCallItem):
        arguments = item.arguments
    else:
        arguments = arguments_of(item.input)
    name = joined_name(item.namespace, item.name)
    return ToolCall(id=item.call_id, name=name, arguments=arguments)


def open_answer(messages: list[Message], *taken: str) -> Message:
    """Return the last message if it is the assistant's and lacks the fields; else a new one."""
    last = messages[-1] if messages and messages[-1].role == "assistant" else None
    if last is None or any(getattr(last, name) not in (None, ()) for name in taken):
        messages.append(last := Message(role="assistant"))
    return last


def answer_text(message: MessageItem) -> str:
    """Return the text of an answer, or its refusal. Raises RequestError for both."""
    if isinstance(message.content, str):
        return message.content
    text = "".join(part.text for part in message.content if isinstance(part, OutputText))
    refusal = "".join(part.refusal for part in message.content if isinstance(part, OutputRefusal))
    if text and refusal:
        raise RequestError("input: refusal excludes content", param="input")
    return text or refusal


def reasoning_text(item: ReasoningItem) -> str:
    """Return the text of reasoning, or of its summary without one."""
    text = "".join(part.text for part in item.content or ())
    text = text or carried_reasoning(item.encrypted_content)
    return text or "".join(part.text for part in item.summary)


def content_of(content: str | Sequence[Part]) -> str | list[ContentPart]:
    """Return the content of a message; a single text without the list around it."""
    if isinstance(content, str):
        return content
    if len(content) == 1 and isinstance(content[0], InputText):
        return content[0].text
    return [chat_part(part) for part in content]


def chat_part(part: Part) -> ContentPart:
    """Return a part of a message. Raises RequestError for a file without content."""
    match part:
        case InputText():
            return TextPart(part.text)
        case InputImage(image_url=str(url)) if url:
            return MediaPart("image", url)
        case InputImage(file_id=str(id)) if id:
            return FilePart(file_id=id)
        case InputFile(file_data=data, file_id=file_id, filename=name) if data or file_id:
            return FilePart(file_data=data or None, file_id=file_id or None, filename=name or None)
    needed = "image_url or file_id" if isinstance(part, InputImage) else "file_data or file_id"
    raise RequestError(f"input: a part of type {tag_of(part)} needs {needed}", param="input")


def without_orphans(items: Sequence[Item]) -> list[Item]:
    """Return items without the outputs of calls that are not among them."""
    calls = {item.call_id for item in items if isinstance(item, CallItem)}

    def is_orphan(item: Item) -> bool:
        return isinstance(item, CallOutputItem) and item.call_id not in calls

    return [item for item in items if not is_orphan(item)]
