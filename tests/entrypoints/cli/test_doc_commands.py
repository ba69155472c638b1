"""The commands of the README and of docs/ are parsed by the command line that they describe."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest

from ostro.entrypoints.cli import build

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OPERATORS = {"|", ">", "<", "&&", "&", "2>"}
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`(ostro [^`]+)`")


def commands(page: Path) -> Iterator[list[str]]:
    """The words of each command: lines of shell blocks, and spans of the table of programs."""
    text = page.read_text("utf-8")
    lines = "\n".join(BLOCK.findall(text)).replace("\\\n", " ").splitlines()
    spans = SPAN.findall(text) if page.name == "coming-from.md" else []
    for line in [*lines, *spans]:
        if line.startswith("ostro "):
            words = shlex.split(line, comments=True)
            yield list(takewhile(lambda word: word not in OPERATORS, words[1:]))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_parse(page: Path) -> None:
    for words in commands(page):
        parser, _ = build(words)
        try:
            parser.parse_args(words)
        except SystemExit:
            pytest.fail(f"{page.name}: ostro {shlex.join(words)}")


def test_commands_are_found() -> None:
    assert sum(len(list(commands(page))) for page in PAGES) > 100
    assert ["run", "llama3.2"] in list(commands(ROOT / "docs" / "coming-from.md"))
