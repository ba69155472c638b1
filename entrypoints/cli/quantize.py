"""`ostro quantize`: write a quantized model."""

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
    from ostro.core.plugins.manager import PluginManager
    from ostro.core.records import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_reference(parser)
    add_model_options(parser)
    add = parser.add_argument_group("output").add_argument
    add("--to", required=True, metavar="CONTAINER", help="file format to write: gguf or uqff")
    add("-o", "--output", required=True, metavar="DIR", help="folder to write")


def run(args: argparse.Namespace) -> int:
    from ostro.core.plugins.manager import PluginManager

    settings, plugins = parse_settings(args), PluginManager()
    plugins.load(settings, args.plugin)
    names = (settings.quant or "").split(",")
    for name in names:
        folder = Path(args.output)
        written = write(
            replace(settings, quant=name.strip() or None),
            plugins,
            args.to,
            folder / name.strip() if len(names) > 1 else folder,
        )
        print(written)
    return 0


def write(settings: Settings, plugins: PluginManager, container: str, folder: Path) -> Path:
    """Write a quantized model into a folder; returns the path of the written file or folder.

    Raises UsageError without a format to quantize to, and if no plugin writes the container.
    """
    from ostro.core.engine.calibration import open_probe
    from ostro.core.load.open import find
    from ostro.core.load.planning import plan_model
    from ostro.core.load.saving import Saving
    from ostro.core.records import resolve

    records = plugins.collect("checkpoints")
    record = records.get(container)
    if record is None or record.write is None:
        known = ", ".join(name for name, each in records.items() if each.write is not None)
        raise UsageError(f"--to {container}: unknown file format; expected one of {known}")
    found = plan_model(find(settings, plugins), settings, plugins, open_probe)
    if found.plan is None:
        raise UsageError("no format to quantize to; add --quant q4k or --topology RULES")
    default = found.plan.default
    saving = Saving(found, folder, default.format.name if default else "mixed", plugins)
    progress = WriteProgress()
    path: Path = resolve(record.write)(saving, progress)
    progress.finish()
    for line in found.plan.describe():
        print(line, file=sys.stderr)
    return path


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
