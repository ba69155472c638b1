"""Generates answers in a chat: prompts, interruption, statistics."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from ostro.core.errors import OstroError
from ostro.core.messages.text import ChoiceEnd, Event, Reasoning, Text
from ostro.entrypoints.cli.chat.base_model import continues_text, join_text
from ostro.entrypoints.cli.chat.repetition import RepetitionGuard

if TYPE_CHECKING:
    from ostro.entrypoints.cli.chat.conversation import Conversation, Message
    from ostro.entrypoints.cli.chat.display import Display
    from ostro.entrypoints.python.answer import LocalAnswer
    from ostro.entrypoints.python.engine import LocalEngine
    from ostro.entrypoints.python.model import LocalModel


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

    def add(self, event: Event) -> None:
        """Record the next event."""
        if isinstance(event, Reasoning):
            self.reasoning += event.text
        elif isinstance(event, Text):
            self.text += event.text
        elif isinstance(event, ChoiceEnd):
            self.finish = event.finish

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


def start_answer(
    model: LocalModel, conversation: Conversation, *, raw: bool = False, **arguments: Any
) -> LocalAnswer:
    """The answer to a conversation; with `raw` or without a chat template, to its plain text.

    `arguments` are those of `LocalModel.stream`.
    """
    arguments = {**conversation.sampling, "return_token_ids": True, **arguments}
    if continues_text(model, conversation, raw=raw):
        arguments["parse_special"] = conversation.parse_special
        prompt: Any = join_text(conversation)
    else:
        if conversation.think is not None:
            arguments["chat_template_kwargs"] = {"enable_thinking": conversation.think}
        arguments["thinking_budget"] = conversation.thinking_budget
        prompt = conversation.prompt
    return model.stream(prompt, adapters=conversation.adapters, **arguments)


def print_answer(
    model: LocalModel, conversation: Conversation, display: Display, *, raw: bool = False
) -> ChatAnswer:
    """Print the answer while it is generated; Ctrl-C stops it, a second Ctrl-C ends the program.

    Raises an OstroError of the model.
    """
    answer = ChatAnswer()
    with interruptible(model.local):
        try:
            for event in generate(model, conversation, answer, raw=raw):
                if isinstance(event, Reasoning):
                    display.reason(event.text)
                elif isinstance(event, Text) and event.text:
                    display.write(event.text)
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
) -> Iterator[Event]:
    """Yield the events of an answer and record them in `answer`. An interrupt ends it.

    Without max_tokens, an answer that repeats itself ends, too.
    """
    start = time.perf_counter()
    stream = start_answer(model, conversation, raw=raw)
    guard = None if "max_tokens" in conversation.sampling else RepetitionGuard()
    with closing(stream):
        try:
            for event in stream:
                answer.seconds = time.perf_counter() - start
                answer.first = answer.first or answer.seconds
                answer.add(event)
                yield event
                tokens = event.tokens if isinstance(event, Text) else []
                if guard is not None and any([guard.add(token) for token in tokens]):
                    answer.finish = "repetition"
                    break
        except KeyboardInterrupt:
            pass
        finally:
            answer.prompt_tokens, answer.tokens = stream.usage.prompt, stream.usage.completion
    if answer.finish in (None, "repetition"):
        for event in stream.interrupt():
            if not isinstance(event, ChoiceEnd):
                answer.add(event)
                yield event


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
