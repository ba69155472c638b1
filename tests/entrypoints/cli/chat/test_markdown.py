"""Markdown on a terminal: the final text has all of the answer, and no leftovers of rendering."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ostro.entrypoints.cli.chat.markdown import MarkdownDisplay, split_blocks

ANSWER = """# Title

Some **bold** text
on two lines with <b>HTML</b> and `code`.

1. one
2. two

```python
def f():

    return 1
```

| name | size |
|------|------|
| ab   | 12   |

<div>block</div>
"""


class Screen:
    """The lines of a terminal after the few control codes that the display uses."""

    def __init__(self) -> None:
        self.lines, self.row = [""], 0

    def write(self, text: str) -> None:
        import re

        for code, char in re.findall(r"(\x1b\[[0-9;]*[A-Za-z])|([^\x1b])", text):
            if code.endswith("A"):
                self.row -= int(code[2:-1])
                assert self.row >= 0
            elif code.endswith("J"):
                del self.lines[self.row + 1 :]
                self.lines[self.row] = ""
            elif char == "\n":
                self.row += 1
                self.lines += [""] * (self.row == len(self.lines))
            elif char and char != "\r":
                self.lines[self.row] += char


@pytest.fixture
def display(monkeypatch: pytest.MonkeyPatch) -> MarkdownDisplay:
    """A display of 60 columns and 12 lines that writes to memory and renders every piece."""
    found = MarkdownDisplay()
    theme = Console(file=io.StringIO(), force_terminal=True, width=60, height=12)
    monkeypatch.setattr("ostro.entrypoints.cli.chat.markdown.INTERVAL", 0)
    monkeypatch.setattr("ostro.entrypoints.cli.chat.markdown.SHARE", 0)
    found.console = found.region.console = theme
    return found


def screen_of(display: MarkdownDisplay) -> str:
    screen = Screen()
    screen.write(display.console.file.getvalue())  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in screen.lines)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_an_answer_is_rendered_once(display: MarkdownDisplay, size: int) -> None:
    for i in range(0, len(ANSWER), size):
        display.write(ANSWER[i : i + size])
    display.finish()
    shown = screen_of(display)
    for text in ("Title", "Some bold text\non two lines with <b>HTML</b> and code.", "1 one"):
        assert shown.count(text) == 1, shown
    for text in (" def f():", "     return 1", "<div>block</div>", " ab"):
        assert shown.count(text) == 1, shown
    assert "**" not in shown and "```" not in shown and "|" not in shown


def test_a_block_longer_than_the_terminal_is_printed_completely(display: MarkdownDisplay) -> None:
    for i in range(40):
        display.write(f"line {i}\n")
    display.finish()
    shown = screen_of(display)
    assert [line for line in shown.splitlines() if line] == [f"line {i}" for i in range(40)]


def test_reasoning_is_visible_and_then_folded(display: MarkdownDisplay) -> None:
    for word in ("first\n", "second\n", "third\n", "fourth\n", "fifth"):
        display.reason(word)
    thinking = screen_of(display)
    assert "fifth" in thinking and "first" not in thinking
    display.write("Yes.")
    display.finish()
    shown = screen_of(display)
    assert "fifth" not in shown and "(5 words)" in shown and shown.rstrip().endswith("\n\nYes.")


def test_a_narrower_terminal_is_erased_completely(display: MarkdownDisplay) -> None:
    display.write("word " * 20)
    assert display.region.widths == [59, 39]
    display.console.width = 30  # each line is wrapped to two
    display.region.replace(None)
    assert display.console.file.getvalue().endswith("\r\x1b[3A\x1b[J")  # type: ignore[attr-defined]


def test_control_characters_do_not_reach_the_terminal(display: MarkdownDisplay) -> None:
    display.reason("\x1b]0;thought\a")
    display.write("\x1b[2Jtitle\x9b\x08\tend")
    display.finish()
    written = display.console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[2J" not in written and not {"\x07", "\x08", "\x9b"} & set(written)
    assert "␛[2Jtitle�␈" in written


@pytest.mark.parametrize(
    ("text", "head"),
    [
        ("a\nb", ""),
        ("a\n\n", ""),
        ("a\n\nb", "a\n\n"),
        ("- a\n\n  b", ""),
        ("```\na\n\nb", ""),
        ("```\na\n\nb\n```\n\nc", "```\na\n\nb\n```\n\n"),
        ("````\n```\n\nb\n````\n\nc", "````\n```\n\nb\n````\n\n"),
    ],
)
def test_blocks_are_split_at_empty_lines_outside_of_code(text: str, head: str) -> None:
    assert split_blocks(text) == (head, text.removeprefix(head))
