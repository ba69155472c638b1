"""The events of generated text, and token counts: plain data from the pipeline to every client.

Parsers yield events of one output; the pipeline yields those of all choices of a request.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ostro.core.messages.outputs import Finish, TokenLogprobs


class Event(msgspec.Struct, kw_only=True):
    """An event; `index` is the number of its choice."""

    index: int = 0


class Text(Event):
    """The next piece of a choice's text.

    If logprobs or token ids were requested, `tokens` are the tokens whose text starts in this
    piece, and `offsets` the positions of their texts in characters; an empty piece has those of
    reasoning and calls. `logprobs` are their log probabilities (None for the first token of a
    prompt).
    """

    text: str = ""
    tokens: list[int] = []
    logprobs: list[TokenLogprobs | None] | None = None
    offsets: list[int] = []
    prompt_logprobs: list[TokenLogprobs | None] | None = None


class Reasoning(Event):
    """The next piece of a choice's reasoning, which is not part of its text."""

    text: str


class ToolCallStart(Event):
    """A tool call begins. `call` numbers the calls of a choice from 0, `id` is unique."""

    call: int
    id: str
    name: str


class ToolCallArguments(Event):
    """The next piece of a call's arguments, which are JSON unless the model writes other text."""

    call: int
    text: str


class ToolCallEnd(Event):
    """A call is complete. A call that the output cuts off has no end; pipelines yield none."""

    call: int


class ChoiceEnd(Event):
    """A choice has ended; `stopped_by` is the stop string or token id that ended it."""

    finish: Finish
    stopped_by: str | int | None = None


OutputEvent = Text | Reasoning | ToolCallStart | ToolCallArguments | ToolCallEnd
"""The events of a parser."""


def text_of(events: Iterable[Event]) -> str:
    """The text among events, without reasoning and calls."""
    return "".join(event.text for event in events if isinstance(event, Text))


class Usage(msgspec.Struct, kw_only=True):
    """Token counts of a request.

    `cached` prompt tokens came from the prefix cache; `image` prompt tokens are those of images and
    videos, `audio` those of sound; `reasoning` tokens are part of the completion.
    Speculative decoding proposed `drafted` tokens, of which `accepted` ones are in the completion.
    """

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    image: int = 0
    audio: int = 0
    reasoning: int = 0
    drafted: int = 0
    accepted: int = 0
