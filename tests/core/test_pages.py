"""The Markdown pages of the repository: their width, and the files that they name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
WIDTH = 100


def prose(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a page with their numbers, without code blocks, tables and headings."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        if not (fenced or fence or line.startswith("    ") or line.lstrip().startswith(("|", "#"))):
            yield number, line


def too_wide(text: str) -> list[int]:
    """The numbers of the lines that exceed WIDTH; a single long word, such as a link, may."""
    return [n for n, line in prose(text) if len(line) > WIDTH and len(line.split()) > 1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_prose_is_wrapped(page: Path) -> None:
    found = too_wide(page.read_text())
    assert not found, f"{page.name}: wrap lines {found} at {WIDTH} columns"


def test_only_prose_is_measured() -> None:
    wide = "word " * 30
    assert too_wide(f"short\n{wide}\n") == [2]
    assert too_wide(f"```sh\n{wide}\n```\n| {wide} |\n# {wide}\n    {wide}\n{'x' * 200}\n") == []


@pytest.mark.parametrize("folder", ["core/messages", "core/engine", "core/ipc"])
def test_the_page_of_the_engine_names_every_file(folder: str) -> None:
    """Names with a path are of files elsewhere, those without one of the folder."""
    page = (ROOT / "docs" / "engine.md").read_text()
    [section] = re.findall(rf"^## {folder}\n(.+?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    files = {file.name for file in (ROOT / folder).rglob("*.py")} - {"__init__.py"}
    assert set(re.findall(r"`([a-z_]+\.py)`", section)) == files


@pytest.mark.parametrize("name", ["engine.md", "weights.md"])
def test_the_pages_of_the_code_name_files_that_exist(name: str) -> None:
    page = (ROOT / "docs" / name).read_text()
    paths = re.findall(r"`([a-z_]+/[\w/-]+(?:\.py)?)`", page)
    assert paths and [path for path in paths if not (ROOT / path).exists()] == []
