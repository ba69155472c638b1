"""The shell script that does what `ostro launch` does: it writes files and starts a program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote

from ostro.core.env import API_KEY
from ostro.entrypoints.cli.launch.programs import Program, Setup

NO_KEY = "none"
"""The API key that programs get for a server without keys: most refuse an empty one."""


def script(program: Program, setup: Setup, arguments: Sequence[str], *, with_key: bool) -> str:
    """The script. With a key it reads the key from the environment instead of stating it."""
    lines = [line for file, text in setup.files.items() for line in write(file, text)]
    key = f'"${API_KEY.name}"' if with_key else NO_KEY
    variables = {name: quoted(value) for name, value in setup.environment.items()}
    words = [f"{name}={value}" for name, value in {**variables, program.key_variable: key}.items()]
    command = " ".join(map(quoted, (program.command, *setup.arguments, *arguments)))
    return "\n".join([*lines, " \\\n  ".join([*words, command])]) + "\n"


def write(file: Path, text: str) -> Iterator[str]:
    """The lines that write a file."""
    yield f"mkdir -p {quoted(str(file.parent))}"
    yield f"cat > {quoted(str(file))} <<'END'"
    yield f"{text}END"


def quoted(word: str) -> str:
    """A word as a shell reads it; the user's folder is ~."""
    home, sep, rest = word.partition(f"{Path.home()}/")
    return f"~/{quote(rest)}" if sep and not home else quote(word)
