"""The responses, events and errors of Anthropic's API; types have the names of its client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ostro.errors import ContextLengthExceeded
from ostro.http import request_id
from ostro.pipelines import Usage

StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
]
NAMES = {
    "stop": "stop_sequences",
    "thinking_budget": "thinking.budget_tokens",
    "reasoning_effort": "thinking",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
}
"""Fields of chat requests that have another name in Anthropic's API, and this name."""
STATUSES = {503: 529}
"""Statuses of errors that differ from OpenAI's."""
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""Types of errors by status; others are invalid_request_error, or api_error from 500 on."""


class ThreadUnsupported(msgspec.Struct, kw_only=True):
    """The code after which the client sends all messages, without the field `thread`."""

    error_code: Literal["thread_unsupported_request"] = "thread_unsupported_request"


class AnthropicErrorDetail(msgspec.Struct, kw_only=True):
    """What failed; the message names the field."""

    type: str
    message: str
    details: ThreadUnsupported | UnsetType = UNSET


class AnthropicError(msgspec.Struct, kw_only=True):
    """The JSON of an error."""

    type: Literal["error"] = "error"
    error: AnthropicErrorDetail
    request_id: str | None


def anthropic_error(
    status: int, message: str, code: str | None, param: str | None
) -> AnthropicError:
    """Return an error in Anthropic's form. `code` has no place in it."""
    if param is not None and (own := NAMES.get(param)):
        message = own + message.removeprefix(param) if message.startswith(param) else message
        param = own
    kind = TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    if param and param not in message:
        message = f"{param}: {message}"
    details = ThreadUnsupported() if param == "thread" else UNSET
    detail = AnthropicErrorDetail(type=kind, message=message, details=details)
    return AnthropicError(error=detail, request_id=request_id() or None)


@contextmanager
def own_words() -> Iterator[None]:
    """Let the error of a prompt beyond the context have the words by which clients recognize it."""
    try:
        yield
    except ContextLengthExceeded as error:
        if error.context is not None:
            least = "" if error.counted else "at least "
            tokens = f"{least}{error.needed} tokens > {error.context} maximum"
            error.args = (f"prompt is too long: {tokens}; shorten it, or {error.advice}",)
            error.param = None  # its name would come first
        raise


class TextBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="text"):
    """Text."""

    text: str
    citations: None = None


class ThinkingBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="thinking"):
    """Thinking. The signature is the SHA-256 of its text; the server does not verify it."""

    thinking: str
    signature: str


class ToolUseBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="tool_use"):
    """A tool call. Of malformed arguments the input has the text as `INVALID_JSON`."""

    id: str
    name: str
    input: dict[str, Any]


ContentBlock = TextBlock | ThinkingBlock | ToolUseBlock


class MessageUsage(msgspec.Struct, kw_only=True):
    """Token counts. `input_tokens` does not include those that were read from the prefix cache."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int
    service_tier: Literal["standard"] = "standard"

    @classmethod
    def of(cls, usage: Usage) -> MessageUsage:
        """Return the counts of a generation."""
        return cls(
            input_tokens=usage.prompt - usage.cached,
            cache_read_input_tokens=usage.cached,
            output_tokens=usage.completion,
        )


class ClearedThinking(
    msgspec.Struct, kw_only=True, tag_field="type", tag="clear_thinking_20251015"
):
    """Thinking was removed from turns."""

    cleared_thinking_turns: int
    cleared_input_tokens: int


class ClearedToolUses(
    msgspec.Struct, kw_only=True, tag_field="type", tag="clear_tool_uses_20250919"
):
    """Results of tool calls were replaced."""

    cleared_tool_uses: int
    cleared_input_tokens: int


AppliedEdit = ClearedThinking | ClearedToolUses


class ContextManagement(msgspec.Struct, kw_only=True):
    """The edits of the context that had an effect."""

    applied_edits: list[AppliedEdit]


class AssistantMessage(msgspec.Struct, kw_only=True):
    """An answer. `adapter_generations` are those of the adapters that were applied."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[ContentBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage
    context_management: ContextManagement | UnsetType = UNSET
    adapter_generations: list[str] | UnsetType = UNSET


class StreamEvent(msgspec.Struct, kw_only=True, tag_field="type"):
    """An event of a stream. `type` is its name."""


class MessageStart(StreamEvent, kw_only=True, tag="message_start"):
    """The first event: the message without content."""

    message: AssistantMessage


class Ping(StreamEvent, kw_only=True, tag="ping"):
    """An event without meaning, which keeps the connection."""


class ContentBlockStart(StreamEvent, kw_only=True, tag="content_block_start"):
    """A block without content begins."""

    index: int
    content_block: ContentBlock


class TextDelta(msgspec.Struct, kw_only=True, tag_field="type", tag="text_delta"):
    """The next piece of a text."""

    text: str


class ThinkingDelta(msgspec.Struct, kw_only=True, tag_field="type", tag="thinking_delta"):
    """The next piece of thinking."""

    thinking: str


class SignatureDelta(msgspec.Struct, kw_only=True, tag_field="type", tag="signature_delta"):
    """The signature of thinking that is complete."""

    signature: str


class InputJSONDelta(msgspec.Struct, kw_only=True, tag_field="type", tag="input_json_delta"):
    """The next piece of the JSON of a tool's input."""

    partial_json: str


class ContentBlockDelta(StreamEvent, kw_only=True, tag="content_block_delta"):
    """A block continues."""

    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputJSONDelta


class ContentBlockStop(StreamEvent, kw_only=True, tag="content_block_stop"):
    """A block ends."""

    index: int


class StopDelta(msgspec.Struct, kw_only=True):
    """Why the message has ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(StreamEvent, kw_only=True, tag="message_delta"):
    """The message has ended. `usage` counts all of its tokens."""

    delta: StopDelta
    usage: MessageUsage
    context_management: ContextManagement | UnsetType = UNSET
    adapter_generations: list[str] | UnsetType = UNSET


class MessageStop(StreamEvent, kw_only=True, tag="message_stop"):
    """The last event."""


BlockEvent = ContentBlockStart | ContentBlockDelta | ContentBlockStop
MessageStreamEvent = MessageStart | Ping | BlockEvent | MessageDelta | MessageStop


class OriginalCount(msgspec.Struct, kw_only=True):
    """The number of tokens of a prompt before its edits."""

    original_input_tokens: int


class TokenCount(msgspec.Struct, kw_only=True):
    """The number of tokens of a prompt, after its edits."""

    input_tokens: int
    context_management: OriginalCount | UnsetType = UNSET
