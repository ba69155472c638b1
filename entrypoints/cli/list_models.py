"""`ostro list`: list the models in the Hugging Face cache, or the aliases."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

ALIAS = ("reference", "licence", "about", "sha256")
"""Fields of an alias in JSON."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--aliases", action="store_true", help="list the aliases of hub models")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    from ostro.entrypoints.cli import hub_cache

    if args.aliases:
        show_aliases(args.json)
        return 0
    info = hub_cache.scan()
    found = hub_cache.models(info)
    for warning in info.warnings:
        print(f"ostro: the cache holds a damaged model: {warning}", file=sys.stderr)
    if args.json:
        print(json.dumps([hub_cache.describe(repo) for repo in found], indent=2))
        return 0
    rows = []
    for repo in found:
        row = hub_cache.describe(repo)
        names, kinds = (", ".join(row[key]) for key in ("aliases", "formats"))
        size = hub_cache.size(repo.size_on_disk)
        rows.append((repo.repo_id, names, kinds, size, repo.last_accessed_str))
    print_rows(("model", "alias", "formats", "size", "last used"), rows)
    total = hub_cache.size(sum(repo.size_on_disk for repo in found))
    summary = f"{len(found)} in the cache, {total}. `ostro pull REF` downloads a model."
    print(summary, file=sys.stdout if sys.stdout.isatty() else sys.stderr)
    return 0


def show_aliases(as_json: bool) -> None:
    """Print the aliases with their references, licences and hashes."""
    from ostro.entrypoints.cli import hub_cache

    found = hub_cache.aliases()
    if as_json:
        rows = {name: {key: getattr(row, key) for key in ALIAS} for name, row in found.items()}
        print(json.dumps(rows, indent=2))
        return
    aliases = [
        (name, row.reference, row.about, row.licence, "yes" if row.sha256 else "no")
        for name, row in found.items()
    ]
    print_rows(("alias", "model", "about", "licence", "file pinned"), aliases)


def print_rows(names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns as a table on a terminal, and separated by tabs into a pipe or file.

    On a terminal that is too narrow for the table each row is a list of lines "name: value".
    """
    from rich.measure import Measurement
    from rich.table import Table

    from ostro.entrypoints.cli import console

    if not sys.stdout.isatty():
        print("\n".join("\t".join(row) for row in (names, *rows)))
        return
    table = Table(*names)
    for row in rows:
        table.add_row(*row)
    out = console()
    if Measurement.get(out, out.options.update(max_width=sys.maxsize), table).minimum <= out.width:
        out.print(table)
        return
    for first, *others in rows:
        values = (f"  {name}: {x}" for name, x in zip(names[1:], others, strict=True) if x)
        print("\n".join([first, *values]))
