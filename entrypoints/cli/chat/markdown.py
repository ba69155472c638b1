"""Renders an answer as Markdown on a terminal while it is generated."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.markdown import Markdown
from rich.segment import Segment, Segments
from rich.text import Text
from rich.theme import Theme

from ostro.entrypoints.cli.chat.display import CONTROLS

INTERVAL = 0.05
"""Least time between two renderings, in seconds."""

SHARE = 4
"""Least time between two renderings, as a multiple of the time of the last one."""

THOUGHTS = 3
"""Lines of reasoning that are visible while the model reasons."""

THEME = Theme({"markdown.code": "bold cyan", "markdown.h1": "bold underline"})
"""Styles without a background, which would not suit light terminals."""

CODE_THEME = "ansi_dark"
"""Pygments style that uses the colours of the terminal."""


class LiveRegion:
    """The last lines of the terminal, which are replaced while an answer grows.

    The lines are counted at the width of the terminal at the time of replacement: terminals wrap
    the lines again when their width changes.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.widths: list[int] = []

    def replace(self, renderable: RenderableType | None, *, final: bool = False) -> None:
        """Replace the region. A final renderable is printed completely and stays."""
        console, lines = self.console, list[list[Segment]]()
        if renderable is not None:
            lines = console.render_lines(renderable, pad=False)
        lines = [strip_line(line) for line in lines]
        if not final:
            lines = lines[-(max(console.height, 2) - 1) :]
        segments = [segment for line in lines for segment in (*line, Segment.line())]
        with console.capture() as capture:
            console.print(Segments(segments if final else segments[:-1]), crop=False)
        console.file.write(self._erasure() + capture.get())
        console.file.flush()
        self.widths = [] if final else [Segment.get_line_length(line) for line in lines]

    def _erasure(self) -> str:
        """The control codes that erase the region and leave the cursor at its beginning."""
        if not self.widths:
            return ""
        width = max(self.console.width, 1)
        rows = sum(max(1, -(-cells // width)) for cells in self.widths)
        return "\r" + (f"\x1b[{rows - 1}A" if rows > 1 else "") + "\x1b[J"


@dataclass
class Growing:
    """The part of an answer that is not printed yet.

    `began` is the time at which visible reasoning began, None without it; `due` that of the next
    rendering. `printed` is true after the first line that stays.
    """

    thoughts: str = ""
    tail: str = ""
    began: float | None = None
    printed: bool = False
    due: float = 0.0


class MarkdownDisplay:
    """Prints complete blocks of Markdown, and renders the last block again as it grows.

    Reasoning is dimmed. Its last lines are visible until the answer begins, then its length.
    """

    def __init__(self) -> None:
        self.console = Console(highlight=False, theme=THEME)
        self.region = LiveRegion(self.console)
        self.growing = Growing()

    def reason(self, text: str) -> None:
        growing = self.growing
        growing.thoughts += text.translate(CONTROLS)
        if growing.began is None:
            growing.began = time.perf_counter()
        self._refresh(self._last_thoughts)

    def write(self, text: str) -> None:
        self._fold()
        head, self.growing.tail = split_blocks(self.growing.tail + text.translate(CONTROLS))
        if head:
            self._print(head)
        self._refresh(lambda: render(self.growing.tail, spaced=self.growing.printed))

    def finish(self) -> None:
        self._fold()
        self._print(self.growing.tail)
        self.growing = Growing()

    def _fold(self) -> None:
        """Replace visible reasoning by its length."""
        growing = self.growing
        if growing.began is None:
            return
        seconds, words = time.perf_counter() - growing.began, len(growing.thoughts.split())
        line = f"Reasoned for {seconds:.1f} s ({words} words); /show reasoning prints it."
        self.region.replace(Text(line, style="dim"), final=True)
        growing.began, growing.printed, growing.due = None, True, 0.0

    def _last_thoughts(self) -> RenderableType:
        """The last lines of the reasoning."""
        text = Text(self.growing.thoughts[-4096:].expandtabs(4), style="dim")
        return Text("\n").join(text.wrap(self.console, self.console.width)[-THOUGHTS:])

    def _print(self, text: str) -> None:
        """Print text that is complete in the place of the region."""
        growing = self.growing
        if text.strip():
            self.region.replace(render(text, spaced=growing.printed), final=True)
            growing.printed = True
        else:
            self.region.replace(None)

    def _refresh(self, make: Callable[[], RenderableType]) -> None:
        """Render the region unless it was rendered a moment ago."""
        start = time.perf_counter()
        if start < self.growing.due:
            return
        self.region.replace(make())
        end = time.perf_counter()
        self.growing.due = end + max(INTERVAL, SHARE * (end - start))


def render(text: str, *, spaced: bool) -> RenderableType:
    """A Markdown block, with an empty line before it if `spaced`.

    HTML is shown as it is written, and a line break is one: rich omits HTML and joins lines.
    """
    block = Markdown(text, code_theme=CODE_THEME, hyperlinks=False)
    for token in block.parsed:
        if token.type == "html_block":
            token.type = "code_block"
        for child in token.children or []:
            if child.type == "html_inline":
                child.type = "text"
            elif child.type == "softbreak":
                child.type = "hardbreak"
    return Group(Text(""), block) if spaced else block


def strip_line(line: list[Segment]) -> list[Segment]:
    """A line without the spaces at its end, which would wrap when the terminal gets narrower."""
    kept = list(line)
    while kept and not kept[-1].text.strip():
        kept.pop()
    if kept:
        kept[-1] = kept[-1]._replace(text=kept[-1].text.rstrip())
    return kept


def split_blocks(text: str) -> tuple[str, str]:
    """Split Markdown into its complete blocks and the rest, which may still change.

    A block ends at an empty line outside of fenced code, if the next line is not indented.
    """
    end, position, fence, blank = 0, 0, "", False
    for line in text.splitlines(keepends=True):
        stripped = line.strip()
        if blank and not fence and stripped and not line[0].isspace():
            end = position
        if fence:
            fence = "" if stripped.startswith(fence) and not stripped.strip(fence[0]) else fence
        elif stripped.startswith(("```", "~~~")):
            fence = stripped[: len(stripped) - len(stripped.lstrip(stripped[0]))]
        blank = not stripped and line.endswith("\n")
        position += len(line)
    return text[:end], text[end:]
