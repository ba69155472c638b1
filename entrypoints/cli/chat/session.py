"""The chat of `ostro run`: messages and commands are read, answers printed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Any, Protocol

from ostro.core.errors import AdapterError, ContextLengthExceeded, OstroError
from ostro.entrypoints.cli.chat.answers import ChatAnswer, print_answer
from ostro.entrypoints.cli.chat.conversation import (
    Conversation,
    Message,
    media_of,
    text_of,
    user_message,
)
from ostro.entrypoints.cli.chat.display import CONTROLS, Display, hidden_input
from ostro.entrypoints.progress import columns_of

if TYPE_CHECKING:
    from pathlib import Path

    from ostro.entrypoints.python.model import LocalModel

HINTS: dict[type[OstroError], str] = {
    ContextLengthExceeded: "; the message was not added, /clear clears the conversation",
    AdapterError: "; /adapter none disables adapters",
}
"""Advice for errors of an answer."""

BLOCK = '"""'
"""Begins and ends a message of several lines."""


class Loader(Protocol):
    """Loads the model of a reference, with the options of the command."""

    def check(self, reference: str) -> None:
        """Raise an OstroError if the model cannot be found; reads no weights."""
        ...

    def load(self, reference: str | None) -> LocalModel:
        """Load a model; None is that of the options. Raises an OstroError."""
        ...


class Session:
    """A chat with a model.

    reference    that of the last /model, None before
    attachments  parts of the next message
    draft        the text with which the next line begins
    answer       the last answer
    file         the file of the last /save or /load
    """

    def __init__(
        self,
        model: LocalModel,
        conversation: Conversation,
        display: Display,
        loader: Loader,
        raw: bool = False,
    ) -> None:
        """`raw` continues the text of the messages without a chat template."""
        self.model, self.conversation, self.display = model, conversation, display
        self.loader, self.raw = loader, raw
        self.reference: str | None = None
        self.attachments: list[dict[str, Any]] = []
        self.draft = ""
        self.answer: ChatAnswer | None = None
        self.file: Path | None = None
        self.stats = self.interrupted = self.ended = False

    def run(self, read: Callable[[str], str]) -> int:
        """Handle messages and commands until the input ends. Returns the exit code.

        `read` returns what the user typed after a draft. It raises EOFError at the end of the
        input and KeyboardInterrupt on Ctrl-C; the second Ctrl-C in a row ends the chat.
        """
        while not self.ended:
            draft, self.draft = self.draft, ""
            try:
                text = read(draft)
            except EOFError:
                break
            except KeyboardInterrupt:
                if self.interrupted:
                    break
                self.interrupted = True
                note("Ctrl-C again or Ctrl-D ends the chat.")
                continue
            self.interrupted = False
            self.handle(text)
        return 0

    def handle(self, text: str) -> None:
        """Run a command, or answer a message. Blank text has no effect."""
        from ostro.entrypoints.cli.chat.commands import run_command

        block = unquote(text)
        if block is None and text.startswith("/"):
            try:
                run_command(self, text)
            except OstroError as error:
                note(f"ostro: {error}")
        elif (message := (text if block is None else block).strip()) or self.attachments:
            self.ask(message)

    def ask(self, text: str) -> None:
        """Answer a message. If that fails, the conversation stays as it was."""
        messages = self.conversation.messages
        messages.append(user_message(text, self.attachments))
        if self.respond():
            self.attachments = []
        else:
            messages.pop()

    def respond(self) -> bool:
        """Answer the last user message. False if that fails; the error has been printed."""
        try:
            with hidden_input():
                answer = print_answer(self.model, self.conversation, self.display, raw=self.raw)
        except OstroError as error:
            hint = next((text for kind, text in HINTS.items() if isinstance(error, kind)), "")
            note(f"ostro: {error}{hint}")
            return False
        self.answer, self.interrupted = answer, answer.finish is None
        self.conversation.messages.append(answer.message)
        if self.stats:
            note(answer.describe(self.model.model.context))
        return True

    def retry(self) -> bool:
        """Answer the last user message again. False if there is none."""
        messages, last = self.conversation.messages, self.conversation.last("user")
        if last is None:
            return False
        dropped = messages[last + 1 :]
        del messages[last + 1 :]
        if not self.respond():
            messages += dropped
        return True

    def undo(self) -> Message | None:
        """Remove the last user message with its answer, and return it; None if there is none."""
        messages, last = self.conversation.messages, self.conversation.last("user")
        if last is None:
            return None
        removed = messages[last]
        del messages[last:]
        return removed

    def edit(self) -> bool:
        """Remove the last exchange; its message is the draft of the next one."""
        removed = self.undo()
        if removed is None:
            return False
        self.draft, self.attachments = text_of(removed), media_of(removed)
        return True

    def clear(self) -> None:
        """Remove all messages and attachments; the settings stay."""
        self.conversation.messages.clear()
        self.attachments.clear()

    def change_model(self, reference: str) -> None:
        """Load another model in the place of the current one; the messages stay.

        Raises an OstroError, with the current model loaded, if the other cannot be loaded.
        """
        self.loader.check(reference)
        self.model.close()
        try:
            self.model = self.loader.load(reference)
        except OstroError:
            self.model = self.loader.load(self.reference)
            raise
        self.reference = reference
        self.conversation.adapters = {}


def note(text: str) -> None:
    """Print text that is not part of an answer; it may quote answers and files.

    On a terminal, lines are wrapped between words.
    """
    text = text.translate(CONTROLS)
    if sys.stderr.isatty():
        text = wrapped(text, columns_of(sys.stderr))
    print(text, file=sys.stderr, flush=True)


def wrapped(text: str, columns: int) -> str:
    """A text whose lines have at most this many columns, except for longer words."""
    fill = TextWrapper(
        width=columns, break_long_words=False, break_on_hyphens=False, replace_whitespace=False
    ).fill
    return "\n".join(fill(line) if len(line) > columns else line for line in text.split("\n"))


def is_open_block(text: str) -> bool:
    '''Whether a text begins with """ and the closing """ is missing.'''
    text = text.strip()
    return text.startswith(BLOCK) and (len(text) < 6 or not text.endswith(BLOCK))


def unquote(text: str) -> str | None:
    '''The text between """ and """; None for other text.'''
    text = text.strip()
    if not text.startswith(BLOCK) or is_open_block(text):
        return None
    return text[len(BLOCK) : -len(BLOCK)]
