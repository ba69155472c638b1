"""`ostro inspect REF`: show a checkpoint's config and tensors; no weights are read."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from typing import Any

from ostro.core.settings import STARTER
from ostro.entrypoints.cli.options import add_plugin_option, add_reference


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_reference(parser)
    parser.add_argument(
        "-m",
        "--model",
        metavar="REF",
        help="folder, file or org/name on the hub (default: the starter model)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--offline", action="store_true", help="use cached files only, never contact the hub"
    )
    add_plugin_option(parser)


def run(args: argparse.Namespace) -> int:
    found = describe(args.model or STARTER, offline=args.offline, plugins=args.plugin)
    if args.json:
        print(json.dumps(found, indent=2, default=str))
        return 0
    from rich.table import Table

    from ostro.entrypoints.cli import console

    out = console()
    out.print(f"{found['path']}: {found['architecture'] or 'no plugin supports it'}")
    out.print_json(json.dumps(found["config"] or found["metadata"], default=str))
    table = Table("tensor", "shape", "type", "bytes")
    for tensor in found["tensors"]:
        shape = " x ".join(map(str, tensor["shape"]))
        table.add_row(tensor["name"], shape, tensor["type"], f"{tensor['bytes']:,}")
    out.print(table)
    kinds = ", ".join(f"{n} {kind}" for kind, n in found["types"].items())
    out.print(f"{len(found['tensors'])} tensors ({kinds}), {found['bytes']:,} bytes")
    return 0


def describe(reference: str, *, offline: bool, plugins: list[str]) -> dict[str, Any]:
    """The config, metadata and tensors of a checkpoint, as plain data.

    `plugins` are paths of plugins to load. Raises ModelNotFound.
    """
    from ostro.core.errors import UnsupportedArchitecture
    from ostro.core.load.open import architecture_of, find, open_container, title_of
    from ostro.core.plugins.manager import PluginManager
    from ostro.core.settings import Settings

    settings, manager = Settings(reference=reference, offline=offline), PluginManager()
    manager.load(settings, plugins)
    container = open_container(find(settings, manager), manager)
    config = container.config()
    try:
        architecture = architecture_of(container, config, settings, manager).name
    except UnsupportedArchitecture:
        architecture = None
    tensors = list(container.tensors.values())
    return {
        "path": title_of(settings, container.path),
        "architecture": architecture,
        "config": config,
        "metadata": {k: short(v) for k, v in container.metadata.items()},
        "tensors": [
            {"name": t.name, "shape": list(t.shape), "type": t.format, "bytes": t.nbytes}
            for t in tensors
        ],
        "types": dict(Counter(t.format for t in tensors)),
        "bytes": sum(t.nbytes for t in tensors),
    }


def short(value: Any) -> Any:
    """A metadata value, long strings and lists cut to their first elements."""
    if isinstance(value, str) and len(value) > 200:
        return f"{value[:200]}... ({len(value)} characters)"
    if not isinstance(value, str) and hasattr(value, "__len__") and len(value) > 8:
        return f"[{', '.join(map(str, list(value[:4])))}, ...] ({len(value)} items)"
    return value
