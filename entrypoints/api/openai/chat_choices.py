"""The choices of chat completions, whole and in chunks. Calls of custom tools have a text."""

from __future__ import annotations

from collections.abc import Collection, Iterator

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
    CustomCall,
    CustomDelta,
    Function,
    FunctionDelta,
    MessageCustomCall,
    MessageToolCall,
    TokenBytes,
    ToolCallDelta,
    chat_logprobs,
)
from ostro.entrypoints.operations.tasks.text import CompletionChoice


class ChatChoices:
    """Converts the choices of one request.

    The chunks of a choice have the inputs of custom calls at its end: they are read from arguments
    in JSON, and the arguments of several calls may alternate.
    """

    def __init__(
        self,
        token_bytes: TokenBytes,
        custom: Collection[str] = (),
        *,
        shows_reasoning: bool = True,
    ) -> None:
        """custom: the names of the request's custom tools."""
        self.token_bytes, self.custom = token_bytes, custom
        self.shows_reasoning = shows_reasoning
        self.arguments: dict[int, dict[int, list[str]]] = {}
        """The pieces of arguments of custom calls, by choice and call."""

    def whole(self, choice: CompletionChoice) -> ChatChoice:
        """Return a choice of a chat completion."""
        reasoning = choice.reasoning if self.shows_reasoning and choice.reasoning else UNSET
        calls = [self.whole_call(call) for call in choice.tool_calls]
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

    def whole_call(self, call: ToolCall) -> MessageToolCall | MessageCustomCall:
        if call.name in self.custom:
            custom = CustomCall(name=call.name, input=input_of(call.arguments))
            return MessageCustomCall(id=call.id, custom=custom)
        function = Function(name=call.name, arguments=call.arguments)
        return MessageToolCall(id=call.id, function=function)

    def chunks(self, event: Event, first: bool) -> Iterator[ChatChunkChoice]:
        """Yield the choices of the chunks of an event; first: it is the first of its choice."""
        match event:
            case ToolCallStart() if event.name in self.custom:
                self.arguments.setdefault(event.index, {})[event.call] = []
            case ToolCallArguments() if event.call in self.arguments.get(event.index, ()):
                self.arguments[event.index][event.call].append(event.text)
                return
            case ChoiceEnd():
                for call, pieces in self.arguments.pop(event.index, {}).items():
                    custom = CustomDelta(input=input_of("".join(pieces)))
                    part = ToolCallDelta(index=call, custom=custom, type="custom")
                    yield ChatChunkChoice(index=event.index, delta=ChatDelta(tool_calls=[part]))
        yield self.chunk(event, first)

    def chunk(self, event: Event, first: bool) -> ChatChunkChoice:
        """Return the choice of an event's own chunk. The first one of a choice has the role."""
        delta = ChatDelta()
        choice = ChatChunkChoice(index=event.index, delta=delta)
        match event:
            case Text():
                delta.content = event.text or UNSET
                choice.logprobs = chat_logprobs(event.logprobs, self.token_bytes)
            case Reasoning():
                delta.reasoning_content = delta.reasoning = event.text
            case ToolCallStart():
                delta.tool_calls = [self.start(event)]
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

    def start(self, event: ToolCallStart) -> ToolCallDelta:
        if event.name in self.custom:
            custom = CustomDelta(name=event.name)
            return ToolCallDelta(index=event.call, id=event.id, type="custom", custom=custom)
        function = FunctionDelta(name=event.name)
        return ToolCallDelta(index=event.call, id=event.id, type="function", function=function)
