"""Fixtures: the command line in this process or a separate one, and a tiny model for it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from tiny.model import make_gguf, make_model

from ostro.entrypoints.cli import main
from ostro.entrypoints.cli.chat import editor
from ostro.entrypoints.http import server
from ostro.entrypoints.serve_config import ModelOptions

HEAVY = "torch transformers triton numpy"
CODE = f"""
import sys
from ostro.entrypoints.cli import main
try:
    code = main()
except SystemExit as left:
    code = left.code
heavy = set({HEAVY!r}.split()) & set(sys.modules)
print(len(sys.modules), "modules", file=sys.stderr)
print("imported:", *sorted(heavy), file=sys.stderr)
sys.exit(code)
"""


@dataclass(frozen=True)
class Ran:
    """The output and exit code of a command."""

    code: int
    out: str
    err: str


Ostro = Callable[..., Ran]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a model folder."""
    return str(make_model(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of the same model in a GGUF file."""
    return str(make_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf"))


@pytest.fixture
def ostro(capsys: pytest.CaptureFixture[str]) -> Ostro:
    """Run a command in this process."""

    def run(*words: str) -> Ran:
        capsys.readouterr()
        try:
            code = main(list(words))
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 1
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return run


class Terminal(io.StringIO):
    """Standard input that is a terminal."""

    def isatty(self) -> bool:
        return True


Typed = Callable[[Sequence[str]], None]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Typed:
    """Replace the line editor of the chat: it returns these lines, then the input ends."""

    def replace(lines: Sequence[str]) -> None:
        rest = iter(lines)

        def read(self: editor.Editor, draft: str) -> str:
            try:
                return draft + next(rest)
            except StopIteration:
                raise EOFError from None

        monkeypatch.setattr(editor.Editor, "__init__", lambda self, session, history: None)
        monkeypatch.setattr(editor.Editor, "read", read)
        monkeypatch.setattr(sys, "stdin", Terminal())

    return replace


@pytest.fixture(scope="session")
def apart() -> Ostro:
    """Run a command in a separate process.

    The last two lines of `err` are the number of imported modules and the heavy ones by name.
    """

    def run(*words: str) -> Ran:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        ran = subprocess.run(
            [sys.executable, "-c", CODE, *words],
            env=env,
            capture_output=True,
            text=True,
            timeout=200,
        )
        return Ran(ran.returncode, ran.stdout, ran.stderr)

    return run


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of each server that was started."""
    found: list[dict[str, Any]] = []

    def serve(models: Sequence[ModelOptions], **options: Any) -> int:
        found.append({"models": models, **options})
        return 0

    monkeypatch.setattr(server, "serve", serve)
    return found
