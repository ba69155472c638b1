"""`ostro show REF`: show what a model at hand is, from its headers."""

from __future__ import annotations

import argparse
import json
from math import prod
from typing import Any

from ostro.entrypoints.cli.options import add_plugin_option


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.description = (
        "Show the architecture, size, formats and files of a model that is in the Hugging Face "
        "cache or in a folder. Nothing is downloaded. `ostro inspect` lists its tensors."
    )
    parser.add_argument("reference", metavar="REF", help="folder, file, org/name or alias")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_plugin_option(parser)


def run(args: argparse.Namespace) -> int:
    found = describe(args.reference, args.plugin)
    if args.json:
        print(json.dumps(found, indent=2))
        return 0
    from rich.table import Table

    from ostro.entrypoints.cli import console, hub_cache

    table = Table(show_header=False, box=None)
    for name, value in found.items():
        text = ", ".join(value) if isinstance(value, list) else str(value)
        text = hub_cache.size(value) if name == "bytes" else text
        text = f"{value:,}" if name in ("parameters", "context") and value else text
        table.add_row(name.replace("_", " "), text or "-")
    console().print(table)
    return 0


def describe(reference: str, plugins: list[str]) -> dict[str, Any]:
    """A model at hand as plain data. Raises ModelNotFound for a model that is not at hand."""
    from pathlib import Path

    from ostro.core.errors import ModelNotFound
    from ostro.entrypoints.cli import hub_cache, inspect

    try:
        header = inspect.describe(reference, offline=True, plugins=plugins)
    except ModelNotFound as error:
        raise ModelNotFound(f"{error}; `ostro list` lists the models at hand") from None
    alias = hub_cache.aliases().get(reference)
    found = {
        "model": alias.reference if alias else reference,
        "architecture": header["architecture"] or "no plugin supports it",
        "parameters": sum(prod(tensor["shape"]) for tensor in header["tensors"]),
        "context": context(header),
        "tensors": [f"{count} {kind}" for kind, count in header["types"].items()],
        "bytes": header["bytes"],
    }
    if alias:
        found["licence"] = alias.licence
    if not Path(reference).expanduser().exists() and "/" in hub_cache.parse(reference).id:
        repo, revisions = hub_cache.find(hub_cache.scan(), reference)
        found["revisions"] = sorted(each.commit_hash for each in revisions)
        found["last_used"] = repo.last_accessed_str
        found["path"] = str(repo.repo_path)
    return found


def context(header: dict[str, Any]) -> int | None:
    """The context length in a config.json or a GGUF header, None if neither states it."""
    config = header["config"] or {}
    config = config.get("text_config") or config
    found = config.get("max_position_embeddings")
    for key, value in header["metadata"].items():
        if found is None and key.endswith(".context_length"):
            found = value
    return found if isinstance(found, int) else None
