"""`ostro rm REF`: delete models from the Hugging Face cache."""

from __future__ import annotations

import argparse
import sys

from ostro.core.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.description = (
        "Delete models from the Hugging Face cache: all revisions of org/name, or the one of "
        "org/name@revision. Asks before it deletes."
    )
    parser.add_argument("references", nargs="+", metavar="REF", help="org/name[@revision] or alias")
    parser.add_argument("-y", "--yes", action="store_true", help="delete without asking")


def run(args: argparse.Namespace) -> int:
    """Delete the models; the exit code is 1 if the user declines."""
    from ostro.entrypoints.cli import hub_cache

    info, chosen = hub_cache.scan(), set[str]()
    for reference in args.references:
        hub_cache.refuse_selector(reference)
        repo, revisions = hub_cache.find(info, reference)
        chosen.update(each.commit_hash for each in revisions)
        for each in revisions:
            names = ", ".join(sorted(file.file_name for file in each.files))
            print(f"{repo.repo_id}@{each.commit_hash[:8]}: {names}", file=sys.stderr)
    plan = info.delete_revisions(*chosen)
    freed = hub_cache.size(plan.expected_freed_size)
    if not args.yes and not confirm(f"delete {freed}?"):
        print("nothing was deleted", file=sys.stderr)
        return 1
    plan.execute()
    print(f"deleted {freed}", file=sys.stderr)
    return 0


def confirm(question: str) -> bool:
    """Ask on the terminal. Raises UsageError without one."""
    if not sys.stdin.isatty():
        raise UsageError(f"{question} There is no terminal to ask on; add --yes to delete")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
