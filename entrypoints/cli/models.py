"""`ostro models`: list the supported architectures and formats, or search the catalogue.

With `--explain REF`: load a model and list the formats and kernels of its layers, and its sampling
defaults.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostro.core.errors import UsageError
from ostro.core.settings import STARTER, Settings
from ostro.entrypoints.cli.options import add_model_options, parse_settings

if TYPE_CHECKING:
    from ostro.core.load.model import LoadedModel
    from ostro.core.load.planning import PlannedFormats
    from ostro.core.pipeline import SamplingDefaults
    from ostro.core.plugins.manager import PluginManager


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "List the supported architectures and formats. With PATTERN, list the classes whose name, "
        "model_type or GGUF name contains it, also those of the transformers backend. With "
        "--explain REF, load that model and list the format, size and kernel of each layer, "
        "and the sampling defaults with their sources."
    )
    parser.add_argument(
        "reference", nargs="?", metavar="PATTERN", help="classes to list, or the model to explain"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--into", metavar="FILE", help="write the catalogue to this file (default: print a table)"
    )
    add_model_options(parser)


def run(args: argparse.Namespace) -> int:
    from ostro.core.plugins.manager import PluginManager

    check(args)
    plugins = PluginManager()
    if args.explain:
        return explain(args, plugins)
    plugins.load(None, args.plugin)
    if args.into:
        from ostro.entrypoints.cli.catalogue import catalogue, page

        Path(args.into).write_text(page(catalogue(plugins)), "utf-8")
    elif args.reference:
        show(found_models(plugins, args.reference), args.json, show_models)
    else:
        show(inventory(plugins, models=args.json), args.json, show_inventory)
    return 0


def explain(args: argparse.Namespace, plugins: PluginManager) -> int:
    """Load a model and show its layers; after Ctrl-C, the formats that a search chose so far."""
    from ostro.core.engine.startup.start import open_weights
    from ostro.core.load.planning import PlanInterrupted
    from ostro.entrypoints.cli.stages import stages
    from ostro.entrypoints.sampling_defaults import sampling_defaults

    settings = parse_settings(args)
    plugins.load(settings, args.plugin)
    try:
        with stages() as progress:
            loaded = open_weights(settings, plugins, progress)
    except PlanInterrupted as stop:
        show(planned_formats(stop.planned), args.json, show_planned)
        return 130
    sampling = None
    if "text" in loaded.architecture.tasks:
        sampling = sampling_defaults(loaded.container, settings.generation_config)
    show(explained(loaded, settings, sampling), args.json, show_layers)
    return 0


def show(found: Any, as_json: bool, table: Callable[[Any], None]) -> None:
    """Print data as JSON, or as a table."""
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        table(found)


def check(args: argparse.Namespace) -> None:
    """Raise UsageError for two models, for a model or its options without --explain, and for --into
    with others.
    """
    if args.reference and args.model:
        raise UsageError(f"expected one model, got {args.reference} and -m {args.model}")
    if args.model and not args.explain:
        raise UsageError(f"{args.model}: add --explain to load and explain it")
    if not args.explain and parse_settings(args) != Settings(reference=STARTER):
        raise UsageError("options of a model apply with --explain REF only; add it")
    if args.into and (args.reference or args.explain or args.json):
        raise UsageError("--into writes the whole catalogue; remove PATTERN, --explain and --json")
    if args.explain:
        args.model = args.reference or args.model


def explained(
    loaded: LoadedModel, settings: Settings, sampling: SamplingDefaults | None
) -> dict[str, Any]:
    """The layers of a loaded model with their formats and kernels, as plain data.

    `sampling` are its defaults, None if it generates no text.
    """
    from ostro.core.load.open import title_of

    kernels = {layer.kernel for layer in loaded.layers}
    notes = [line for line in loaded.explain if line.partition(": ")[2] not in kernels]
    return {
        "model": title_of(settings, loaded.path),
        "architecture": loaded.architecture.name,
        "device": str(loaded.device),
        "dtype": str(loaded.dtype).removeprefix("torch."),
        "bytes": loaded.nbytes,
        "layers": [
            {
                "path": layer.path,
                "formats": list(layer.formats),
                "bytes": layer.nbytes,
                "kernel": layer.kernel,
            }
            for layer in loaded.layers
        ],
        "notes": notes if sampling is None else [*notes, f"sampling: {sampling}"],
    }


def planned_formats(planned: PlannedFormats) -> dict[str, Any]:
    """The formats of an interrupted search by layer, as plain data."""
    formats: dict[str, list[str]] = {}
    for weight, name in planned.formats.items():
        formats.setdefault(weight.path, []).append(name)
    return {
        "interrupted": True,
        "layers": [{"path": path, "formats": names} for path, names in formats.items()],
        "notes": [planned.outcome],
    }


def show_planned(found: dict[str, Any]) -> None:
    """Print the formats of an interrupted search."""
    from rich.table import Table

    from ostro.entrypoints.cli import console

    out = console()
    table = Table("layer", "formats", title="Interrupted: formats chosen by what was measured")
    for layer in found["layers"]:
        table.add_row(layer["path"], ", ".join(dict.fromkeys(layer["formats"])))
    out.print(table)
    for line in found["notes"]:
        out.print(line)


def show_layers(found: dict[str, Any]) -> None:
    """Print a row for each layer, with kernels as numbers that are listed below."""
    from rich.table import Table

    from ostro.entrypoints.cli import console

    out = console()
    about = (found[key] for key in ("architecture", "dtype", "device"))
    out.print(f"{found['model']}: {', '.join(about)}")
    table = Table("layer", "formats", "bytes", "kernel")
    kernels = list(dict.fromkeys(layer["kernel"] for layer in found["layers"]))
    for layer in found["layers"]:
        formats, number = ", ".join(layer["formats"]), kernels.index(layer["kernel"]) + 1
        table.add_row(layer["path"], formats, f"{layer['bytes']:,}", f"({number})")
    out.print(table)
    for number, kernel in enumerate(kernels, 1):
        out.print(f"({number}) {kernel}")
    for line in found["notes"]:
        out.print(line)
    out.print(f"{found['bytes']:,} bytes of weights")


def show_inventory(found: dict[str, Any]) -> None:
    from rich.table import Table

    from ostro.core.load.transformers_backend import BODY
    from ostro.entrypoints.cli import console

    out = console()
    table = Table("architecture", "tasks", "classes", "GGUF", "body", title="Architectures")
    for row in found["architectures"]:
        lists = (", ".join(row[key]) for key in ("tasks", "classes", "gguf"))
        table.add_row(row["name"], *lists, row["body"])
    out.print(table)
    if any(row["name"] == BODY for row in found["architectures"]):
        out.print(
            f"body {BODY}: causal language models of the installed transformers library that no "
            "plugin implements; slower than a plugin"
        )
    out.print(f"weight formats: {', '.join(found['formats'])}")
    out.print(f"checkpoints: {', '.join(found['checkpoints'])}")


def found_models(plugins: Any, pattern: str) -> list[dict[str, Any]]:
    """The rows of the catalogue that match a pattern, as plain data."""
    from ostro.entrypoints.cli.catalogue import catalogue, search

    return [row.plain() for row in search(catalogue(plugins), pattern)]


def show_models(found: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from ostro.entrypoints.cli import console

    out = console()
    table = Table("class", "model_type", "modality", "GGUF", "tasks", "backend", "since")
    for row in found:
        lists = (", ".join(row[key]) for key in ("modality", "gguf", "tasks"))
        name = row["class"] or f"({row['architecture']})"
        table.add_row(name, row["model_type"], *lists, row["backend"], row["since"])
    out.print(table)
    for row in found:
        if row["why"]:
            out.print(f"{row['class']}: {row['why']}")


def inventory(plugins: Any, *, models: bool = False) -> dict[str, Any]:
    """The architectures, formats and checkpoints of all plugins, from their records.

    With `models` also the rows of the catalogue.
    """
    from ostro.core.load.transformers_backend import BODY, is_body

    rows: dict[str, Any] = {}
    if models:
        from ostro.entrypoints.cli.catalogue import catalogue

        rows = {"models": [row.plain() for row in catalogue(plugins)]}
    return rows | {
        "architectures": [
            {
                "name": record.name,
                "tasks": list(record.tasks),
                "classes": list(record.classes),
                "gguf": list(record.gguf),
                "body": BODY if record.name == BODY or is_body(record) else "ostro",
            }
            for record in plugins.collect("architectures").values()
        ],
        "formats": sorted(plugins.collect("quantizers")),
        "checkpoints": sorted(plugins.collect("checkpoints")),
    }
