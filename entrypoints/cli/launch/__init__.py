"""`ostro launch PROGRAM`: start an agent or a chat page on a model of a running server."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from ostro.core.env import API_KEY
from ostro.core.errors import UsageError
from ostro.entrypoints.cli.launch.programs import PROGRAMS, Program, Setup, Target
from ostro.entrypoints.cli.launch.script import NO_KEY, script
from ostro.entrypoints.cli.launch.server import find_model

URL = "http://127.0.0.1:1234"
ANSWER = 8192
"""Tokens of the context that a first prompt should leave to answers and results of tools."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.description = (
        "Start a coding agent, a chat page or another program on a model of a running server. "
        "Arguments after -- are the program's. It does not change your settings of the program. "
        "Without PROGRAM, list the programs."
    )
    parser.usage = "ostro launch [options] [PROGRAM] [-- ARGS ...]"
    parser.set_defaults(arguments=[])
    add = parser.add_argument
    add("program", nargs="?", choices=PROGRAMS, metavar="PROGRAM", help=", ".join(PROGRAMS))
    add("--url", default=URL, metavar="URL", help=f"the server (default: {URL})")
    add("--model", metavar="NAME", help="a model of the server (default: the first one)")
    add("--api-key", metavar="KEY", help=f"API key of the server (default: {API_KEY.name})")
    add("--print", action="store_true", help="print a shell script that does the same")


def run(args: argparse.Namespace) -> int:
    """Start the program in place of this process, or print how."""
    if args.program is None:
        show_programs()
        return 0
    program = PROGRAMS[args.program]
    url = args.url.rstrip("/").removesuffix("/v1")
    key = args.api_key or API_KEY.read()
    model, context = find_model(url, args.model, key)
    folder = state_folder() / args.program
    setup = program.configure(Target(url=url, model=model, context=context, folder=folder))
    print(describe_context(args.program, program, model, context), end="", file=sys.stderr)
    if args.print:
        print(script(program, setup, args.arguments, with_key=bool(key)), end="")
        return 0
    path = shutil.which(program.command)
    if path is None:
        raise UsageError(
            f"{program.command} is not installed: {program.install}; "
            "--print prints its settings without starting it"
        )
    write_files(setup.files)
    start(path, program, setup, args.arguments, key or NO_KEY)


def show_programs() -> None:
    """Print the programs, and where they are installed."""
    for name, program in PROGRAMS.items():
        path = shutil.which(program.command) or f"not installed: {program.install}"
        print(f"{name:12}{path}")


def state_folder() -> Path:
    """The folder of the programs' files, in the user's folder for state (XDG Base Directory)."""
    state = os.environ.get("XDG_STATE_HOME", "")
    root = Path(state) if Path(state).is_absolute() else Path.home() / ".local/state"
    return root / "ostro/launch"


def describe_context(name: str, program: Program, model: str, context: int) -> str:
    """Lines about the first prompt and the context; none if the prompt was not measured."""
    if program.prompt is None:
        return ""
    text = (
        f"ostro: the first prompt of {name} has up to {program.prompt:,} tokens, "
        f"the context of {model} {context:,}\n"
    )
    if program.prompt < context:
        return text
    enough = 1 << (program.prompt + ANSWER - 1).bit_length()
    return f"{text}ostro: warning: this may not fit: start the server with --context {enough}\n"


def write_files(files: Mapping[Path, str]) -> None:
    """Write a program's files. Raises UsageError."""
    for file, text in files.items():
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"{file}: {error.strerror}; XDG_STATE_HOME names another folder"
            ) from error


def start(path: str, program: Program, setup: Setup, arguments: list[str], key: str) -> NoReturn:
    """Replace this process by the program, which gets its signals and has its exit code."""
    environment = {**os.environ, **setup.environment, program.key_variable: key}
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(path, [program.command, *setup.arguments, *arguments], environment)
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror}; install it again: {program.install}"
        ) from error
