"""docs/agents-and-uis.md shows what `ostro launch` prints."""

from __future__ import annotations

import re

import pytest

from ostro.entrypoints.cli.launch.programs import PROGRAMS

from .launch_page import BLOCK, PAGE, page, printed


def test_the_page_has_the_script_of_every_program() -> None:
    text = PAGE.read_text()
    assert [found[1] for found in BLOCK.finditer(text)] == [*PROGRAMS]
    assert page(text) == text, "run: python tests/entrypoints/cli/launch_page.py"
    assert page(text.replace("codex -m NAME", "codex -m OTHER")) == text


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_page_states_the_first_prompt(name: str) -> None:
    """In the table: `NAME`, the program, its API, tokens of the first prompt, what works."""
    ((tokens),) = re.findall(rf"^\| `{name}` \|.+?\|.+?\| (.+?) \|", PAGE.read_text(), re.MULTILINE)
    prompt = PROGRAMS[name].prompt
    assert tokens == ("not measured" if prompt is None else f"{prompt:,}")


def test_scripts_do_not_depend_on_the_machine() -> None:
    assert "~/.local/state/ostro/launch/pi/ostro.js" in printed("pi")
