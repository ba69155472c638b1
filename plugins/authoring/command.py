"""`ostro plugin new`, `check`, `blocks` and `api`."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from ostro.errors import UsageError

HELP = {
    "new": "write a project with a plugin in it: it builds a wheel and passes its test",
    "check": "list the faults of a plugin, without importing it",
    "blocks": "list the building blocks of model files and their users",
    "api": "list the public names, with signatures and versions",
}


def declare(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, help="action")
    new, check, blocks, api = (verbs.add_parser(v, help=h, description=h) for v, h in HELP.items())
    new.add_argument("name", metavar="NAME", help="of the architecture or weight format")
    new.add_argument(
        "--kind",
        choices=("architecture", "quantizer"),
        default="architecture",
        help="what the plugin adds (default: architecture)",
    )
    new.add_argument(
        "--from",
        dest="reference",
        metavar="REF",
        help="transformers:CLASS, or a folder with config.json and modeling_*.py; it is read, "
        "never run (default: a working example)",
    )
    new.add_argument("-o", "--out", metavar="DIR", help="where to (default: ./ostro-arch-NAME)")
    check.add_argument("path", metavar="PATH", help="a wheel, a project, or a plugin's folder")
    check.add_argument("--json", action="store_true", help="print JSON")
    blocks.add_argument(
        "--into",
        metavar="FILE",
        help="put them between the marks of this page (default: print them)",
    )
    api.add_argument(
        "--into", metavar="FILE", help="write the page to this file (default: print it)"
    )


def run(args: argparse.Namespace) -> int:
    verbs = {"new": new, "check": check, "blocks": blocks, "api": api}
    try:
        return verbs[args.verb](args)
    except RecursionError:
        raise UsageError("a source is nested too deeply to be read; is it really one?") from None


def new(args: argparse.Namespace) -> int:
    """Write a project and print its files."""
    from ostro.plugins.authoring.project import Project

    if args.reference is not None and args.kind != "architecture":
        raise UsageError(f"--from writes an architecture, not a {args.kind}; leave --kind out")
    project = Project.named(args.name, args.kind, args.out)
    if args.reference is None:
        files, todo = project.files(), 0
    else:
        from ostro.plugins.authoring.proposal import propose
        from ostro.plugins.authoring.reference import find

        files = propose(project, find(args.reference))
        todo = sum(text.count("# TODO") for text in files.values())
    for file, size in project.write(files):
        print(f"{size:6} {file}")
    if args.reference is not None and (owner := claimant(args.reference)):
        print(f"the plugin {owner} claims that class already: set replaces=True on one of the two")
    if todo:
        print(f"{todo} places are marked TODO, with the lines of the reference that decide them")
    print(f"next: cd {project.folder} && pip install -e . && pytest")
    return 0


def claimant(reference: str) -> str | None:
    """The name of the architecture that claims a transformers class, or None."""
    from ostro.core.plugins.manager import PluginManager

    plugins, cls = PluginManager(), reference.rpartition(":")[2]
    plugins.load()
    found = plugins.collect("architectures").values()
    return next((record.name for record in found if cls in record.classes), None)


def check(args: argparse.Namespace) -> int:
    """Print the findings on a plugin; exit code 1 if one is an error."""
    from ostro.plugins.authoring.lint import check as lint
    from ostro.plugins.authoring.package import Package

    package = Package.read(Path(args.path))
    found = sorted(lint(package), key=lambda finding: finding.level)
    if args.json:
        print(json.dumps([asdict(finding) for finding in found], indent=2))
    else:
        for finding in found:
            print(finding)
        errors = sum(finding.level == "error" for finding in found)
        print(f"{package.title}: {errors} errors, {len(found) - errors} warnings")
    return int(any(finding.level == "error" for finding in found))


def blocks(args: argparse.Namespace) -> int:
    """Print the table of blocks, or insert it into a page."""
    from ostro.plugins.authoring.blocks import insert, table

    if args.into is None:
        sys.stdout.write(table())
        return 0
    page = Path(args.into)
    page.write_text(insert(page.read_text("utf-8"), table()), "utf-8")
    return 0


def api(args: argparse.Namespace) -> int:
    """Print the page of the public API, or write it to a file, keeping the file's versions."""
    from ostro.plugins.authoring.api import page

    if args.into is None:
        sys.stdout.write(page())
        return 0
    target = Path(args.into)
    target.write_text(page(target.read_text("utf-8") if target.exists() else ""), "utf-8")
    return 0
