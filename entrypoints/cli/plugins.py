"""`ostro plugins`: list the plugins, their records and their errors."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

from ostro.entrypoints.cli.options import add_plugin_option

if TYPE_CHECKING:
    from ostro.core.plugins.manager import PluginInfo, PluginManager


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--hooks", action="store_true", help="list the plugins that implement each hook"
    )
    add_plugin_option(parser)


def run(args: argparse.Namespace) -> int:
    """Print the plugins. The exit code is 1 if one of them is broken or in conflict."""
    from ostro.core.plugins.manager import PluginManager

    manager = PluginManager()
    manager.load(paths=args.plugin)
    found = manager.describe()
    if args.json:
        print(
            json.dumps(
                by_hook(manager) if args.hooks else [asdict(each) for each in found], indent=2
            )
        )
    elif args.hooks:
        for hook, names in by_hook(manager).items():
            print(f"{hook}: {', '.join(names) or '-'}")
    elif sys.stdout.isatty():
        print_table(found)
    else:
        print_lines(found)
    return int(any(each.status in ("broken", "conflict") for each in found))


def by_hook(manager: PluginManager) -> dict[str, list[str]]:
    """The names of the plugins that implement each hook, in calling order."""
    from ostro.core.plugins.manager import HOOKS

    callers = {hook: getattr(manager.hook, hook) for hook in HOOKS}
    return {
        hook: [impl.plugin_name for impl in reversed(caller.get_hookimpls())]
        for hook, caller in callers.items()
    }


def offers(plugin: PluginInfo) -> str:
    """The records of a plugin in one line; its hooks if it declares no records."""
    kinds = [f"{kind}: {', '.join(names)}" for kind, names in plugin.offers.items()]
    parts = kinds or [", ".join(plugin.hooks)]
    return "; ".join([*parts, plugin.note] if plugin.note else parts)


def print_lines(found: Iterable[PluginInfo]) -> None:
    """Print one line for each plugin, separated by tabs, for other programs to parse."""
    for each in found:
        print("\t".join((each.name, each.status, each.source, each.reason or offers(each))))


def print_table(found: Iterable[PluginInfo]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {"active": "green", "disabled": "dim", "broken": "red", "conflict": "yellow"}
    table = Table("plugin", "status", "source", "records or error")
    for each in found:
        cells = (each.name, each.status, each.source, each.reason or offers(each))
        style = colours[each.status]
        table.add_row(*(Text(c, style if c == each.status else "") for c in cells))
    Console().print(table)
