"""`ostro keys new NAME`, `ostro keys check FILE`: API keys for `ostro serve --keys`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from ostro.core.errors import UsageError

FIELDS = (
    "requests_per_minute",
    "tokens_per_minute",
    "concurrent_requests",
    "priority",
    "expires",
)
"""The fields that `check` prints where a key has them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.description = (
        "new: create an API key, print it to stderr and its entry for a keys file to stdout. "
        "check: check a keys file and print its keys."
    )
    parser.add_argument("action", choices=("new", "check"), help="what to do")
    parser.add_argument("target", metavar="NAME|FILE", help="the name of the key, or a keys file")
    parser.add_argument(
        "--keys",
        type=Path,
        metavar="FILE",
        help="append the entry to FILE, which is created if it does not exist (default: print it)",
    )


def run(args: argparse.Namespace) -> int:
    """Create a key, or check a file."""
    if args.action == "new":
        return new(args.target, args.keys)
    if args.keys is not None:
        raise UsageError("--keys is an option of `ostro keys new`")
    return check(Path(args.target))


def new(name: str, file: Path | None) -> int:
    """Create a key. Nothing is written if the name is invalid or in use."""
    from ostro.entrypoints.operations.access.keys import new_key, parse_keys, sha256_of

    key = new_key()
    entry = f'[[keys]]\nname = "{name}"\nsha256 = "{sha256_of(key)}"\nscopes = ["infer"]\n'
    if '"' in name or "\\" in name or not name.isprintable():
        raise UsageError(f"the name {name!r:.80} has characters that a name may not have")
    parse_keys(entry)
    if file is None:
        print(entry, end="")
    else:
        append(file, entry)
    print(f"ostro: the API key of {name}, which is not stored anywhere: {key}", file=sys.stderr)
    return 0


def append(file: Path, entry: str) -> None:
    """Append an entry to a keys file. A new file has mode 600. Raises UsageError."""
    from ostro.entrypoints.operations.access.keys import parse_keys

    try:
        with open(os.open(file, os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="utf-8") as opened:
            text = opened.read()
            added = f"\n{entry}" if text else entry
            if text and not text.endswith("\n"):
                added = f"\n{added}"
            parse_keys(text + added)
            opened.write(added)
    except (OSError, UnicodeDecodeError, UsageError) as error:
        raise UsageError(f"--keys {file}: {error}") from None


def check(file: Path) -> int:
    """Print the keys of a file; those that have expired are marked."""
    from ostro.entrypoints.operations.access.keys import read_keys

    for key in read_keys(file):
        parts = [key.name, ",".join(sorted(key.scopes))]
        for field in ("models", "adapters"):
            if (names := getattr(key, field)) is not None:
                parts.append(f"{field}={','.join(sorted(names)) or 'none'}")
        parts += [f"{field}={value}" for field in FIELDS if (value := getattr(key, field))]
        print(*parts, *(["EXPIRED"] if key.expired(time.time()) else []))
    return 0
