"""`ostro quantize`: write a model in another file format, quantized or in floats."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ostro.core.errors import UsageError
from ostro.entrypoints.cli.options import add_model_options, add_reference, parse_settings

if TYPE_CHECKING:
    from ostro.core.load.describe import ModelOutline
    from ostro.core.plugins.manager import PluginManager
    from ostro.core.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_reference(parser)
    add_model_options(parser)
    add = parser.add_argument_group("output").add_argument
    add("--to", required=True, metavar="CONTAINER", help="file format to write: gguf or uqff")
    add("-o", "--output", required=True, metavar="DIR", help="folder to write")
    add(
        "--allow-requantize",
        action="store_true",
        help="quantize weights again that are quantized already, which adds to their error",
    )


def run(args: argparse.Namespace) -> int:
    from ostro.core.load.multi_token import HEADS
    from ostro.core.plugins.manager import PluginManager

    settings, plugins = parse_settings(args), PluginManager()
    if settings.speculate not in (None, HEADS):
        raise UsageError(
            f"--speculate {settings.speculate}: expected {HEADS}, which writes the multi-token "
            "head of the checkpoint; quantize a draft model or an assistant on its own"
        )
    plugins.load(settings, args.plugin)
    names = (settings.quant or "").split(",")
    for name in names:
        folder = Path(args.output)
        written = write(
            replace(settings, quant=name.strip() or None),
            plugins,
            args.to,
            folder / name.strip() if len(names) > 1 else folder,
            allow_requantize=args.allow_requantize,
        )
        print(written)
    return 0


def write(
    settings: Settings,
    plugins: PluginManager,
    container: str,
    folder: Path,
    *,
    allow_requantize: bool = False,
) -> Path:
    """Write a model into a folder; returns the path of the written file or folder.

    Raises UsageError if no plugin writes the container, and for weights that are quantized already
    unless `allow_requantize`; PluginError if several plugins have the container.
    """
    from ostro.core.load.saving import Saving
    from ostro.core.records import resolve
    from ostro.entrypoints.requantization import DequantizedContainer

    record = plugins.find("checkpoints", container)
    if record is None or record.write is None:
        records = plugins.collect("checkpoints").values()
        known = ", ".join(each.name for each in records if each.write is not None)
        raise UsageError(f"--to {container}: unknown file format; expected one of {known}")
    found = plan(settings, plugins, allow_requantize)
    dtype = None if settings.dtype == "auto" else found.dtype
    name, source = name_of(found, settings), found.container
    formats = source.formats if isinstance(source, DequantizedContainer) else {}
    saving = Saving(found, folder, name, plugins, dtype, formats=formats)
    progress = WriteProgress()
    path: Path = resolve(record.write)(saving, progress)
    progress.finish()
    outcome = [saving.plan.outcome] if saving.plan.outcome else []
    for line in [*outcome, *saving.report] if saving.report else saving.plan.describe():
        print(line, file=sys.stderr)
    return path


def plan(settings: Settings, plugins: PluginManager, allow_requantize: bool) -> ModelOutline:
    """The outline of the model, with the format of every weight."""
    from ostro.core.engine.startup.calibration import open_probe
    from ostro.core.load.describe import outline
    from ostro.core.load.open import find
    from ostro.core.load.planning import choose_formats
    from ostro.entrypoints.cli.stages import stages
    from ostro.entrypoints.requantization import dequantized, quantized_formats

    path = find(settings, plugins)
    found = outline(path, settings, plugins)
    if found.plan is not None and (formats := quantized_formats(found)):
        if not allow_requantize:
            listed = ", ".join(f"{count} of {name}" for name, count in formats.items())
            raise UsageError(
                f"{path.name} is quantized already (tensors: {listed}), and quantizing it again "
                "adds to the error; use its float model, or add --allow-requantize"
            )
        found = dequantized(found, plugins)
    with stages() as progress:
        return choose_formats(found, path, settings, plugins, open_probe, progress)


def name_of(found: ModelOutline, settings: Settings) -> str:
    """The name of the quantization, for file names; "" without one."""
    if found.plan is None:
        return ""
    default = found.plan.default
    return default.format.name if default else settings.quant or "mixed"


class WriteProgress:
    """Prints the progress of writing a model."""

    def __init__(self) -> None:
        self.start, self.is_terminal = time.monotonic(), sys.stderr.isatty()

    def __call__(self, done: int, total: int) -> None:
        if self.is_terminal:
            print(f"\r{done / 1e9:.2f} of {total / 1e9:.2f} GB", end="", file=sys.stderr)

    def finish(self) -> None:
        end = "\n" if self.is_terminal else ""
        print(f"{end}written in {time.monotonic() - self.start:.1f} s", file=sys.stderr)
