"""A generation of given events, without an engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from ostro.core.messages.text import (
    ChoiceEnd,
    Event,
    Reasoning,
    Text,
    ToolCallArguments,
    ToolCallStart,
    Usage,
)

SCRIPT: Sequence[Event] = (
    Reasoning(text="The user "),
    Reasoning(text="wants Paris."),
    Text(text="Let me "),
    Text(text="see."),
    ToolCallStart(call=0, id="call_1", name="weather"),
    ToolCallArguments(call=0, text='{"city": '),
    ToolCallStart(call=1, id="call_2", name="time"),
    ToolCallArguments(call=0, text='"Paris"}'),
    ToolCallArguments(call=1, text="{}"),
    ChoiceEnd(finish="tool_calls", stopped_by=257),
)
"""Reasoning, text and two tool calls whose arguments alternate."""


class ScriptedGeneration:
    """Stands for a `Generation`. `error` ends it; `closed` counts the calls of `aclose`."""

    model, generations = "m", None

    def __init__(
        self,
        events: Sequence[Event] = SCRIPT,
        error: Exception | None = None,
        *,
        usage: Usage | None = None,
    ) -> None:
        self.events, self.error, self.closed = events, error, 0
        self.usage = usage or Usage(prompt=3, completion=2)

    def token_bytes(self, token: int) -> bytes:
        return b"<%d>" % token

    async def __aiter__(self) -> AsyncGenerator[Event, None]:
        for event in self.events:
            yield event
        if self.error is not None:
            raise self.error

    async def aclose(self) -> None:
        self.closed += 1
