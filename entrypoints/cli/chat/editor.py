"""The line editor of the chat: history, several lines, completion. Imports prompt_toolkit."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import is_searching
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output
from prompt_toolkit.shortcuts import CompleteStyle

from ostro.core.env import HISTORY
from ostro.entrypoints.cli.chat.commands import ALIASES, COMMANDS
from ostro.entrypoints.cli.chat.session import is_open_block, note

if TYPE_CHECKING:
    from ostro.entrypoints.cli.chat.session import Session


MAX_HISTORY = 4 << 20
"""Size of the history file above which its older half is removed, in bytes."""


class Editor:
    """Reads messages and commands from the terminal."""

    def __init__(self, session: Session, *, history: bool = True) -> None:
        """`history` keeps the input in `history_file()`, in addition to memory."""
        self.prompt: PromptSession[str] = PromptSession(
            history=open_history() if history else InMemoryHistory(),
            multiline=True,
            prompt_continuation="  ",
            key_bindings=make_bindings(),
            completer=LineCompleter(session),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            enable_open_in_editor=True,
            tempfile_suffix=".md",
            # Standard output may be a file; then the prompt is on standard error.
            output=create_output(always_prefer_tty=True),
        )

    def read(self, draft: str) -> str:
        """Read a message. Raises EOFError on Ctrl-D and KeyboardInterrupt on Ctrl-C."""
        return self.prompt.prompt("> ", default=draft)


def make_bindings() -> KeyBindings:
    """The keys that differ from those of a line editor. A search (Ctrl-R) keeps its own."""
    bindings = KeyBindings()

    @bindings.add("enter", filter=~is_searching)
    def _(event: KeyPressEvent) -> None:
        if is_open_block(event.current_buffer.text):
            event.current_buffer.newline(copy_margin=False)
        else:
            event.current_buffer.validate_and_handle()

    @bindings.add("escape", "enter", filter=~is_searching)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    @bindings.add("c-c", filter=~is_searching)
    def _(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

    return bindings


class LineCompleter(Completer):
    """Completes commands, the words after them, and files. Messages are not completed."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if not text.startswith("/") or "\n" in text:
            return
        name, space, rest = text[1:].partition(" ")
        command = COMMANDS.get(ALIASES.get(name, name))
        if not space:
            yield from complete(name, COMMANDS)
        elif command is not None:
            word = rest.rpartition(" ")[2]
            yield from complete(word, command.complete(self.session))
            if command.files or rest.startswith("add "):
                yield from self.paths.get_completions(Document(word), event)


def complete(word: str, words: Iterable[str]) -> Iterable[Completion]:
    """The words that begin with a word."""
    for each in words:
        if each.startswith(word):
            yield Completion(each, start_position=-len(word))


def history_file() -> Path:
    """The file of the history, in the user's folder for state (XDG Base Directory)."""
    state = os.environ.get("XDG_STATE_HOME", "")
    root = Path(state) if Path(state).is_absolute() else Path.home() / ".local/state"
    return root / "ostro/history"


def open_history() -> History:
    """The history of OSTRO_HISTORY or `history_file()`; in memory if it cannot be written."""
    named = HISTORY.read()
    if named == "off":
        return InMemoryHistory()
    file = Path(named).expanduser() if named else history_file()
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600))
        if file.stat().st_size > MAX_HISTORY:
            recent = file.read_bytes()[-MAX_HISTORY // 2 :]
            file.write_bytes(recent[max(recent.find(b"\n# "), 0) :])
    except OSError as error:
        note(f"ostro: the history is not kept: {file}: {error.strerror}")
        return InMemoryHistory()
    return PrivateHistory(str(file))


class PrivateHistory(FileHistory):
    """A history file. A full disk does not end the chat."""

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(string)
