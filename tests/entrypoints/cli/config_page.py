"""Writes the tables of keys in docs/config.md: python tests/entrypoints/cli/config_page.py."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from ostro.entrypoints.cli.config_file import MODEL_KEYS, model_actions, server_actions, type_of

PAGE = Path(__file__).resolve().parents[3] / "docs" / "config.md"
BEGIN, END = "<!-- keys -->\n", "<!-- /keys -->\n"


def page(text: str) -> str:
    """Return the page with current tables."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n".join(tables()) + "\n" + END + after


def tables() -> Iterator[str]:
    """The lines of the tables of both kinds of keys."""
    for title, actions in (("`[server]`", server_actions()), ("`[[models]]`", model_actions())):
        yield from ("", f"## {title}", "", "| key | type | option | meaning |", "|---|---|---|---|")
        yield from (row(key, action) for key, action in actions.items())
    for key, (kind, text) in MODEL_KEYS.items():
        yield f"| `{key}` | {kind} | | {text} |"
    yield ""


def row(key: str, action: argparse.Action) -> str:
    option = next(name for name in action.option_strings if name.startswith("--"))
    return f"| `{key}` | {type_of(action)} | `{option}` | {action.help} |"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
