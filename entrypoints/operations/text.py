"""Generated text: the typed events of a generation, and the completion that they add up to."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from ostro.core.messages.outputs import Finish, TokenLogprobs
from ostro.core.output import CallArguments, CallStart, OutputEvent, Reasoning, Text
from ostro.core.pipeline import Answer, TextDelta, TextPipeline, Usage


class Event(msgspec.Struct, kw_only=True):
    """An event of a generation; `index` is the number of its choice."""

    index: int = 0


class TextPiece(Event, kw_only=True):
    """The next piece of a choice's text.

    `tokens`, `logprobs` and `offsets` are those of `TextDelta`, `prompt_logprobs` as well.
    """

    text: str = ""
    tokens: list[int] = []
    logprobs: list[TokenLogprobs | None] | None = None
    offsets: list[int] = []
    prompt_logprobs: list[TokenLogprobs | None] | None = None


class ReasoningPiece(Event, kw_only=True):
    """The next piece of a choice's reasoning, which is not part of its text."""

    text: str


class ToolCallStart(Event, kw_only=True):
    """A tool call begins; `call` is its number within the choice, `id` is unique."""

    call: int
    id: str
    name: str


class ToolCallArguments(Event, kw_only=True):
    """The next piece of the arguments of a tool call, which are JSON."""

    call: int
    text: str


class ChoiceEnd(Event, kw_only=True):
    """A choice has ended; `stopped_by` is the stop string or token id that ended it."""

    finish: Finish
    stopped_by: str | int | None = None


class ToolCall(msgspec.Struct, kw_only=True):
    """A tool call; `arguments` are JSON."""

    id: str
    name: str
    arguments: str = ""


@dataclass(kw_only=True)
class Choice:
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
        self._choice = Choice(index=index)
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._arguments: list[list[str]] = []

    def add(self, event: Event) -> None:
        """Add the next event of the choice."""
        choice = self._choice
        match event:
            case TextPiece():
                self._texts.append(event.text)
                if event.logprobs is not None:
                    choice.logprobs = [*(choice.logprobs or ()), *event.logprobs]
                    choice.tokens += event.tokens
                    choice.offsets += event.offsets
                choice.prompt_logprobs = choice.prompt_logprobs or event.prompt_logprobs
            case ReasoningPiece():
                self._reasoning.append(event.text)
            case ToolCallStart():
                choice.tool_calls.append(ToolCall(id=event.id, name=event.name))
                self._arguments.append([])
            case ToolCallArguments():
                self._arguments[event.call].append(event.text)
            case ChoiceEnd():
                choice.finish, choice.stopped_by = event.finish, event.stopped_by

    def build(self) -> Choice:
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
    choices: list[Choice]
    usage: Usage
    generations: list[str] | None = None


class Generation:
    """A generation in progress. Iterate its events once, or `collect` them.

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

    async def __aiter__(self) -> AsyncGenerator[Event, None]:
        kept = self._builders() if self.on_end is not None else []
        try:
            async for delta in self._answer:
                for event in events_of(delta):
                    if kept:
                        kept[event.index].add(event)
                    yield event
        finally:
            await self.aclose()
        if self.on_end is not None:
            await self.on_end(self._completion(kept))

    async def collect(self) -> Completion:
        """Read all events. Return the completion."""
        builders = self._builders()
        try:
            async for delta in self._answer:
                for event in events_of(delta):
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


def events_of(delta: TextDelta) -> Iterable[Event]:
    """Yield the events of a delta of a pipeline.

    Its log probabilities are those of the first text in it, or of a piece without text.
    """
    texts = [i for i, each in enumerate(delta.events) if isinstance(each, Text)]
    first = texts[0] if texts else 0
    for each in delta.events[:first]:
        yield from event_of(each, delta.index)
    rest = delta.events[first + 1 :] if texts else delta.events
    found = delta.events[first] if texts else Text("" if delta.events else delta.text)
    text = found.text if isinstance(found, Text) else ""
    if text or delta.logprobs or delta.prompt_logprobs:
        yield TextPiece(
            index=delta.index,
            text=text,
            tokens=delta.tokens,
            logprobs=delta.logprobs,
            offsets=delta.offsets,
            prompt_logprobs=delta.prompt_logprobs,
        )
    for each in rest:
        yield from event_of(each, delta.index)
    if delta.finish:
        yield ChoiceEnd(index=delta.index, finish=delta.finish, stopped_by=delta.stopped_by)


def event_of(event: OutputEvent, index: int) -> Iterable[Event]:
    """Yield the event of a choice for one of its parser; ends of calls have none."""
    match event:
        case Text():
            yield TextPiece(index=index, text=event.text)
        case Reasoning():
            yield ReasoningPiece(index=index, text=event.text)
        case CallStart():
            yield ToolCallStart(index=index, call=event.index, id=event.id, name=event.name)
        case CallArguments():
            yield ToolCallArguments(index=index, call=event.index, text=event.text)
