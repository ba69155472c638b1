"""Converts the events of a generation to the events and the output of a response."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from ostro.core.messages.outputs import Finish, TokenLogprobs
from ostro.core.messages.text import (
    ChoiceEnd,
    Event,
    Reasoning,
    Text,
    ToolCallArguments,
    ToolCallStart,
)
from ostro.core.store import new_id
from ostro.core.tokenizer.detokenizer import token_name
from ostro.entrypoints.api.openai.custom_tools import input_of
from ostro.entrypoints.api.openai.responses.client_items import ClientCall, new_client_call
from ostro.entrypoints.api.openai.responses.events import (
    ArgumentsDelta,
    ArgumentsDone,
    ContentPartAdded,
    ContentPartDone,
    CustomInputDelta,
    CustomInputDone,
    DeltaToken,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
    ReasoningTextDelta,
    ReasoningTextDone,
    ResponseCreated,
    ResponseEvent,
    ResponseInProgress,
    TokenLogprob,
)
from ostro.entrypoints.api.openai.responses.items import (
    CallItem,
    CustomCallItem,
    FunctionCallItem,
    MessageItem,
    OutputItem,
    ReasoningItem,
    carried,
)
from ostro.entrypoints.api.openai.responses.parts import (
    AlternativeToken,
    OutputText,
    ReasoningText,
    SampledToken,
    Status,
)
from ostro.entrypoints.api.openai.responses.response import (
    IncompleteDetails,
    Response,
    usage_of,
)
from ostro.entrypoints.api.openai.responses.tool_types import ClientTool, CustomTool
from ostro.entrypoints.api.openai.responses.tools import Function
from ostro.entrypoints.api.openai.types import finite
from ostro.entrypoints.operations.tasks.text import Generation


class OpenText:
    """A message or reasoning that is being generated: its place, its pieces and its tokens."""

    def __init__(self, index: int, item: MessageItem | ReasoningItem) -> None:
        self.index, self.item = index, item
        self.pieces: list[str] = []
        self.tokens: list[SampledToken] = []

    @property
    def place(self) -> dict[str, Any]:
        """The fields that all events of the item have."""
        return {"item_id": self.item.id, "output_index": self.index}


class ResponseBuilder:
    """Adds the events of a generation to a response, and makes the response's events.

    At most one message or reasoning is open; calls stay open until the end, since their
    arguments may alternate. `functions`: those that the model can call. `logprobs`: whether texts
    have log probabilities. `carries_reasoning`: whether reasoning has `encrypted_content`.
    """

    def __init__(
        self,
        response: Response,
        token_bytes: Callable[[int], bytes],
        functions: Sequence[Function],
        *,
        logprobs: bool = False,
        carries_reasoning: bool = False,
    ) -> None:
        self.response, self.token_bytes = response, token_bytes
        self.logprobs, self.carries_reasoning = logprobs, carries_reasoning
        self.functions = {each.name: each for each in functions}
        self.open: OpenText | None = None
        self.calls: dict[int, tuple[int, CallItem, list[str]]] = {}
        self.finish: Finish | None = None

    @property
    def output(self) -> list[OutputItem]:
        """The items so far."""
        return self.response.output

    @property
    def open_item(self) -> MessageItem | ReasoningItem | None:
        """The message or reasoning that is open."""
        return None if self.open is None else self.open.item

    def start(self) -> Iterator[ResponseEvent]:
        """Begin: make the first events."""
        self.response = replace(self.response, status="in_progress", output=[])
        yield ResponseCreated(response=self.snapshot())
        yield ResponseInProgress(response=self.snapshot())

    def snapshot(self) -> Response:
        """Return a copy of the response without output."""
        return replace(self.response, output=[])

    def add(self, event: Event) -> Iterator[ResponseEvent]:
        """Add the next event of the generation."""
        match event:
            case Reasoning():
                yield from self.add_reasoning(event.text)
            case Text() if event.text or isinstance(self.open_item, MessageItem):
                yield from self.add_text(event)
            case ToolCallStart():
                yield from self.close_text("completed")
                item = self.new_call(event)
                self.calls[event.call] = (len(self.output), item, [])
                yield self.begin(item)
            case ToolCallArguments():
                index, item, pieces = self.calls[event.call]
                pieces.append(event.text)
                if isinstance(item, FunctionCallItem):
                    yield ArgumentsDelta(item_id=str(item.id), output_index=index, delta=event.text)
            case ChoiceEnd():
                self.finish = event.finish

    def new_call(self, event: ToolCallStart) -> CallItem:
        """Return the item of a call: the tool has the name that the client gave it."""
        function = self.functions.get(event.name)
        fields: dict[str, Any] = {"call_id": event.id, "name": event.name, "status": "in_progress"}
        if function is not None:
            if isinstance(function.tool, ClientTool):
                return new_client_call(function.tool, event.id)
            fields["name"] = function.tool.name
            if function.namespace is not None:
                fields["namespace"] = function.namespace.name
            if isinstance(function.tool, CustomTool):
                return CustomCallItem(id=new_id("ctc_"), input="", **fields)
        return FunctionCallItem(id=new_id("fc_"), arguments="", **fields)

    def begin(self, item: OutputItem) -> ResponseEvent:
        """Add an item to the output."""
        self.output.append(item)
        return OutputItemAdded(output_index=len(self.output) - 1, item=replace(item))

    def open_text(self, item: MessageItem | ReasoningItem) -> Iterator[ResponseEvent]:
        """Begin a message or reasoning, with its only part."""
        yield from self.close_text("completed")
        self.open = OpenText(len(self.output), item)
        yield self.begin(item)
        part: OutputText | ReasoningText = ReasoningText(text="")
        if isinstance(item, MessageItem):
            part = self.output_text("", [])
        yield ContentPartAdded(**self.open.place, part=part)

    def add_reasoning(self, text: str) -> Iterator[ResponseEvent]:
        if self.open is None or not isinstance(self.open.item, ReasoningItem):
            item = ReasoningItem(id=new_id("rs_"), summary=[], content=[], status="in_progress")
            yield from self.open_text(item)
        assert self.open is not None
        self.open.pieces.append(text)
        yield ReasoningTextDelta(**self.open.place, delta=text)

    def add_text(self, event: Text) -> Iterator[ResponseEvent]:
        if self.open is None or not isinstance(self.open.item, MessageItem):
            item = MessageItem(
                id=new_id("msg_"), role="assistant", content=[], status="in_progress"
            )
            yield from self.open_text(item)
        assert self.open is not None
        tokens = self.sampled(event.logprobs or ())
        self.open.pieces.append(event.text)
        self.open.tokens += tokens
        yield OutputTextDelta(**self.open.place, delta=event.text, logprobs=delta_tokens(tokens))

    def close_text(self, status: Status) -> Iterator[ResponseEvent]:
        """Complete the open message or reasoning."""
        if self.open is None:
            return
        opened, self.open = self.open, None
        text, item, place = "".join(opened.pieces), opened.item, opened.place
        item.status = status
        part: OutputText | ReasoningText
        if isinstance(item, MessageItem):
            part = self.output_text(text, opened.tokens)
            item.content = [part]
            yield OutputTextDone(**place, text=text, logprobs=delta_tokens(opened.tokens))
        else:
            part = ReasoningText(text=text)
            item.content = [part]
            item.encrypted_content = carried(text) if self.carries_reasoning else None
            yield ReasoningTextDone(**place, text=text)
        yield ContentPartDone(**place, part=part)
        yield OutputItemDone(output_index=opened.index, item=item)

    def close_calls(self, status: Status) -> Iterator[ResponseEvent]:
        """Complete the calls."""
        for index, item, pieces in self.calls.values():
            place: dict[str, Any] = {"item_id": item.id, "output_index": index}
            item.status, text = status, "".join(pieces)
            if isinstance(item, FunctionCallItem):
                item.arguments = text
                yield ArgumentsDone(**place, name=item.name, arguments=text)
            elif isinstance(item, ClientCall):
                item.end(text, status)
            else:
                item.input = input_of(text)
                yield CustomInputDelta(**place, delta=item.input)
                yield CustomInputDone(**place, input=item.input)
            yield OutputItemDone(output_index=index, item=item)
        self.calls.clear()

    def end(self, generation: Generation) -> Iterator[ResponseEvent]:
        """Complete the output. `response` is then the result; its own event is left out."""
        cut = self.finish == "length"
        status: Status = "incomplete" if cut else "completed"
        if not self.output:  # a message without text
            yield from self.add_text(Text())
        yield from self.close_text(status)
        yield from self.close_calls(status)
        generations = generation.generations
        self.response = replace(
            self.response,
            status=status,
            incomplete_details=IncompleteDetails(reason="max_output_tokens") if cut else None,
            completed_at=None if cut else int(time.time()),
            usage=usage_of(generation.usage),
        )
        if generations is not None:
            self.response.adapter_generations = generations

    def cancel(self, generation: Generation) -> Iterator[ResponseEvent]:
        """Complete an output that is cut off as its client has disconnected."""
        yield from self.close_text("incomplete")
        yield from self.close_calls("incomplete")
        usage = usage_of(generation.usage)
        self.response = replace(self.response, status="cancelled", usage=usage)

    def output_text(self, text: str, tokens: list[SampledToken]) -> OutputText:
        part = OutputText(text=text, annotations=[])
        if self.logprobs:
            part.logprobs = tokens
        return part

    def sampled(self, entries: Sequence[TokenLogprobs | None]) -> list[SampledToken]:
        """Return the log probabilities of tokens."""
        found = []
        for entry in entries:
            if entry is not None:
                top = [self.alternative(*pair) for pair in entry.top]
                own = self.alternative(entry.token, entry.logprob)
                found.append(
                    SampledToken(
                        token=own.token, logprob=own.logprob, bytes=own.bytes, top_logprobs=top
                    )
                )
        return found

    def alternative(self, token: int, logprob: float) -> AlternativeToken:
        piece = self.token_bytes(token)
        return AlternativeToken(token=token_name(piece), logprob=finite(logprob), bytes=list(piece))


def delta_tokens(tokens: Sequence[SampledToken]) -> list[DeltaToken]:
    """Return log probabilities as events have them."""
    return [
        DeltaToken(
            token=each.token,
            logprob=each.logprob,
            top_logprobs=[
                TokenLogprob(token=x.token, logprob=x.logprob) for x in each.top_logprobs
            ],
        )
        for each in tokens
    ]
