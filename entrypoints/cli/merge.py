"""`ostro merge`: write a model with adapters merged into its weights."""

from __future__ import annotations

import argparse
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from ostro.core.errors import UsageError
from ostro.entrypoints.cli.adapters import add_base_options
from ostro.entrypoints.cli.options import add_reference, parse_settings
from ostro.entrypoints.cli.quantize import WriteProgress

if TYPE_CHECKING:
    from ostro.core.plugins.manager import PluginManager
    from ostro.core.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Merge adapters into the weights of a model and write the result as float safetensors."
    )
    add_reference(parser)
    add_base_options(parser)
    add = parser.add_argument
    add(
        "--adapter",
        dest="merge",
        action="append",
        required=True,
        metavar="REF[=SCALE]",
        help="adapter and its scale (default: 1); repeat the option for several adapters",
    )
    add("-o", "--output", required=True, metavar="DIR", help="folder to write")


def run(args: argparse.Namespace) -> int:
    from ostro.core.plugins.manager import PluginManager

    settings, plugins = parse_settings(args), PluginManager()
    plugins.load(settings, args.plugin)
    print(write(settings, plugins, dict(map(read_share, args.merge)), Path(args.output)))
    return 0


def read_share(text: str) -> tuple[str, float]:
    """Parse REF or REF=SCALE; the text after the last "=" is a scale if it is a number.

    Raises UsageError for a scale that is not finite.
    """
    reference, equals, tail = text.rpartition("=")
    try:
        scale = float(tail) if equals else 1.0
    except ValueError:
        return text, 1.0
    if not equals:
        return text, 1.0
    if not isfinite(scale) or not reference:
        raise UsageError(f"--adapter {text!r}: expected REF or REF=SCALE, such as ./style=0.5")
    return reference, scale


def write(
    settings: Settings, plugins: PluginManager, shares: dict[str, float], folder: Path
) -> Path:
    """Write a model with adapters merged at the given scales; returns the folder's path.

    Raises AdapterError for an adapter that cannot be merged.
    """
    from ostro.core.adapters.loader import locate, read_weights
    from ostro.core.engine.startup.calibration import open_probe
    from ostro.core.load.open import find
    from ostro.core.load.planning import plan_model
    from ostro.core.paths import refuse_existing
    from ostro.core.records import resolve
    from ostro.entrypoints.merge import merge_adapters

    refuse_existing(folder)
    adapters = {
        name: (read_weights(locate(name, settings, plugins), plugins), scale)
        for name, scale in shares.items()
    }
    found = merge_adapters(
        plan_model(find(settings, plugins), settings, plugins, open_probe), adapters, folder
    )
    progress = WriteProgress()
    path: Path = resolve(plugins.get("checkpoints", "safetensors").write)(found, progress)
    progress.finish()
    return path
