"""Writes the scripts in docs/agents-and-uis.md: python tests/entrypoints/cli/launch_page.py."""

from __future__ import annotations

import re
from pathlib import Path

from ostro.entrypoints.cli.launch.programs import PROGRAMS, Target
from ostro.entrypoints.cli.launch.script import script

PAGE = Path(__file__).resolve().parents[3] / "docs" / "agents-and-uis.md"
BLOCK = re.compile(r"^```sh\n# ostro launch (\S+) --print\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def printed(name: str) -> str:
    """What `ostro launch NAME --print` prints for the server and the model of the page."""
    target = Target(
        url="http://127.0.0.1:1234",
        model="NAME",
        context=65536,
        folder=Path.home() / ".local/state/ostro/launch" / name,
    )
    program = PROGRAMS[name]
    return script(program, program.configure(target), (), with_key=False)


def page(text: str) -> str:
    """The page with the scripts of the programs."""

    def block(found: re.Match[str]) -> str:
        name = found[1]
        return f"```sh\n# ostro launch {name} --print\n{printed(name)}```"

    return BLOCK.sub(block, text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
