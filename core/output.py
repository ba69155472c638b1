"""Parsers of the output of a chat model: they find text, reasoning and tool calls in it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ostro.core.messages.text import OutputEvent
from ostro.core.messages.text_requests import Tool


@dataclass(frozen=True, slots=True)
class Piece:
    """The next piece of an output: text, or the spelling of a control token."""

    text: str = ""
    control: str = ""


ToolChoice = Literal["auto", "required"] | Sequence[str]
"""Whether the model may call a tool or must; the names of the tools of which it must call one."""


class OutputParser(Protocol):
    """Parses the output of one choice; the record `Parser` names the class.

    reasoning  the texts that begin and end reasoning; None: there is none
    """

    reasoning: tuple[str, str] | None

    def __init__(
        self, prompt_end: str, tools: Sequence[Tool], controls: Collection[str] = ()
    ) -> None:
        """`prompt_end` are the last characters of the prompt, which may begin the reasoning.

        Without `tools` there are no calls: they are text. `controls` are the control tokens of the
        vocabulary: in a text their spelling is text.
        """

    def add(self, piece: Piece) -> list[OutputEvent]:
        """The events that are known after a piece. Text that may be a marker is held back."""

    def finish(self) -> list[OutputEvent]:
        """The rest, at the end of the output. Nothing is lost: a call that is cut off is text, or
        a call without `ToolCallEnd`.
        """

    @classmethod
    def grammar(
        cls,
        tools: Sequence[Tool],
        choice: ToolChoice,
        parallel: bool,
        controls: Mapping[str, int] | None = None,
        *,
        answer: bool = False,
    ) -> str:
        """The grammar of an output, in llguidance's Lark: reasoning, and text or calls.

        With "auto" text is free until a call begins; then strict tools follow their schemas, and
        those with a `format` that. `parallel` allows more than one call.
        `controls` are the ids of the control tokens. With `answer` the output is calls, or a text
        that satisfies the grammar `@answer`; `tools` may be empty. Raises Unsupported for what the
        notation cannot constrain.
        """


class OutputParserClass(Protocol):
    """`Parser.parser`: a class of parsers, one for each choice. See `OutputParser`."""

    reasoning: tuple[str, str] | None

    def __call__(
        self, prompt_end: str, tools: Sequence[Tool], controls: Collection[str] = (), /
    ) -> OutputParser: ...

    def grammar(
        self,
        tools: Sequence[Tool],
        choice: ToolChoice,
        parallel: bool,
        controls: Mapping[str, int] | None = None,
        /,
        *,
        answer: bool = False,
    ) -> str:
        """The grammar of an output, in llguidance's Lark."""
