"""`ostro quality`: measure the quality loss of quantization against the float model."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ostro.core.errors import UsageError
from ostro.core.settings import Settings
from ostro.entrypoints.cli.options import add_model_options, add_reference, parse_settings

if TYPE_CHECKING:
    from ostro.core.plugins.manager import PluginManager
    from ostro.entrypoints.quality.figures import Estimate, Quality, QualityReport

EVERY = "all"
"""The value of --quant that selects every format of the installed quantizers."""

QUICK = 512
"""Tokens of --quick."""

WORST = 5
"""Number of weights with the largest errors to print; JSON contains all."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Compare the next-token distributions of a quantized model and of its float reference over "
        "a text. --quant accepts several formats (q8_0,q4k), or all. Without --quant and "
        "--topology, -m is compared with --reference."
    )
    add_reference(parser)
    add_model_options(parser)
    add = parser.add_argument_group("quality").add_argument
    add("--reference", metavar="REF", help="model to compare with (default: -m as stored)")
    add("--text", metavar="FILE", help="text to evaluate (default: a text that is part of ostro)")
    add(
        "--tokens",
        type=int,
        metavar="N",
        help="number of tokens of the text to evaluate (default: all)",
    )
    add("--quick", action="store_true", help=f"evaluate {QUICK} tokens: a rough estimate")
    add(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="write JSON to FILE, or without FILE to standard output (default: a table)",
    )
    add(
        "--plot",
        type=Path,
        metavar="FILE.svg",
        help="plot KL divergence over bits per weight (default: no plot)",
    )


def run(args: argparse.Namespace) -> int:
    check(args)
    from ostro.core.plugins.manager import PluginManager
    from ostro.entrypoints.cli.stages import stages
    from ostro.entrypoints.quality.measure import measure
    from ostro.entrypoints.quality.plot import check_plot, write_plot
    from ostro.entrypoints.quality.text import read_text

    if args.plot is not None:
        check_plot(args.plot)
    settings = parse_settings(args)
    plugins = PluginManager()
    plugins.load(settings, args.plugin)
    reference = reference_of(settings, args.reference)
    if settings == reference and args.reference is None:
        raise UsageError(
            "nothing to compare: add formats (--quant q8_0,q4k or all), --topology or --reference"
        )
    variants = variants_of(settings, plugins)
    text = read_text(args.text, reference.reference)
    tokens = QUICK if args.quick else args.tokens
    with stages() as progress:
        report = measure(reference, variants, text, plugins, tokens=tokens, progress=progress)
    if args.plot is not None:
        write_plot(report, args.plot)
    written = json.dumps(report.plain(), indent=2)
    if args.json == "-":
        print(written)
    else:
        if args.json is not None:
            Path(args.json).write_text(written + "\n", "utf-8")
        show(report)
    return 130 if report.interrupted else 0


def check(args: argparse.Namespace) -> None:
    """Raise UsageError for options that would only fail after the measurement."""
    if args.tokens is not None and args.tokens < 2:
        raise UsageError(f"--tokens {args.tokens}: expected at least 2")
    if args.tokens is not None and args.quick:
        raise UsageError(f"--quick evaluates {QUICK} tokens; remove it, or --tokens {args.tokens}")
    for option in ("json", "plot"):
        file = getattr(args, option)
        if file is not None and not Path(file).parent.is_dir():
            raise UsageError(f"--{option} {file}: the folder does not exist")


def reference_of(settings: Settings, other: str | None) -> Settings:
    """Settings of the reference: the same model, or another one, in its stored formats."""
    usual = Settings()
    plain = replace(
        settings,
        quant=None,
        topology=None,
        importance=None,
        kv_dtype=usual.kv_dtype,
        exact=usual.exact,
    )
    if other is None:
        return plain
    return replace(plain, reference=other, name=None, arch=None, revision=None)


def variants_of(settings: Settings, plugins: PluginManager) -> dict[str, Settings]:
    """Settings of the models to compare, by name: -m in each format of --quant.

    Raises UsageError for a value that names neither a format nor a budget.
    """
    from ostro.core.load.quantize import find, makers
    from ostro.entrypoints.open import name_of

    if settings.quant is None:
        return {name_of(settings): settings}
    formats = [word.strip() for word in settings.quant.split(",")]
    known, planners = makers(plugins), plugins.collect("planners").values()
    if formats == [EVERY]:
        formats = sorted(known, key=lambda name: (-known[name].format.bits, name))
    for name in formats:
        if not any(planner.claims(name) for planner in planners):
            find(name, known, others=(planner.usage for planner in planners))
    return {name: replace(settings, quant=name) for name in formats}


def show(report: QualityReport) -> None:
    """Print a row for each variant, and the weights with the largest errors."""
    from rich.table import Table

    from ostro.entrypoints.cli import console

    out = console()
    out.print(
        f"{report.positions} positions of {report.text}, windows of {report.window}; "
        f"computed in {report.dtype}"
    )
    if report.limit is not None:
        out.print(f"The text was cut to {report.limit} tokens; more tokens narrow the intervals.")
    if report.interrupted:
        out.print("Interrupted: the table shows what was measured before.")
    columns = ("MB", "bits", "KL", "KL p99", "same top, %", "PPL", "PPL ratio")
    table = Table("", *columns, title=f"{report.model} (95 % intervals)")
    first = report.weights
    size = f"{first.nbytes / 1e6:.1f}", f"{first.bits:.2f}"
    table.add_row(report.reference, *size, "", "", "", spread(report.perplexity, ".3f"), "")
    for variant in report.variants:
        table.add_row(*cells(variant))
    out.print(table)
    worst = Table("", "weight", "format", "error", title="Weights with the largest errors")
    for variant in report.variants:
        for i, layer in enumerate(variant.layers[:WORST]):
            name = "" if i else variant.name
            worst.add_row(name, layer.name, layer.format, f"{100 * layer.error:.2f} %")
    out.print(worst)


def cells(variant: Quality) -> tuple[str, ...]:
    """A row of the table."""
    return (
        f"{variant.name}, {variant.positions} positions" if variant.interrupted else variant.name,
        f"{variant.weights.nbytes / 1e6:.1f}",
        f"{variant.weights.bits:.2f}",
        spread(variant.kl, ".3g"),
        f"{variant.kl_p99:.3g}",
        spread(variant.top1, ".2f", 100),
        spread(variant.perplexity, ".3f"),
        spread(variant.ratio, ".4f"),
    )


def spread(estimate: Estimate, form: str, times: int = 1) -> str:
    """An estimate and half its confidence interval: short, so that a row fits in 80 columns."""
    value, low, high = (times * x for x in (estimate.value, estimate.low, estimate.high))
    return f"{value:{form}} ± {(high - low) / 2:.1g}"
