"""The command line: `ostro run`, `serve`, `embed`, `rerank`, `bench`, `inspect`, ...

Each command is a module with `add_arguments(parser)` and `run(args)`. Heavy modules are imported
in `run`, so that `--help` is fast. Plugins add further commands.
"""

from __future__ import annotations

import argparse
import gc
import io
import os
import sys
from codecs import lookup
from collections.abc import MutableMapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ostro import __version__
from ostro.core.commands import COMMANDS
from ostro.core.errors import OstroError, PluginError, nearest
from ostro.entrypoints.cli.examples import EXAMPLES
from ostro.entrypoints.cli.parser import HelpFormatter, Parser

if TYPE_CHECKING:
    from rich.console import Console

MODULES = {"from-config": "from_config", "list": "list_models"}
"""Modules whose name is not that of their command: a module `list` would hide the built-in type."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. Tracebacks are printed with --debug only."""
    limit_spinning(os.environ)
    set_encodings()
    argv = list(sys.argv[1:] if argv is None else argv)
    own = argv.index("--") if "--" in argv else len(argv)
    debug = "--debug" in argv[:own]
    argv = [word for word in argv[:own] if word != "--debug"] + argv[own:]
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
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
    finally:
        # Loading excludes objects from collection; Triton reports those that are left at the exit.
        gc.unfreeze()


def set_encodings() -> None:
    """Let no text fail at an encoding: output replaces what it lacks, piped input is UTF-8.

    Standard error escapes such characters by itself. A terminal keeps the encoding of its keys,
    except ASCII, of which UTF-8 is a superset.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    if not isinstance(sys.stdin, io.TextIOWrapper):
        return
    if not sys.stdin.isatty() or lookup(sys.stdin.encoding).name == "ascii":
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")


def writes_unicode() -> bool:
    """Whether standard output can write every character. JSON has escapes for the others."""
    return (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf")


def limit_spinning(environment: MutableMapping[str, str]) -> None:
    """Let waiting OpenMP threads of this process and its children sleep after a millisecond.

    By default libgomp's threads spin for several milliseconds, which keeps the threads that they
    wait for from running on a busy machine. 40000 turns last longer than the gap between two decode
    steps: with 2000, waking the threads in every step costs a small model up to a half of its
    speed. libgomp reads the variable when torch is imported. A policy that the user has set is
    kept.
    """
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", "40000")


def build(argv: Sequence[str]) -> tuple[argparse.ArgumentParser, Any]:
    """The parser, with the options of the requested command, and that command's function."""
    parser = argparse.ArgumentParser(
        prog="ostro",
        description="A model zoo made of plugins, and the engine that serves it.",
        epilog="ostro COMMAND --help describes a command. --debug prints tracebacks.",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"ostro {__version__}")
    subparsers = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=Parser
    )
    requested = next((word for word in argv if not word.startswith("-")), None)
    run: Any = None
    for name, text in COMMANDS.items():
        command = subparsers.add_parser(
            name, help=text, description=text, examples=EXAMPLES.get(name, ())
        )
        if name == requested:
            module = import_module(f"{__name__}.{MODULES.get(name, name)}")
            module.add_arguments(command)
            run = module.run
    if requested not in COMMANDS and (
        requested is not None or not argv or "-h" in argv or "--help" in argv
    ):
        run = add_plugin_commands(subparsers, requested)
        if requested and run is None:
            parser.error(f"unknown command {requested!r}{nearest(requested, subparsers.choices)}")
    return parser, run


def add_plugin_commands(subparsers: Any, requested: str | None) -> Any:
    """Add the commands of plugins; only the requested one is imported.

    Raises PluginError if several plugins have the requested one, or if it cannot be imported.
    """
    from ostro.core.plugins.isolation import reason
    from ostro.core.plugins.manager import PluginManager
    from ostro.core.records import resolve

    plugins, run = PluginManager(), None
    plugins.load()
    if requested is not None:
        plugins.find("commands", requested)  # raises for a name in conflict
    for record in plugins.collect("commands").values():
        command = subparsers.add_parser(record.name, help=record.help, description=record.help)
        if record.name == requested:
            try:
                resolve(record.parser)(command)
                run = resolve(record.run)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                raise PluginError(
                    f"the command {record.name!r} failed to load: {reason(error)}; it is one of "
                    f"{plugins.origin('commands', record.name)}"
                ) from error
    return run


def console() -> Console:
    """The console for tables. Markup is disabled, because names of tensors may contain it.

    Without a terminal lines have at least 200 columns, so that names are not wrapped.
    """
    from rich.console import Console

    found = Console(markup=False, emoji=False, highlight=False)
    if not found.is_terminal:
        found.width = max(found.width, 200)
    return found
