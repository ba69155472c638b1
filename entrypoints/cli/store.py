"""`ostro store ls|purge FOLDER`: list and delete what servers have stored."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ostro.core.errors import UsageError
from ostro.entrypoints.cli.options import add_plugin_option
from ostro.entrypoints.cli.rm import confirm

if TYPE_CHECKING:
    from ostro.core.store import Document, DocumentStore, StoreUsage

PAGE = 500
"""Documents that are read at a time."""
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
FOREVER = "forever"


@dataclass(frozen=True)
class Selection:
    """The documents to list or delete; None selects all."""

    owner: str | None
    kind: str | None
    before: float | None = None

    def has(self, usage: StoreUsage) -> bool:
        """Whether documents of an owner and kind are selected. A kind includes its parts."""
        kind = usage.kind.partition("/")[0]
        return self.owner in (None, usage.owner) and self.kind in (None, usage.kind, kind)


def parse_duration(text: str) -> float | None:
    """Return the seconds of "30d", "12h", "5m" or "90s", None for "forever".

    Raises UsageError for another text.
    """
    if text == FOREVER:
        return None
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhd])", text)
    if found is None or not float(found[1]):
        raise UsageError(f"{text!r:.80} is not a duration; write 30d, 12h, 5m, 90s or {FOREVER}")
    return float(found[1]) * UNITS[found[2]]


def parse_bytes(text: str) -> int:
    """Return the bytes of "20GB" or "512MiB". Raises UsageError for another text."""
    from ostro.core.device import parse_size  # imports torch

    size = parse_size(text)
    if size <= 1:
        raise UsageError(f"{text!r:.80} is not a size; write 20GB or 512MiB")
    return int(size)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.description = (
        "List or delete what servers have stored: responses, conversations, files and batches. "
        "purge deletes expired documents; with --owner, --kind, --older-than or --all it deletes "
        "those selected. It also erases what deleted documents leave in the files."
    )
    add = parser.add_argument
    add("verb", choices=["ls", "purge"], help="the action: ls or purge")
    add("location", metavar="FOLDER", help="the value of --store of the server")
    add(
        "--owner", metavar="NAME", help='only those of this API key, "" without keys (default: all)'
    )
    add("--kind", metavar="KIND", help="only this kind, such as file (default: all)")
    add("--older-than", metavar="AGE", help="purge those older than 7d, 12h, 5m (default: expired)")
    add("--all", action="store_true", help="purge all documents")
    add("-y", "--yes", action="store_true", help="delete without asking")
    add("--json", action="store_true", help="print JSON")
    add_plugin_option(parser)


def run(args: argparse.Namespace) -> int:
    """List or delete documents; the exit code is 1 if the user declines."""
    from ostro.core.plugins.manager import PluginManager
    from ostro.core.records import resolve
    from ostro.entrypoints.operations.documents.state import find_store

    plugins = PluginManager()
    plugins.load(paths=args.plugin)
    if args.location in ("memory", "none"):
        raise UsageError(f"--store {args.location} exists in its server only")
    record = find_store(args.location, plugins)
    refuse_missing(record.name, args.location)
    store: DocumentStore = resolve(record.open)(args.location)
    try:
        return list_usage(store, args) if args.verb == "ls" else purge(store, args)
    finally:
        store.close()


def refuse_missing(name: str, location: str) -> None:
    """Raise UsageError for a folder without a store, which opening it would create."""
    if name == "sqlite" and not (Path(location).expanduser() / "state.db").exists():
        raise UsageError(f"{location} holds no store")


def list_usage(store: DocumentStore, args: argparse.Namespace) -> int:
    """Print the documents by owner and kind."""
    selection = Selection(args.owner, args.kind)
    found = [usage for usage in store.usage() if selection.has(usage)]
    if args.json:
        rows = [{**vars(usage), "oldest": date(usage.oldest)} for usage in found]
        print(json.dumps(rows, indent=2))
        return 0
    for usage in found:
        owner = usage.owner or "(no key)"
        size = f"{usage.documents}\t{usage.nbytes}"
        print(f"{owner}\t{usage.kind}\t{size}\t{date(usage.oldest)}")
    if not found:
        print("nothing is stored", file=sys.stderr)
    return 0


def purge(store: DocumentStore, args: argparse.Namespace) -> int:
    """Delete the selected documents, or the expired ones if none are selected."""
    filters = (args.owner, args.kind, args.older_than)
    if args.all and filters != (None, None, None):
        raise UsageError("--all selects everything; remove it, or the other options")
    count = store.expire()
    if args.all or filters != (None, None, None):
        age = None if args.older_than is None else parse_duration(args.older_than)
        before = None if age is None else time.time() - age
        chosen = list(select(store, Selection(args.owner, args.kind, before)))
        if chosen and not args.yes and not confirm(f"delete {len(chosen)} documents?"):
            print("nothing was deleted", file=sys.stderr)
            return 1
        count += sum(store.delete(each.owner, each.kind, each.id) for each in chosen)
    store.compact()
    print(f"deleted {count} documents", file=sys.stderr)
    return 0


def select(store: DocumentStore, selection: Selection) -> Iterator[Document]:
    """Yield the selected documents."""
    for usage in store.usage():
        after: str | None = None
        while selection.has(usage):
            page: Sequence[Document] = store.list(usage.owner, usage.kind, after=after, limit=PAGE)
            if not page:
                break
            yield from (e for e in page if selection.before is None or e.created < selection.before)
            after = page[-1].id


def date(seconds: float) -> str:
    """Return a time as ISO 8601 in the local zone."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")
