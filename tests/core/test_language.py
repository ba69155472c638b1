"""Code and documents use the field's terms: words of the first versions do not come back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("core", "architectures", "quant", "adapters", "plugins", "entrypoints", "docs", "tests")
OLD = re.compile(
    r"(?i)\b(told|heard|whoever|house|tenants?|tapes?|shelf|guest|few bits|no number|strips|"
    r"twins?)\b"
)
NAMED = ("docs/migration-0.2.md", "tests/core/test_language.py", "CHANGELOG.md")
"""Files that name the old words: what they became, and this list."""

TEXT = "plugins/starter/training/"
"""English sentences that the starter model learned."""


def files() -> list[str]:
    """Sources and documents, by their paths from the root."""
    found = [path for room in ROOMS for path in (ROOT / room).rglob("*")] + [*ROOT.glob("*.md")]
    names = [
        path.relative_to(ROOT).as_posix()
        for path in found
        if path.suffix in (".py", ".md", ".cpp", ".h", ".toml")
    ]
    return [name for name in names if name not in NAMED and not name.startswith(TEXT)]


def old_words(text: str) -> list[str]:
    """The lines of a text with one of the words."""
    return [line.strip() for line in text.splitlines() if OLD.search(line)]


def test_old_words_are_found() -> None:
    assert old_words("a linear is told\nfew  bits\nHouse of\nhousehold\nno number") == [
        "a linear is told",
        "House of",
        "no number",
    ]


@pytest.mark.parametrize("room", [*ROOMS, ""])
def test_no_file_uses_the_old_words(room: str) -> None:
    own = [name for name in files() if name.rpartition("/")[0].partition("/")[0] == room]
    assert own
    assert not {name: found for name in own if (found := old_words((ROOT / name).read_text()))}
