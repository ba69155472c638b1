"""Conversion of Anthropic's requests to chat requests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import to_builtins

from ostro.errors import RequestError, Unsupported
from ostro.pipelines import ChatRequest, parse_request
from ostro.plugins.apis.anthropic.schema import (
    Block,
    CountTokensRequest,
    DocumentBlockParam,
    ImageBlockParam,
    MessageParam,
    MessagesRequest,
    OutputConfigParam,
    PlainTextSource,
    RedactedThinkingBlockParam,
    TextBlockParam,
    ThinkingBlockParam,
    ThinkingDisabled,
    ThinkingEnabled,
    ToolParam,
    ToolResultBlockParam,
    ToolUseBlockParam,
)

Placed = tuple[str, Block]
"""A content block and its path in the request."""
Parts = list[dict[str, Any]]
"""Content parts of a chat message."""
SAMPLING = {
    "max_tokens": "max_tokens",
    "stop_sequences": "stop",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "seed": "seed",
}
"""Fields of a request, and those of a chat request."""


def chat_request(request: CountTokensRequest) -> ChatRequest:
    """Return the chat request of a request.

    A final message of the assistant is continued. Raises RequestError for a malformed conversation,
    and Unsupported.
    """
    messages = chat_messages(request)
    fields: dict[str, Any] = {
        "model": request.model,
        "adapter": to_builtins(request.adapter),
        "adapters": to_builtins(request.adapters),
        "messages": messages,
        "tools": [chat_tool(tool, f"tools[{i}]") for i, tool in enumerate(request.tools or ())],
        **tool_choice(request),
        "chat_template_kwargs": template_options(request),
        "logits_processors": processors_of(request.output_config),
    }
    if isinstance(request.thinking, ThinkingEnabled):
        fields["thinking_budget"] = request.thinking.budget_tokens
    elif isinstance(request.thinking, ThinkingDisabled):
        fields["reasoning_effort"] = "none"
    if isinstance(request, MessagesRequest):
        fields |= {name: getattr(request, own) for own, name in SAMPLING.items()}
    if messages[-1]["role"] == "assistant":
        if "tool_calls" in messages[-1]:
            raise RequestError(
                "messages: the final message has a tool_use block without its tool_result; end "
                "with a user message",
                param="messages",
            )
        fields |= {"continue_final_message": True, "add_generation_prompt": False}
    return parse_request(
        {name: x for name, x in fields.items() if x not in (None, [], {})}, ChatRequest
    )


def chat_messages(request: CountTokensRequest) -> Parts:
    """Return the messages of a chat request."""
    found: Parts = []
    if request.system:
        found.append({"role": "system", "content": content_of(placed(request.system, "system"))})
    calls: set[str] = set()  # ids of the tool calls in the preceding answer
    for role, blocks in turns(request.messages):
        if role == "assistant":
            found.append(assistant_message(blocks))
            calls = {block.id for _, block in blocks if isinstance(block, ToolUseBlockParam)}
        elif role == "user":
            found += user_messages(blocks, calls)
        else:
            found.append({"role": role, "content": content_of(blocks)})
    return found


def turns(messages: Sequence[MessageParam]) -> list[tuple[str, list[Placed]]]:
    """Return the roles and blocks of turns: consecutive messages of one role.

    Raises RequestError for a message without content.
    """
    if not messages:
        raise RequestError("messages is empty; expected at least one message", param="messages")
    found: list[tuple[str, list[Placed]]] = []
    for i, message in enumerate(messages):
        if not found or found[-1][0] != message.role:
            found.append((message.role, []))
        found[-1][1].extend(placed(message.content, f"messages[{i}].content"))
    return found


def placed(content: str | Sequence[Block], where: str) -> list[Placed]:
    """Return the blocks of a content and their paths. Raises RequestError for empty content."""
    if isinstance(content, str):
        found: list[Placed] = [(where, TextBlockParam(text=content))]
    else:
        found = [(f"{where}[{i}]", block) for i, block in enumerate(content)]
    if not found:
        raise RequestError(f"{where} is an empty list; send at least one block", param=where)
    for place, block in found:
        if isinstance(block, TextBlockParam) and not block.text:
            raise RequestError(f"{place}: the text is empty", param=place)
    return found


def user_messages(blocks: Iterable[Placed], calls: set[str]) -> Parts:
    """Return the messages of a user's turn: results of tools become messages of their own.

    Raises RequestError for a result without a call in the preceding answer.
    """
    found: Parts = []
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
            found.append({"role": "user", "content": content_of(rest)})
            rest = []
        result = {"tool_call_id": block.tool_use_id, "content": result_of(block, where)}
        found.append({"role": "tool", **result})
    if rest:
        found.append({"role": "user", "content": content_of(rest)})
    return found


def result_of(block: ToolResultBlockParam, where: str) -> str | Parts:
    """Return the content of a tool message. That of an error starts with "Error:"."""
    content = block.content or ""
    parts = [] if not content else parts_of(placed(content, f"{where}.content"))
    if block.is_error:
        parts = [text_part("Error:"), *parts]
    return joined(parts)


def assistant_message(blocks: Iterable[Placed]) -> dict[str, Any]:
    """Return the message of an assistant's turn. Raises RequestError for blocks of users."""
    said: list[Placed] = []
    thoughts: list[str] = []
    calls: Parts = []
    for where, block in blocks:
        match block:
            case ThinkingBlockParam():
                thoughts.append(block.thinking)
            case RedactedThinkingBlockParam():
                pass  # only the server that encrypted it can read it
            case ToolUseBlockParam():
                arguments = json.dumps(block.input, ensure_ascii=False)
                function = {"name": block.name, "arguments": arguments}
                calls.append({"id": block.id, "type": "function", "function": function})
            case TextBlockParam():
                said.append((where, block))
            case _:
                raise misplaced(block, where, "an assistant")
    message = {"role": "assistant", "content": content_of(said)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    return message | ({"tool_calls": calls} if calls else {})


def content_of(blocks: Iterable[Placed]) -> str | Parts:
    """Return the content of a chat message. Raises RequestError for blocks of assistants."""
    return joined(parts_of(blocks))


def joined(parts: Parts) -> str | Parts:
    """Return parts as one text with line breaks between them, unless there are images."""
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def parts_of(blocks: Iterable[Placed]) -> Parts:
    """Return the content parts of texts, images and documents."""
    found: Parts = []
    for where, block in blocks:
        match block:
            case TextBlockParam():
                found.append(text_part(block.text))
            case ImageBlockParam():
                found.append({"type": "image_url", "image_url": {"url": block.source.address}})
            case DocumentBlockParam():
                found += document_parts(block, where)
            case _:
                raise misplaced(block, where, "a user")
    return found


def document_parts(block: DocumentBlockParam, where: str) -> Parts:
    """Return the content parts of a document: its title, its context and its content."""
    if block.citations is not None and block.citations.enabled:
        raise Unsupported(
            f"{where}.citations: citations are not supported; leave it out",
            param=f"{where}.citations",
        )
    source, heading = block.source, [text_part(x) for x in (block.title, block.context) if x]
    if isinstance(source, PlainTextSource):
        return [*heading, text_part(source.data)]
    return [*heading, *parts_of(placed(source.content, f"{where}.source.content"))]


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def misplaced(block: Block, where: str, role: str) -> RequestError:
    """Return the error for a block that messages of a role do not contain."""
    kind = block.__struct_config__.tag
    return RequestError(f"{where}: {role} message contains no {kind} block", param=where)


def chat_tool(tool: ToolParam, where: str) -> dict[str, Any]:
    """Return a tool of a chat request. Raises Unsupported for options without an implementation."""
    options = {
        "defer_loading": tool.defer_loading and "tool search is not supported",
        "eager_input_streaming": tool.eager_input_streaming is False
        and "inputs are always streamed",
    }
    for name, reason in options.items():
        if reason:
            raise Unsupported(f"{where}.{name}: {reason}; leave it out", param=f"{where}.{name}")
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.strict:
        function["strict"] = True
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": function}


def tool_choice(request: CountTokensRequest) -> dict[str, Any]:
    """Return the fields of a chat request for a tool choice. Raises RequestError without a name."""
    choice = request.tool_choice
    if choice is None:
        return {}
    found: dict[str, Any] = {"tool_choice": {"any": "required"}.get(choice.type, choice.type)}
    if choice.type == "tool":
        if choice.name is None:
            raise RequestError("tool_choice.name is missing", param="tool_choice.name")
        found["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    if choice.disable_parallel_tool_use:
        found["parallel_tool_calls"] = False
    return found


def processors_of(output: OutputConfigParam | None) -> dict[str, Any] | None:
    """Return the logits processor of an output format, None without one."""
    if output is None or output.format is None:
        return None
    schema = output.format.schema
    return {"grammar": {"json_schema": schema, "field": "output_config.format"}}


def template_options(request: CountTokensRequest) -> Mapping[str, Any]:
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
