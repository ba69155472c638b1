"""Context editing: older thinking and older results of tools leave the conversation of a request.

The edits and their defaults are those of Anthropic's beta `context-management-2025-06-27`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from ostro.errors import RequestError, Unsupported
from ostro.http import decode, ignore
from ostro.plugins.apis.anthropic.responses import AppliedEdit, ClearedThinking, ClearedToolUses
from ostro.plugins.apis.anthropic.schema import (
    Block,
    CountTokensRequest,
    MessageParam,
    RedactedThinkingBlockParam,
    Strict,
    ThinkingBlockParam,
    ToolResultBlockParam,
    ToolUseBlockParam,
)

CLEARED = "[This result was removed to shorten the conversation.]"
"""The content of a result that an edit has cleared."""
Thinking = ThinkingBlockParam | RedactedThinkingBlockParam
Positive = Annotated[int, Meta(ge=1)]
R = TypeVar("R", bound=CountTokensRequest)
Count = Callable[[R], Awaitable[int]]
"""Returns the number of tokens of the prompt of a request."""


class ThinkingTurns(Strict, kw_only=True, tag_field="type", tag="thinking_turns"):
    """The most recent turns of the assistant that have thinking."""

    value: Positive


class AllThinkingTurns(Strict, kw_only=True, tag_field="type", tag="all"):
    """All turns."""


class InputTokens(Strict, kw_only=True, tag_field="type", tag="input_tokens"):
    """A number of tokens of the prompt."""

    value: Positive


class ToolUses(Strict, kw_only=True, tag_field="type", tag="tool_uses"):
    """A number of tool calls."""

    value: Annotated[int, Meta(ge=0)]


class ClearThinking(Strict, kw_only=True):
    """Remove thinking, except that of the turns to `keep`.

    A turn begins with a message of the user that contains more than results of tools.
    """

    type: Literal["clear_thinking_20251015"]
    keep: Literal["all"] | AllThinkingTurns | ThinkingTurns = msgspec.field(
        default_factory=lambda: ThinkingTurns(value=1)
    )

    async def apply(self, request: R, count: Count[R]) -> tuple[R, AppliedEdit | None]:
        """Return the request after the edit, and what was cleared, None for nothing."""
        if not isinstance(self.keep, ThinkingTurns):
            return request, None
        turns = [*zip(turns_of(request.messages), request.messages, strict=True)]
        thinking = sorted({turn for turn, message in turns if thinks(message)})
        cleared = set(thinking[: -self.keep.value])
        if not cleared:
            return request, None
        messages: list[MessageParam] = []
        for turn, message in turns:
            if turn in cleared and thinks(message):
                message = without_thinking(message)
                if not message.content:
                    continue
            messages.append(message)
        after = replace(request, messages=messages)
        tokens = await count(request) - await count(after)
        done = ClearedThinking(cleared_thinking_turns=len(cleared), cleared_input_tokens=tokens)
        return after, done


class ClearToolUses(Strict, kw_only=True):
    """Replace the results of older tool calls, once the conversation exceeds `trigger`.

    The last calls, `keep` of them, and those of `exclude_tools` keep their results.
    `clear_tool_inputs` also clears the inputs of calls: of all, or of those of named tools. Nothing
    is cleared if that would remove fewer tokens than `clear_at_least`.
    """

    type: Literal["clear_tool_uses_20250919"]
    trigger: InputTokens | ToolUses = msgspec.field(
        default_factory=lambda: InputTokens(value=100_000)
    )
    keep: ToolUses = msgspec.field(default_factory=lambda: ToolUses(value=3))
    clear_at_least: InputTokens | None = None
    exclude_tools: list[str] | None = None
    clear_tool_inputs: bool | list[str] | None = None

    async def apply(self, request: R, count: Count[R]) -> tuple[R, AppliedEdit | None]:
        """Return the request after the edit, and what was cleared, None for nothing."""
        calls = [
            block
            for message in request.messages
            for block in blocks_of(message)
            if isinstance(block, ToolUseBlockParam)
        ]
        older = calls[: max(0, len(calls) - self.keep.value)]
        cleared = {call.id for call in older if call.name not in (self.exclude_tools or ())}
        if not cleared:
            return request, None
        if isinstance(self.trigger, ToolUses) and len(calls) <= self.trigger.value:
            return request, None
        before = await count(request)
        if isinstance(self.trigger, InputTokens) and before <= self.trigger.value:
            return request, None
        messages = [self.clear(message, cleared) for message in request.messages]
        after = replace(request, messages=messages)
        tokens = before - await count(after)
        if self.clear_at_least is not None and tokens < self.clear_at_least.value:
            return request, None
        done = ClearedToolUses(cleared_tool_uses=len(cleared), cleared_input_tokens=tokens)
        return after, done

    def clear(self, message: MessageParam, cleared: Collection[str]) -> MessageParam:
        """Return a message without the results, and the inputs, of the calls of these ids."""
        blocks: list[Block] = []
        for block in blocks_of(message):
            if isinstance(block, ToolResultBlockParam) and block.tool_use_id in cleared:
                block = replace(block, content=CLEARED)
            elif isinstance(block, ToolUseBlockParam) and block.id in cleared:
                named = self.clear_tool_inputs
                if named is True or (named and block.name in named):
                    block = replace(block, input={})
            blocks.append(block)
        return message if isinstance(message.content, str) else replace(message, content=blocks)


EDITS: dict[str, type[ClearThinking] | type[ClearToolUses]] = {
    "clear_thinking_20251015": ClearThinking,
    "clear_tool_uses_20250919": ClearToolUses,
}
"""The edits by their type."""


async def edited(request: R, count: Count[R]) -> tuple[R, list[AppliedEdit]]:
    """Return the request after the edits of its `context_management`, and what they cleared.

    count: counts the tokens of the prompt of a request. Raises as `read_edits`.
    """
    management, applied = request.context_management, list[AppliedEdit]()
    for edit in read_edits([] if management is None else management.edits or []):
        request, done = await edit.apply(request, count)
        if done is not None:
            applied.append(done)
    return request, applied


def read_edits(edits: Sequence[dict[str, Any]]) -> list[ClearThinking | ClearToolUses]:
    """Return edits of the types that the server has; others, such as compaction, are ignored.

    Raises RequestError for a malformed edit, and Unsupported if nothing may be ignored.
    """
    known: list[ClearThinking | ClearToolUses] = []
    for i, edit in enumerate(edits):
        where, name = f"context_management.edits[{i}]", edit.get("type")
        if (kind := EDITS.get(str(name))) is not None:
            try:
                known.append(decode(msgspec.json.encode(edit), kind))
            except RequestError as error:
                raise RequestError(f"{where}: {error}", param=where) from None
        elif not ignore(f"context_management {name}"):
            raise Unsupported(
                f"{where}.type: {name!r:.60} is not supported; expected one of {', '.join(EDITS)}",
                param=f"{where}.type",
            )
    return known


def turns_of(messages: Sequence[MessageParam]) -> list[int]:
    """Return the number of the turn of each message; see `ClearThinking`."""
    turns, turn = [], 0
    for message in messages:
        results = (isinstance(block, ToolResultBlockParam) for block in blocks_of(message))
        if message.role == "user" and (isinstance(message.content, str) or not all(results)):
            turn += 1
        turns.append(turn)
    return turns


def thinks(message: MessageParam) -> bool:
    """Whether a message contains thinking."""
    return any(isinstance(block, Thinking) for block in blocks_of(message))


def without_thinking(message: MessageParam) -> MessageParam:
    """Return a message without its thinking; one of thinking alone has an empty content."""
    rest = [block for block in blocks_of(message) if not isinstance(block, Thinking)]
    return replace(message, content=rest)


def blocks_of(message: MessageParam) -> Sequence[Block]:
    """Return the blocks of a message, none for a text."""
    return () if isinstance(message.content, str) else message.content
