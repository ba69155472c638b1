"""Conversion of Anthropic's requests to chat requests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ostro.errors import RequestError, Unsupported
from ostro.pipelines import (
    ChatRequest,
    Constraint,
    ContentPart,
    JsonSchema,
    MediaPart,
    Message,
    TextPart,
    Tool,
    ToolCall,
)
from ostro.plugins.apis.anthropic.client_tools import CLIENT_TOOLS, client_tool, custom_tool
from ostro.plugins.apis.anthropic.schema import (
    Block,
    CitationsConfig,
    CountTokensRequest,
    DocumentBlockParam,
    ImageBlockParam,
    MessageParam,
    MessagesRequest,
    OutputConfigParam,
    PlainTextSource,
    RedactedThinkingBlockParam,
    SearchResultBlockParam,
    TextBlockParam,
    ThinkingBlockParam,
    ThinkingDisabled,
    ThinkingEnabled,
    ToolChoiceParam,
    ToolParam,
    ToolReferenceBlockParam,
    ToolResultBlockParam,
    ToolUseBlockParam,
)
from ostro.plugins.apis.anthropic.support import takes_tool

BILLING = re.compile(r"x-anthropic-billing-header: [^\r\n]*\n?")
"""The line with which some clients begin the system prompt. No text for the model is in it."""

AnyBlock = Block | ToolReferenceBlockParam
Placed = tuple[str, AnyBlock]
"""A content block and its path in the request."""


def chat_request(request: CountTokensRequest) -> ChatRequest:
    """Return the chat request of a request.

    A final message of the assistant is continued. Raises RequestError for a malformed conversation,
    and Unsupported.
    """
    messages = chat_messages(request)
    if messages[-1].tool_calls:
        raise RequestError(
            "messages: the final message has a tool_use block without its tool_result; end with a "
            "user message",
            param="messages",
        )
    chat = ChatRequest(
        model=request.model,
        adapter=request.adapter,
        adapters=request.adapters,
        messages=messages,
        continue_final_message=messages[-1].role == "assistant",
        tools=chat_tools(request),
        chat_template_kwargs=template_options(request),
        constraint=constraint_of(request.output_config),
    )
    set_tool_choice(chat, request.tool_choice)
    if isinstance(request.thinking, ThinkingEnabled):
        chat.thinking_budget = request.thinking.budget_tokens
    elif isinstance(request.thinking, ThinkingDisabled):
        chat.reasoning_effort = "none"
    if isinstance(request, MessagesRequest):
        # No tokens at all fill the prefix cache: the engine makes one, which the answer leaves out.
        chat.max_tokens = request.max_tokens or 1
        chat.stop = request.stop_sequences or ()
        chat.temperature = request.temperature
        chat.top_p = request.top_p
        chat.top_k = request.top_k
        chat.seed = request.seed
    return chat


def chat_messages(request: CountTokensRequest) -> list[Message]:
    """Return the messages of a chat request."""
    messages: list[Message] = []
    if request.system and (blocks := without_billing(placed(request.system, "system"))):
        messages.append(Message(role="system", content=content_of(blocks)))
    calls: set[str] = set()  # ids of the tool calls in the preceding answer
    for role, blocks in turns(request.messages):
        if role == "assistant":
            messages.append(assistant_message(blocks))
            calls = {block.id for _, block in blocks if isinstance(block, ToolUseBlockParam)}
        elif role == "user":
            messages += user_messages(blocks, calls)
        else:
            messages.append(Message(role=role, content=content_of(blocks)))
    return messages


def without_billing(system: list[Placed]) -> list[Placed]:
    """Return the blocks of a system prompt without a first one that is a line about billing.

    Its hash is another one in each request, so that the prefix cache would find nothing behind it.
    """
    match system:
        case [(_, TextBlockParam(text=text)), *rest] if BILLING.fullmatch(text):
            return rest
    return system


def turns(messages: Sequence[MessageParam]) -> list[tuple[str, list[Placed]]]:
    """Return the roles and blocks of turns: consecutive messages of one role.

    Raises RequestError for a message without content.
    """
    if not messages:
        raise RequestError("messages is empty; expected at least one message", param="messages")
    turns: list[tuple[str, list[Placed]]] = []
    for i, message in enumerate(messages):
        if not turns or turns[-1][0] != message.role:
            turns.append((message.role, []))
        turns[-1][1].extend(placed(message.content, f"messages[{i}].content"))
    return turns


def placed(content: str | Sequence[AnyBlock], where: str) -> list[Placed]:
    """Return the blocks of a content and their paths. Raises RequestError for empty content."""
    if isinstance(content, str):
        blocks: list[Placed] = [(where, TextBlockParam(text=content))]
    else:
        blocks = [(f"{where}[{i}]", block) for i, block in enumerate(content)]
    if not blocks:
        raise RequestError(f"{where} is an empty list; send at least one block", param=where)
    for place, block in blocks:
        if isinstance(block, TextBlockParam) and not block.text:
            raise RequestError(f"{place}: the text is empty", param=place)
    return blocks


def user_messages(blocks: Iterable[Placed], calls: set[str]) -> list[Message]:
    """Return the messages of a user's turn: results of tools become messages of their own.

    Raises RequestError for a result without a call in the preceding answer.
    """
    messages: list[Message] = []
    rest: list[Placed] = []
    for where, block in blocks:
        if not isinstance(block, ToolResultBlockParam):
            rest.append((where, block))
            continue
        if block.tool_use_id not in calls:
            raise RequestError(
                f"{where}.tool_use_id: the preceding assistant message has no tool_use block with "
                f"the id {block.tool_use_id!r:.100}",
                param=f"{where}.tool_use_id",
            )
        if rest:
            messages.append(Message(role="user", content=content_of(rest)))
            rest = []
        result = result_of(block, where)
        messages.append(Message(role="tool", tool_call_id=block.tool_use_id, content=result))
    if rest:
        messages.append(Message(role="user", content=content_of(rest)))
    return messages


def result_of(block: ToolResultBlockParam, where: str) -> str | list[ContentPart]:
    """Return the content of a tool message. That of an error starts with "Error:"."""
    content = block.content or ""
    parts = [] if not content else parts_of(placed(content, f"{where}.content"))
    if block.is_error:
        parts = [TextPart("Error:"), *parts]
    return joined(parts)


def assistant_message(blocks: Iterable[Placed]) -> Message:
    """Return the message of an assistant's turn. Raises RequestError for blocks of users."""
    texts: list[Placed] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for where, block in blocks:
        match block:
            case ThinkingBlockParam():
                thoughts.append(block.thinking)
            case RedactedThinkingBlockParam():
                pass  # only the server that encrypted it can read it
            case ToolUseBlockParam():
                arguments = json.dumps(block.input, ensure_ascii=False)
                calls.append(ToolCall(id=block.id, name=block.name, arguments=arguments))
            case TextBlockParam():
                texts.append((where, block))
            case _:
                raise misplaced(block, where, "an assistant")
    reasoning = "\n".join(thoughts) if thoughts else None
    content = content_of(texts)
    return Message(role="assistant", content=content, reasoning=reasoning, tool_calls=calls)


