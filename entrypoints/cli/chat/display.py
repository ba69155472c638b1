"""Prints answers while they are generated: as plain text, or as Markdown on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
CONTROLS |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
"""Visible characters for control characters, which could move the cursor or change the terminal."""


class Display(Protocol):
    """Prints one answer after the other: its reasoning, its text, then `finish`."""

    def reason(self, text: str) -> None:
        """Print a piece of reasoning."""
        ...

    def write(self, text: str) -> None:
        """Print a piece of the answer."""
        ...

    def finish(self) -> None:
        """End the answer, also an interrupted one."""
        ...


class PlainDisplay:
    """Prints the text as it is generated, reasoning between "<think>" and "</think>".

    On a terminal, control characters are visible characters.
    """

    def __init__(self) -> None:
        self.closing = ""
        self.controls = CONTROLS if sys.stdout.isatty() else {}

    def reason(self, text: str) -> None:
        if not self.closing:
            self.closing = "\n</think>\n\n"
            self._print("<think>\n")
        self._print(text)

    def write(self, text: str) -> None:
        self._print(self.closing + text)
        self.closing = ""

    def finish(self) -> None:
        self._print(self.closing.rstrip() + "\n")
        self.closing = ""

    def _print(self, text: str) -> None:
        print(text.translate(self.controls), end="", flush=True)


def open_display(plain: bool) -> Display:
    """The display of standard output: Markdown on a terminal that can move its cursor."""
    if plain or not sys.stdout.isatty() or os.environ.get("TERM") in (None, "", "dumb", "unknown"):
        return PlainDisplay()
    from ostro.entrypoints.cli.chat.markdown import MarkdownDisplay

    return MarkdownDisplay()


@contextmanager
def hidden_input() -> Iterator[None]:
    """Keys that are typed meanwhile are not printed into the answer; the next prompt reads them."""
    try:
        import termios
    except ImportError:  # Windows
        yield
        return
    try:
        file = sys.stdin.fileno()
        before = termios.tcgetattr(file)
    except (OSError, ValueError, termios.error):  # not a terminal
        yield
        return
    silent = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(file, termios.TCSANOW, silent)
    try:
        yield
    finally:
        termios.tcsetattr(file, termios.TCSANOW, before)
