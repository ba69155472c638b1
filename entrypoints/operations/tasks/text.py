"""Generated text: the typed events of a generation, and the completion that they add up to."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from ostro.core.messages.outputs import Finish, TokenLogprobs
from ostro.core.messages.text import (
    ChoiceEnd,
    Event,
    Reasoning,
    Text,
    ToolCallArguments,
    ToolCallStart,
    Usage,
)
from ostro.core.messages.text_requests import ToolCall
from ostro.core.pipeline import Answer, TextPipeline


@dataclass(kw_only=True)
class CompletionChoice:
    """A choice: what its events add up to. `finish` is None until it has ended."""

    index: int = 0
    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs | None] | None = None
    offsets: list[int] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finish: Finish | None = None
    stopped_by: str | int | None = None


class ChoiceBuilder:
    """Adds up the events of one choice."""

    def __init__(self, index: int = 0) -> None:
        self._choice = CompletionChoice(index=index)
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._arguments: list[list[str]] = []

    def add(self, event: Event) -> None:
        """Add the next event of the choice."""
        choice = self._choice
        match event:
            case Text():
                self._texts.append(event.text)
                choice.tokens += event.tokens
                choice.offsets += event.offsets
                if event.logprobs is not None:
                    choice.logprobs = [*(choice.logprobs or ()), *event.logprobs]
                choice.prompt_logprobs = choice.prompt_logprobs or event.prompt_logprobs
            case Reasoning():
                self._reasoning.append(event.text)
            case ToolCallStart():
                choice.tool_calls.append(ToolCall(id=event.id, name=event.name))
                self._arguments.append([])
            case ToolCallArguments():
                self._arguments[event.call].append(event.text)
            case ChoiceEnd():
                choice.finish, choice.stopped_by = event.finish, event.stopped_by

    def build(self) -> CompletionChoice:
        """Return the choice."""
        choice = self._choice
        choice.text, choice.reasoning = "".join(self._texts), "".join(self._reasoning)
        for call, pieces in zip(choice.tool_calls, self._arguments, strict=True):
            call.arguments = "".join(pieces)
        return choice


@dataclass(frozen=True, kw_only=True)
class Completion:
    """The result of a generation. `generations` are those of the applied adapters, None for a
    request without adapters.
    """

    model: str
    choices: list[CompletionChoice]
    usage: Usage
    generations: list[str] | None = None


class Generation:
    """A generation in progress. Iterate its events once and close it, or `collect` them.

    `model` is the name for the response, `choices` their number. Closing it early aborts it.
    `on_end` receives the completion after the last event of an iteration.
    """

    def __init__(self, answer: Answer, model: str, pipeline: TextPipeline) -> None:
        self._answer = answer
        self.on_end: Callable[[Completion], Awaitable[None]] | None = None
        self.model, self.choices, self.token_bytes = model, answer.choices, pipeline.token_bytes

    @property
    def usage(self) -> Usage:
        """The token counts so far."""
        return self._answer.usage

    @property
    def generations(self) -> list[str] | None:
        """The generations of the applied adapters, None for a request without adapters."""
        return self._answer.generations

    def __aiter__(self) -> AsyncIterator[Event]:
        return aiter(self._answer) if self.on_end is None else self._recorded(self.on_end)

    async def _recorded(
        self, on_end: Callable[[Completion], Awaitable[None]]
    ) -> AsyncGenerator[Event, None]:
        builders = self._builders()
        async for event in self._answer:
            builders[event.index].add(event)
            yield event
        await on_end(self._completion(builders))

    async def collect(self) -> Completion:
        """Read all events. Return the completion."""
        builders = self._builders()
        try:
            async for event in self._answer:
                builders[event.index].add(event)
        finally:
            await self.aclose()
        return self._completion(builders)

    def _builders(self) -> list[ChoiceBuilder]:
        return [ChoiceBuilder(index) for index in range(self.choices)]

    def _completion(self, builders: Iterable[ChoiceBuilder]) -> Completion:
        return Completion(
            model=self.model,
            choices=[builder.build() for builder in builders],
            usage=self.usage,
            generations=self.generations,
        )

    async def aclose(self) -> None:
        """Stop the generation; the engine frees its resources."""
        await self._answer.aclose()
