"""Generates answers in a chat: prompts, interruption, statistics."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from ostro.core.errors import OstroError
from ostro.core.messages.text import OutputEvent, Reasoning, Text
from ostro.core.output import OutputParser
from ostro.core.output import Piece as OutputPiece
from ostro.entrypoints.cli.chat.base_model import continues_text, join_text
from ostro.entrypoints.cli.chat.repetition import RepetitionGuard

if TYPE_CHECKING:
    from ostro.core.messages.prompt import Prompt
    from ostro.entrypoints.cli.chat.conversation import Conversation, Message
    from ostro.entrypoints.cli.chat.display import Display
    from ostro.entrypoints.local_engine import LocalEngine
    from ostro.entrypoints.local_model import LocalModel, Piece

TAG = re.compile(r"[<\[][\w:]+[>\]]")
"""A marker of reasoning that plain output shows as it is; other markers become "<think>"."""


class Part(NamedTuple):
    """A piece of an answer; `marker` is the name of the marker of reasoning, "" for text."""

    text: str
    marker: str = ""


@dataclass
class ChatAnswer:
    """An answer and its statistics: tokens, and seconds since the request.

    `finish` is None for an interrupted answer, "repetition" for one that `RepetitionGuard` ended.
    """

    text: str = ""
    reasoning: str = ""
    prompt_tokens: int = 0
    tokens: int = 0
    first: float = 0.0
    seconds: float = 0.0
    finish: str | None = None

    @property
    def message(self) -> Message:
        """The message of the assistant."""
        message: Message = {"role": "assistant", "content": self.text}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        return message

    def describe(self, context: int) -> str:
        """Lines of statistics; `context` is the context length in tokens."""
        used, after = self.prompt_tokens + self.tokens, self.seconds - self.first
        speed = f", {(self.tokens - 1) / after:.1f} tokens/s" if self.tokens > 1 and after else ""
        return (
            f"prompt: {self.prompt_tokens} tokens, first token after {self.first:.2f} s\n"
            f"answer: {self.tokens} tokens in {self.seconds:.2f} s{speed}, "
            f"ended by {self.finish or 'interrupt'}\n"
            f"context: {used} of {context} tokens ({used / context:.0%})"
        )


def make_prompt(model: LocalModel, conversation: Conversation, *, raw: bool = False) -> Prompt:
    """The prompt of a conversation; with `raw` or without a chat template, its plain text."""
    if continues_text(model, conversation, raw=raw):
        return model.prompt(join_text(conversation), parse_special=conversation.parse_special)
    options: dict[str, Any] = (
        {} if conversation.think is None else {"enable_thinking": conversation.think}
    )
    return model.prompt(conversation.prompt, adapters=conversation.adapters, **options)


def print_answer(
    model: LocalModel, conversation: Conversation, display: Display, *, raw: bool = False
) -> ChatAnswer:
    """Print the answer while it is generated; Ctrl-C stops it, a second Ctrl-C ends the program.

    Raises an OstroError of the model.
    """
    answer = ChatAnswer()
    with interruptible(model.local):
        try:
            for part in generate(model, conversation, answer, raw=raw):
                if part.marker:
                    display.reason(part.text, part.marker)
                else:
                    display.write(part.text)
        except OstroError:
            if answer.tokens:
                display.finish()
            raise
        display.finish()
    if answer.finish == "repetition":
        message = "ostro: the answer repeats itself and was stopped; -n N sets a length instead"
        print(message, file=sys.stderr)
    return answer


def generate(
    model: LocalModel, conversation: Conversation, answer: ChatAnswer, *, raw: bool
) -> Iterator[Part]:
    """Yield the parts of an answer and record them in `answer`. An interrupt ends it.

    Without max_tokens, an answer that repeats itself ends, too.
    """
    start = time.perf_counter()
    prompt = make_prompt(model, conversation, raw=raw)
    answer.prompt_tokens = len(prompt.tokens)
    plain = continues_text(model, conversation, raw=raw)
    parser = None if plain else model.parser(prompt, adapters=conversation.adapters)
    guard = None if "max_tokens" in conversation.sampling else RepetitionGuard()
    stream = stream_answer(model, conversation, prompt, plain=plain)
    with closing(stream):
        try:
            for piece in stream:
                answer.seconds = time.perf_counter() - start
                answer.first = answer.first or answer.seconds
                answer.tokens += piece.token is not None
                answer.finish = piece.finish
                for part in parts_of(parser, piece, model):
                    yield record(answer, part)
                if guard is not None and piece.token is not None and guard.add(piece.token):
                    answer.finish = "repetition"
                    break
        except KeyboardInterrupt:
            pass
    if parser is not None:
        for part in named(parser, parser.finish()):
            yield record(answer, part)


def stream_answer(
    model: LocalModel, conversation: Conversation, prompt: Prompt, *, plain: bool, **sampling: Any
) -> Generator[Piece]:
    """Yield the answer to a prompt; with `plain` its continuation as a text without reasoning."""
    return model.stream(
        prompt,
        adapters=conversation.adapters,
        chat=not plain,
        thinking_budget=conversation.thinking_budget,
        **conversation.sampling,
        **sampling,
    )


def parts_of(parser: OutputParser | None, piece: Piece, model: LocalModel) -> Iterable[Part]:
    """Yield the parts that are known after a piece of a stream."""
    if parser is None:
        return [Part(piece.text)] if piece.text else []
    control = ""
    if piece.token in model.tokenizer.control_ids:
        control = model.tokenizer.token(piece.token)
    return named(parser, parser.add(OutputPiece(piece.text, control)))


def parts_of_answer(
    parser: OutputParser | None, pieces: Iterable[Piece], model: LocalModel
) -> Iterator[Part]:
    """Yield the parts of a whole answer."""
    for piece in pieces:
        yield from parts_of(parser, piece, model)
    if parser is not None:
        yield from named(parser, parser.finish())


def named(parser: OutputParser, events: Iterable[OutputEvent]) -> Iterator[Part]:
    """Yield the parts of events; a chat offers no tools, so that there are no calls."""
    begin = parser.reasoning[0] if parser.reasoning else ""
    for event in events:
        if isinstance(event, Reasoning):
            yield Part(event.text, begin if TAG.fullmatch(begin) else "<think>")
        elif isinstance(event, Text):
            yield Part(event.text)


def record(answer: ChatAnswer, part: Part) -> Part:
    """Append a part to the answer, and return it."""
    if part.marker:
        answer.reasoning += part.text
    else:
        answer.text += part.text
    return part


@contextmanager
def interruptible(engine: LocalEngine) -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt before the next step of the engine, never during a step.

    A second Ctrl-C before that raises SystemExit at once.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        if engine.interrupted:
            raise SystemExit(128 + number)
        engine.interrupted = True

    previous = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
        engine.interrupted = False
