"""The events of a streamed response. `sequence_number` counts them from 0."""

from __future__ import annotations

import msgspec

from ostro.entrypoints.api.openai.responses.items import OutputItem
from ostro.entrypoints.api.openai.responses.parts import OutputText, ReasoningText
from ostro.entrypoints.api.openai.responses.response import Response


class ResponseEvent(msgspec.Struct, kw_only=True, tag_field="type"):
    """An event of a response."""

    sequence_number: int = 0


class ResponseQueued(ResponseEvent, kw_only=True, tag="response.queued"):
    """A response in the background waits for its turn."""

    response: Response


class ResponseCreated(ResponseEvent, kw_only=True, tag="response.created"):
    """The response exists."""

    response: Response


class ResponseInProgress(ResponseEvent, kw_only=True, tag="response.in_progress"):
    """The generation begins."""

    response: Response


class ResponseCompleted(ResponseEvent, kw_only=True, tag="response.completed"):
    """The response is complete."""

    response: Response


class ResponseIncomplete(ResponseEvent, kw_only=True, tag="response.incomplete"):
    """The response ends early: by `max_output_tokens`, or because it is cancelled."""

    response: Response


class ResponseFailed(ResponseEvent, kw_only=True, tag="response.failed"):
    """The response has failed."""

    response: Response


class ResponseError(ResponseEvent, kw_only=True, tag="error"):
    """An error outside of the generation: the store cannot be written."""

    message: str
    code: str | None = None
    param: str | None = None


class OutputItemAdded(ResponseEvent, kw_only=True, tag="response.output_item.added"):
    """An item of the output begins."""

    output_index: int
    item: OutputItem


class OutputItemDone(ResponseEvent, kw_only=True, tag="response.output_item.done"):
    """An item of the output is complete."""

    output_index: int
    item: OutputItem


class ItemEvent(ResponseEvent, kw_only=True):
    """An event within an item of the output."""

    item_id: str
    output_index: int


class ContentPartAdded(ItemEvent, kw_only=True, tag="response.content_part.added"):
    """A part of an item begins."""

    content_index: int = 0
    part: OutputText | ReasoningText


class ContentPartDone(ItemEvent, kw_only=True, tag="response.content_part.done"):
    """A part of an item is complete."""

    content_index: int = 0
    part: OutputText | ReasoningText


class TokenLogprob(msgspec.Struct, kw_only=True):
    """A token and its log probability."""

    token: str
    logprob: float


class DeltaToken(TokenLogprob, kw_only=True):
    """A token of the output, and the most probable ones at its position."""

    top_logprobs: list[TokenLogprob]


class OutputTextDelta(ItemEvent, kw_only=True, tag="response.output_text.delta"):
    """The next piece of a text."""

    content_index: int = 0
    delta: str
    logprobs: list[DeltaToken]


class OutputTextDone(ItemEvent, kw_only=True, tag="response.output_text.done"):
    """A text is complete."""

    content_index: int = 0
    text: str
    logprobs: list[DeltaToken]


class ReasoningTextDelta(ItemEvent, kw_only=True, tag="response.reasoning_text.delta"):
    """The next piece of reasoning."""

    content_index: int = 0
    delta: str


class ReasoningTextDone(ItemEvent, kw_only=True, tag="response.reasoning_text.done"):
    """Reasoning is complete."""

    content_index: int = 0
    text: str


class ArgumentsDelta(ItemEvent, kw_only=True, tag="response.function_call_arguments.delta"):
    """The next piece of the arguments of a function call."""

    delta: str


class ArgumentsDone(ItemEvent, kw_only=True, tag="response.function_call_arguments.done"):
    """The arguments of a function call are complete."""

    name: str
    arguments: str


class CustomInputDelta(ItemEvent, kw_only=True, tag="response.custom_tool_call_input.delta"):
    """The input of a call of a custom tool: all of it, since it is read from arguments in JSON."""

    delta: str


class CustomInputDone(ItemEvent, kw_only=True, tag="response.custom_tool_call_input.done"):
    """The input of a call of a custom tool is complete."""

    input: str


AnyEvent = (
    ResponseQueued
    | ResponseCreated
    | ResponseInProgress
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | ResponseError
    | OutputItemAdded
    | OutputItemDone
    | ContentPartAdded
    | ContentPartDone
    | OutputTextDelta
    | OutputTextDone
    | ReasoningTextDelta
    | ReasoningTextDone
    | ArgumentsDelta
    | ArgumentsDone
    | CustomInputDelta
    | CustomInputDone
)
"""All events, for the OpenAPI document."""


def name_of(event: ResponseEvent) -> str:
    """Return the value of an event's field `type`."""
    return str(event.__struct_config__.tag)


def end_of(response: Response) -> ResponseEvent:
    """Return the last event of a response that has ended."""
    if response.status == "completed":
        return ResponseCompleted(response=response)
    if response.status == "failed":
        return ResponseFailed(response=response)
    return ResponseIncomplete(response=response)
