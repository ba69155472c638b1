"""`ostro list`: list the models in the Hugging Face cache, or the aliases."""

from __future__ import annotations

import argparse
import json
import sys

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
    from rich.table import Table

    from ostro.entrypoints.cli import console

    table = Table("model", "alias", "formats", "size", "last used")
    for repo in found:
        row = hub_cache.describe(repo)
        names, kinds = (", ".join(row[key]) for key in ("aliases", "formats"))
        size = hub_cache.size(repo.size_on_disk)
        table.add_row(repo.repo_id, names, kinds, size, repo.last_accessed_str)
    out = console()
    out.print(table)
    total = hub_cache.size(sum(repo.size_on_disk for repo in found))
    out.print(f"{len(found)} in the cache, {total}. `ostro pull REF` downloads a model.")
    return 0


def show_aliases(as_json: bool) -> None:
    """Print the aliases with their references, licences and hashes."""
    from ostro.entrypoints.cli import hub_cache

    found = hub_cache.aliases()
    if as_json:
        rows = {name: {key: getattr(row, key) for key in ALIAS} for name, row in found.items()}
        print(json.dumps(rows, indent=2))
        return
    from rich.table import Table

    from ostro.entrypoints.cli import console

    table = Table("alias", "model", "about", "licence", "file pinned")
    for name, row in found.items():
        pinned = "yes" if row.sha256 else "no"
        table.add_row(name, row.reference, row.about, row.licence, pinned)
    console().print(table)
