"""Conversion of a generation to the events of a message, and of these events to the message."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field

import msgspec

from ostro.http import Generation
from ostro.pipelines import (
    ChoiceEnd,
    Event,
    Reasoning,
    Text,
    ToolCallArguments,
    ToolCallStart,
    parse_arguments,
)
from ostro.plugins.apis.anthropic.responses import (
    AssistantMessage,
    BlockEvent,
    ContentBlock,
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    ContextManagement,
    InputJSONDelta,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessageStreamEvent,
    MessageUsage,
    Ping,
    SignatureDelta,
    StopDelta,
    StopReason,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
    own_words,
)


class BlockEvents:
    """Converts the events of a choice to those of content blocks, numbered in order.

    Text and thinking blocks end when another block begins. Blocks of tools stay open until text,
    thinking or the end follows, since pieces of several calls may alternate.
    """

    def __init__(self, shows_thinking: bool = True) -> None:
        self.shows_thinking = shows_thinking
        self.count = 0
        self.kind = ""  # of the open text or thinking block
        self.thought = hashlib.sha256()
        self.calls: dict[int, int] = {}  # open blocks of tools, by the number of the call

    def add(self, event: Event) -> Iterator[BlockEvent]:
        """Yield the events of the next event of the choice."""
        match event:
            case Text() if event.text:
                yield from self.switch("text")
                yield self.delta(TextDelta(text=event.text))
            case Reasoning() if event.text:
                yield from self.switch("thinking")
                self.thought.update(event.text.encode())
                if self.shows_thinking:
                    yield self.delta(ThinkingDelta(thinking=event.text))
            case ToolCallStart():
                yield from self.close_text()
                self.calls[event.call] = self.count
                yield self.begin(ToolUseBlock(id=event.id, name=event.name, input={}))
            case ToolCallArguments() if event.text:
                delta = InputJSONDelta(partial_json=event.text)
                yield ContentBlockDelta(index=self.calls[event.call], delta=delta)
            case ChoiceEnd():
                yield from self.close()

    def switch(self, kind: str) -> Iterator[BlockEvent]:
        """Begin a text or thinking block unless it is open."""
        if self.kind == kind:
            return
        yield from self.close()
        self.kind, self.thought = kind, hashlib.sha256()
        empty = TextBlock(text="") if kind == "text" else ThinkingBlock(thinking="", signature="")
        yield self.begin(empty)

    def begin(self, block: ContentBlock) -> BlockEvent:
        self.count += 1
        return ContentBlockStart(index=self.count - 1, content_block=block)

    def delta(self, delta: TextDelta | ThinkingDelta | SignatureDelta) -> BlockEvent:
        return ContentBlockDelta(index=self.count - 1, delta=delta)

    def close(self) -> Iterator[BlockEvent]:
        """End all open blocks."""
        yield from self.close_text()
        for index in self.calls.values():
            yield ContentBlockStop(index=index)
        self.calls = {}

    def close_text(self) -> Iterator[BlockEvent]:
        """End the open text or thinking block."""
        if self.kind == "thinking":
            yield self.delta(SignatureDelta(signature=self.thought.hexdigest()))
        if self.kind:
            yield ContentBlockStop(index=self.count - 1)
        self.kind = ""


@dataclass(kw_only=True)
class MessageAnswer:
    """The answer to a request: a generation of one choice.

    id: of the message. max_tokens: the limit of the request, which may exceed the context.
    context_management: the edits, of a request that asks for some.
    """

    id: str
    generation: Generation
    max_tokens: int
    shows_thinking: bool = True
    context_management: ContextManagement | msgspec.UnsetType = msgspec.UNSET
    end: ChoiceEnd = field(default_factory=lambda: ChoiceEnd(finish="stop"))

    async def blocks(self) -> AsyncGenerator[list[BlockEvent], None]:
        """Yield the events of the content blocks, in groups that arrive together."""
        events = BlockEvents(self.shows_thinking)
        try:
            with own_words():
                async for event in self.generation:
                    if isinstance(event, ChoiceEnd):
                        self.end = event
                    yield list(events.add(event)) if self.max_tokens else []
        finally:
            await self.generation.aclose()

    async def stream(self) -> AsyncGenerator[MessageStreamEvent, None]:
        """Yield the events of the message.

        The first follows the first event of the generation: then the usage is known, and an error
        before it sets the status of the response.
        """
        started = False
        async with aclosing(self.blocks()) as groups:
            async for group in groups:
                if not started:
                    started = True
                    yield MessageStart(message=self.message([]))
                    yield Ping()
                for event in group:
                    yield event
        yield MessageDelta(
            delta=StopDelta(stop_reason=self.stop_reason(), stop_sequence=self.stop_sequence()),
            usage=self.usage(),
            context_management=self.context_management,
            adapter_generations=self.generation.generations or msgspec.UNSET,
        )
        yield MessageStop()

    async def collect(self) -> AssistantMessage:
        """Return the whole message."""
        events = [event async for group in self.blocks() for event in group]
        return self.message(content_of(events), ended=True)

    def message(self, content: list[ContentBlock], ended: bool = False) -> AssistantMessage:
        """Return the message with this content, and the reason of its end if it has ended."""
        return AssistantMessage(
            id=self.id,
            model=self.generation.model,
            content=content,
            stop_reason=self.stop_reason() if ended else None,
            stop_sequence=self.stop_sequence() if ended else None,
            usage=self.usage(),
            context_management=self.context_management if ended else msgspec.UNSET,
            adapter_generations=self.generation.generations or msgspec.UNSET,
        )

    def usage(self) -> MessageUsage:
        """Return the token counts so far, those of the answer as far as it contains them."""
        usage = MessageUsage.of(self.generation.usage)
        usage.output_tokens = min(usage.output_tokens, self.max_tokens)
        return usage

    def stop_reason(self) -> StopReason:
        """Return why the message has ended."""
        if self.max_tokens == 0:
            return "max_tokens"
        if self.end.finish == "length":
            full = self.generation.usage.completion < self.max_tokens
            return "model_context_window_exceeded" if full else "max_tokens"
        if self.stop_sequence() is not None:
            return "stop_sequence"
        return "tool_use" if self.end.finish == "tool_calls" else "end_turn"

    def stop_sequence(self) -> str | None:
        """Return the stop sequence that has ended the message."""
        return self.end.stopped_by if isinstance(self.end.stopped_by, str) else None


def content_of(events: Iterable[BlockEvent]) -> list[ContentBlock]:
    """Return the content blocks that events add up to."""
    blocks: list[ContentBlock] = []
    pieces: list[list[str]] = []
    for event in events:
        if isinstance(event, ContentBlockStart):
            blocks.append(event.content_block)
            pieces.append([])
        elif isinstance(event, ContentBlockDelta):
            match event.delta:
                case TextDelta(text=piece) | ThinkingDelta(thinking=piece):
                    pieces[event.index].append(piece)
                case InputJSONDelta(partial_json=piece):
                    pieces[event.index].append(piece)
                case SignatureDelta(signature=signature):
                    block = blocks[event.index]
                    assert isinstance(block, ThinkingBlock)
                    block.signature = signature
    for block, texts in zip(blocks, pieces, strict=True):
        match block:
            case TextBlock():
                block.text = "".join(texts)
            case ThinkingBlock():
                block.thinking = "".join(texts)
            case ToolUseBlock():
                block.input = parse_arguments("".join(texts))
    return blocks
