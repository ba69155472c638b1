"""`ostro fit`: list which formats and context lengths of a model fit in memory."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from ostro.core.errors import UsageError
from ostro.entrypoints.cli.options import add_model_options, add_reference, parse_settings

if TYPE_CHECKING:
    from ostro.core.plugins.manager import PluginManager
    from ostro.core.settings import Settings
    from ostro.entrypoints.fit.report import Fit, FitReport


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Estimate for each format of a model the weight size, the context lengths and batch sizes "
        "that fit in memory, and the decode speed. Only headers are read, and of quantized weights "
        "one tensor of each format."
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_reference(parser)
    add_model_options(parser)


def run(args: argparse.Namespace) -> int:
    from ostro.core.load.open import find
    from ostro.core.plugins.manager import PluginManager
    from ostro.entrypoints.cli.stages import stages
    from ostro.entrypoints.fit.report import report

    settings = parse_settings(args)
    plugins = PluginManager()
    plugins.load(settings, args.plugin)
    check(settings, plugins)
    path = find(settings, plugins)
    with stages() as progress:
        found = report(path, settings, plugins, progress)
    if args.json:
        print(json.dumps(found.plain(), indent=2))
    else:
        show(found)
    return 0


def check(settings: Settings, plugins: PluginManager) -> None:
    """Raise UsageError for options that an estimate does not support."""
    if settings.placement is not None:
        raise UsageError("--placement, --offload: fit estimates for one device; remove the option")
    quant = settings.quant
    if quant and plugins.claimant("planners", lambda p: p.claims(quant), f"--quant {quant}"):
        raise UsageError(
            f"--quant {quant} names no format; remove it to list the size of every format"
        )


def show(found: FitReport) -> None:
    from rich.table import Table

    from ostro.core.device import format_bytes
    from ostro.entrypoints.cli import console

    out = console()
    out.print(f"{found.model}: {found.architecture}, {found.dtype}, {found.device}")
    out.print(f"{format_bytes(found.free)} free, bandwidth {found.bandwidth / 1e9:.1f} GB/s")
    if found.draft_nbytes:
        out.print(
            f"--speculate takes {format_bytes(found.draft_nbytes)} for weights; sizes of KV caches "
            "include that of a draft model"
        )
    columns = ("weights", "bits/weight", "context", "sequences", "read per token", "max tokens/s")
    table = Table("format", *columns)
    for each in found.fits:
        table.add_row(*cells(each))
    out.print(table)
    if any(each.weights.fallbacks for each in found.fits):
        out.print(
            "* The rows of some weights are not a multiple of the format's block; these weights "
            "get another format."
        )
    if any(each.speed for each in found.fits):
        out.print(
            "max tokens/s: memory bandwidth / bytes read per token, an estimate of the most that "
            "one sequence gets; `ostro bench REF` measures."
        )
    for growth in found.growths:
        fixed = f", and {format_bytes(growth.fixed)} per sequence" if growth.fixed else ""
        out.print(f"KV cache {growth.name}: {format_bytes(growth.per_1000)} per 1000 tokens{fixed}")
    if not found.contexts:
        return
    streams = sorted({n for row in found.contexts.values() for n in row})
    title = f"KV cache in {found.kv_dtype} by context and sequences, with {found.example}"
    table = Table("context", *map(str, streams), title=title)
    for context, row in found.contexts.items():
        table.add_row(str(context), *(format_bytes(row[n]) if n in row else "-" for n in streams))
    out.print(table)
    out.print("`ostro quality REF --quant FORMAT --quick` estimates what a format loses.")


def cells(each: Fit) -> tuple[str, ...]:
    """A row of the table of formats."""
    from ostro.core.device import format_bytes

    weights = each.weights
    name = f"{weights.name} *" if weights.fallbacks else weights.name
    size = name, format_bytes(weights.nbytes), f"{weights.bits:.2f}"
    if not each.room:
        return (*size, "does not fit")
    if each.speed is None:
        return (*size, "fits")
    if not each.streams:
        return (*size, "no memory for a sequence")
    rest = str(each.context), str(each.streams), format_bytes(weights.read), f"{each.speed:.1f}"
    return (*size, *rest)