def content_of(blocks: Iterable[Placed]) -> str | list[ContentPart]:
    """Return the content of a chat message. Raises RequestError for blocks of assistants."""
    return joined(parts_of(blocks))


def joined(parts: list[ContentPart]) -> str | list[ContentPart]:
    """Return parts as one text with line breaks between them, unless there are images."""
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    return "\n".join(texts) if len(texts) == len(parts) else parts


def parts_of(blocks: Iterable[Placed]) -> list[ContentPart]:
    """Return the content parts of texts, images and documents."""
    parts: list[ContentPart] = []
    for where, block in blocks:
        match block:
            case TextBlockParam():
                parts.append(TextPart(block.text))
            case ImageBlockParam():
                parts.append(MediaPart("image", block.source.address))
            case DocumentBlockParam():
                parts += document_parts(block, where)
            case SearchResultBlockParam():
                check_citations(block.citations, where)
                parts += [TextPart(block.title), TextPart(block.source)]
                parts += [TextPart(text.text) for text in block.content]
            case ToolReferenceBlockParam():
                parts.append(TextPart(f"The tool {block.tool_name} can be called now."))
            case _:
                raise misplaced(block, where, "a user")
    return parts


def document_parts(block: DocumentBlockParam, where: str) -> list[ContentPart]:
    """Return the content parts of a document: its title, its context and its content."""
    check_citations(block.citations, where)
    source, heading = block.source, [TextPart(x) for x in (block.title, block.context) if x]
    if isinstance(source, PlainTextSource):
        return [*heading, TextPart(source.data)]
    return [*heading, *parts_of(placed(source.content, f"{where}.source.content"))]


