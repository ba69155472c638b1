"""Conversion of the answers of a chat to choices of completions and of chunks."""

from __future__ import annotations

from collections.abc import Iterator, Set

from msgspec import UNSET

from ostro.core.messages.text import (
    ChoiceEnd,
    Event,
    Reasoning,
    Text,
    ToolCallArguments,
    ToolCallStart,
)
from ostro.core.messages.text_requests import ToolCall
from ostro.entrypoints.api.openai.custom_tools import input_of
from ostro.entrypoints.api.openai.types import (
    ChatChoice,
    ChatChunkChoice,
    ChatDelta,
    ChatMessage,
    CustomDelta,
    CustomInput,
    Function,
    FunctionDelta,
    MessageCustomCall,
    MessageToolCall,
    TokenBytes,
    ToolCallDelta,
    chat_logprobs,
)
from ostro.entrypoints.operations.tasks.text import CompletionChoice


class ChatAnswers:
    """Converts the answers of one chat.

    custom: the names of the custom tools. Their calls have a text, which is part of the arguments
    that the model writes; a stream has it once these are complete.
    """

    def __init__(
        self, token_bytes: TokenBytes, custom: Set[str] = frozenset(), shows_reasoning: bool = True
    ) -> None:
        self.token_bytes, self.custom, self.shows_reasoning = token_bytes, custom, shows_reasoning
        self.arguments: dict[tuple[int, int], list[str]] = {}
        """Of calls of custom tools in a stream, by the numbers of their choice and call."""

    def choice(self, choice: CompletionChoice) -> ChatChoice:
        """Return a choice of a chat completion."""
        reasoning = choice.reasoning if self.shows_reasoning and choice.reasoning else UNSET
        calls = [self.call(call) for call in choice.tool_calls]
        return ChatChoice(
            index=choice.index,
            message=ChatMessage(
                content=None if calls and not choice.text else choice.text,
                reasoning_content=reasoning,
                reasoning=reasoning,
                tool_calls=calls or UNSET,
            ),
            logprobs=chat_logprobs(choice.logprobs, self.token_bytes),
            finish_reason=choice.finish,
            stop_reason=choice.stopped_by if choice.finish else UNSET,
        )

    def call(self, call: ToolCall) -> MessageToolCall | MessageCustomCall:
        """Return a call of a message."""
        if call.name in self.custom:
            custom = CustomInput(name=call.name, input=input_of(call.arguments))
            return MessageCustomCall(id=call.id, custom=custom)
        function = Function(name=call.name, arguments=call.arguments)
        return MessageToolCall(id=call.id, function=function)

    def chunk_choices(self, event: Event, first: bool) -> Iterator[ChatChunkChoice]:
        """Yield the choices of chunks for an event. first: it is the first event of its choice."""
        if isinstance(event, ToolCallArguments):
            pieces = self.arguments.get((event.index, event.call))
            if pieces is not None:
                pieces.append(event.text)
                return
        if isinstance(event, ChoiceEnd):
            yield from self.inputs(event.index)
        yield self.chunk_choice(event, first)

    def inputs(self, index: int) -> Iterator[ChatChunkChoice]:
        """Yield the inputs of the calls of custom tools of a choice."""
        for (choice, call), pieces in self.arguments.items():
            if choice == index:
                custom = CustomDelta(input=input_of("".join(pieces)))
                delta = ChatDelta(tool_calls=[ToolCallDelta(index=call, custom=custom)])
                yield ChatChunkChoice(index=index, delta=delta)

    def chunk_choice(self, event: Event, first: bool) -> ChatChunkChoice:
        """Return the choice of a chunk for an event. The first one of a choice has the role."""
        delta = ChatDelta()
        choice = ChatChunkChoice(index=event.index, delta=delta)
        match event:
            case Text():
                delta.content = event.text or UNSET
                choice.logprobs = chat_logprobs(event.logprobs, self.token_bytes)
            case Reasoning():
                delta.reasoning_content = delta.reasoning = event.text
            case ToolCallStart():
                delta.tool_calls = [self.call_start(event)]
            case ToolCallArguments():
                part = FunctionDelta(arguments=event.text)
                delta.tool_calls = [ToolCallDelta(index=event.call, function=part)]
            case ChoiceEnd():
                choice.finish_reason, choice.stop_reason = event.finish, event.stopped_by
        if first:
            delta.role = "assistant"
            if delta.content is UNSET and not isinstance(event, ToolCallStart | Reasoning):
                delta.content = ""
        return choice

    def call_start(self, event: ToolCallStart) -> ToolCallDelta:
        """Return the first part of a call."""
        begun = ToolCallDelta(index=event.call, id=event.id)
        if event.name in self.custom:
            self.arguments[event.index, event.call] = []
            begun.type, begun.custom = "custom", CustomDelta(name=event.name)
        else:
            begun.type, begun.function = "function", FunctionDelta(name=event.name)
        return begun
