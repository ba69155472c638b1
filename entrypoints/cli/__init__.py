"""The command line: `ostro run`, `serve`, `embed`, `rerank`, `bench`, `inspect`, ...

Each command is a module with `HELP`, `add_arguments(parser)` and `run(args)`; what is heavy is
imported when the command runs, so that `--help` answers at once. Plugins add commands of their own.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ostro import __version__
from ostro.core.errors import OstroError, PluginError

if TYPE_CHECKING:
    from rich.console import Console

COMMANDS = {
    "run": "chat with a model here in the terminal",
    "serve": "serve a model over HTTP, as OpenAI's API",
    "embed": "turn texts into vectors",
    "rerank": "order documents by how well they answer a query",
    "transcribe": "write down what is said in sound files",
    "draw": "turn a prompt into pictures",
    "speak": "say a text",
    "bench": "measure prefill, decode, latency and cache of a model or a server",
    "quality": "measure what few bits cost: a model beside itself in floats",
    "quantize": "write a model in formats of fewer bits",
    "merge": "write a model with adapters merged into its weights",
    "adapters": "say what adapters are, and what they do to a model",
    "fit": "weigh a model in every format beside the memory of this machine",
    "inspect": "show a checkpoint's config, names, shapes and types, from its headers only",
    "models": "list the architectures and formats at hand",
    "plugins": "list the plugins, what they offer, and which are broken and why",
    "doctor": "check this machine: devices, compilers, libraries",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code. A traceback shows only with --debug."""
    argv = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in argv
    argv = [word for word in argv if word != "--debug"]
    try:
        parser, run = build(argv)
        return int(run(parser.parse_args(argv)) or 0)
    except OstroError as error:
        if debug:
            raise
        print(f"ostro: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def build(argv: Sequence[str]) -> tuple[argparse.ArgumentParser, Any]:
    """The parser with the asked command filled in, and what runs it."""
    parser = argparse.ArgumentParser(
        prog="ostro",
        description="A model zoo made of plugins, and the engine that serves it.",
        epilog="ostro COMMAND --help says more. --debug shows tracebacks.",
    )
    parser.add_argument("--version", action="version", version=f"ostro {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    asked = next((word for word in argv if not word.startswith("-")), None)
    run: Any = None
    for name, text in COMMANDS.items():
        command = subparsers.add_parser(name, help=text, description=text)
        if name == asked:
            module = import_module(f"{__name__}.{name}")
            module.add_arguments(command)
            run = module.run
    if asked not in COMMANDS and (
        asked is not None or not argv or "-h" in argv or "--help" in argv
    ):
        run = add_plugin_commands(subparsers, asked) or run
    return parser, run


def add_plugin_commands(subparsers: Any, asked: str | None) -> Any:
    """Subcommands of plugins; only the asked one is imported."""
    from ostro.core.plugins import PluginManager
    from ostro.core.records import resolve

    plugins, run = PluginManager(), None
    plugins.load()
    for record in plugins.collect("commands").values():
        command = subparsers.add_parser(record.name, help=record.help, description=record.help)
        if record.name == asked:
            try:
                resolve(record.parser)(command)
                run = resolve(record.run)
            except Exception as error:
                raise PluginError(
                    f"the command {record.name!r} does not work: {type(error).__name__}: {error}; "
                    "`ostro plugins` says where it comes from"
                ) from error
    return run


def console() -> Console:
    """Where tables are written: text stays text, since names of tensors may hold markup.

    Lines are long where no terminal limits them, so that names stay whole for other programs.
    """
    from rich.console import Console

    found = Console(markup=False, emoji=False, highlight=False)
    if not found.is_terminal:
        found.width = max(found.width, 200)
    return found