def check_citations(citations: CitationsConfig | None, where: str) -> None:
    """Raise Unsupported for citations that the answer would have to contain."""
    if citations is not None and citations.enabled:
        raise Unsupported(
            f"{where}.citations: citations are not supported; leave it out",
            param=f"{where}.citations",
        )


def misplaced(block: AnyBlock, where: str, role: str) -> RequestError:
    """Return the error for a block that messages of a role do not contain."""
    kind = block.__struct_config__.tag
    return RequestError(f"{where}: {role} message contains no {kind} block", param=where)


def chat_tools(request: CountTokensRequest) -> list[Tool]:
    """Return the tools of a chat request: those that the client runs and the model may call.

    Raises RequestError as `chat_tool`, and Unsupported as `takes_tool`.
    """
    referenced = set(references(request))
    tools: list[Tool] = []
    for i, tool in enumerate(request.tools or ()):
        if takes_tool(tool.type, where := f"tools[{i}]"):
            made = chat_tool(tool, where)
            if not tool.defer_loading or tool.name in referenced:
                tools.append(made)
    return tools


def chat_tool(tool: ToolParam, where: str) -> Tool:
    """Return a tool of a chat request. Raises as `client_tool` and `custom_tool`."""
    kind = CLIENT_TOOLS.get(tool.type or "custom")
    return custom_tool(tool, where) if kind is None else client_tool(tool, kind, where)


def references(request: CountTokensRequest) -> Iterator[str]:
    """Yield the names of the tools that results of tools refer to."""
    for message in request.messages:
        for block in () if isinstance(message.content, str) else message.content:
            if isinstance(block, ToolResultBlockParam) and isinstance(block.content, list):
                for part in block.content:
                    if isinstance(part, ToolReferenceBlockParam):
                        yield part.tool_name


def set_tool_choice(chat: ChatRequest, choice: ToolChoiceParam | None) -> None:
    """Set which tools the model may or must call. Raises RequestError for a tool without a name."""
    if choice is None:
        return
    match choice.type:
        case "auto" | "none":
            chat.tool_choice = choice.type
        case "any":
            chat.tool_choice = "required"
        case "tool":
            if choice.name is None:
                raise RequestError("tool_choice.name is missing", param="tool_choice.name")
            chat.tool_choice, chat.allowed_tools = "required", [choice.name]
    if choice.disable_parallel_tool_use:
        chat.parallel_tool_calls = False


def constraint_of(output: OutputConfigParam | None) -> Constraint | None:
    """Return the constraint of an output format, None without one."""
    if output is None or output.format is None:
        return None
    return Constraint(JsonSchema(output.format.schema), "output_config.format")


def template_options(request: CountTokensRequest) -> dict[str, Any]:
    """Return the options of the chat template. Raises RequestError for a budget too large.

    Templates that do not have these options ignore them.
    """
    options: dict[str, Any] = {}
    thinking, output = request.thinking, request.output_config
    if isinstance(thinking, ThinkingEnabled):
        options |= {"enable_thinking": True, "thinking": True}
        options["thinking_budget"] = thinking.budget_tokens
        if isinstance(request, MessagesRequest) and thinking.budget_tokens >= request.max_tokens:
            raise RequestError(
                "thinking.budget_tokens: expected less than max_tokens",
                param="thinking.budget_tokens",
            )
    elif isinstance(thinking, ThinkingDisabled):
        options |= {"enable_thinking": False, "thinking": False}
    if output is not None and output.effort is not None:
        options["reasoning_effort"] = output.effort
    return options
