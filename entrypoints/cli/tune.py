"""`ostro tune`: measure which options make a model fast on this machine."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ostro.core.errors import UsageError
from ostro.entrypoints.cli.options import add_model_options, add_reference, parse_settings

if TYPE_CHECKING:
    from ostro.core.settings import Settings
    from ostro.entrypoints.bench.kernels import KernelTuning
    from ostro.entrypoints.bench.tune import Tuning

STORED = "stored"
"""The format of the checkpoint, as a candidate."""

SWEEP = {"formats": "stored,q8_0", "kv_dtypes": "auto", "streams": "4,16", "write": None}
"""The options that `--kernels` excludes, with their defaults."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.description = (
        "Measure the tokens per second of a model with several formats, KV caches, numbers of "
        "threads and numbers of sequences, or, with --kernels, the launch parameters of its GPU "
        "kernels. Ctrl-C ends it with what is known. `ostro fit` estimates instead of measuring, "
        "and `ostro quality` measures what a format loses."
    )
    add_reference(parser)
    add_model_options(parser)
    add = parser.add_argument_group("tune").add_argument
    add(
        "--formats",
        default=SWEEP["formats"],
        metavar="F,F...",
        help="formats to measure; stored is that of the model (default: stored,q8_0)",
    )
    add(
        "--kv-dtypes",
        default=SWEEP["kv_dtypes"],
        metavar="T,T...",
        help="dtypes of the KV cache to measure (default: auto)",
    )
    add(
        "--streams",
        default=SWEEP["streams"],
        metavar="N,N...",
        help="numbers of concurrent requests to measure (default: 4,16)",
    )
    add(
        "--seconds",
        type=float,
        default=120,
        metavar="S",
        help="begin no measurement after this time (default: 120)",
    )
    add(
        "--write",
        type=Path,
        metavar="FILE",
        help="write the fastest options as a file for `ostro serve --config` (default: none)",
    )
    add(
        "--kernels",
        action="store_true",
        help="measure tile sizes and other launch parameters of the model's GPU kernels, and keep "
        "the fastest for all later runs on this kind of GPU",
    )


def run(args: argparse.Namespace) -> int:
    """Measure, print a table and write the file."""
    from ostro.core.load.open import find
    from ostro.core.plugins.manager import PluginManager
    from ostro.entrypoints.bench.tune import Tuner
    from ostro.entrypoints.cli.stages import stages

    settings = parse_settings(args)
    if not args.seconds > 0:
        raise UsageError(f"--seconds {args.seconds}: expected a positive number")
    if args.kernels:
        return run_kernels(args, settings)
    counts = parse_streams(args.streams)
    formats = [None if word == STORED else word for word in parse_words("--formats", args.formats)]
    kv_dtypes = parse_words("--kv-dtypes", args.kv_dtypes)
    if settings.quant is not None:
        raise UsageError("--quant: use --formats, which lists the formats to measure")
    if settings.kv_dtype != "auto":
        raise UsageError("--kv-dtype: use --kv-dtypes, which lists the dtypes to measure")
    if args.write is not None and args.write.exists():
        raise UsageError(f"--write {args.write}: the file exists; remove it or name another")
    if args.write is not None and not args.write.parent.is_dir():
        raise UsageError(f"--write {args.write}: there is no such folder")
    plugins = PluginManager()
    plugins.load(settings, args.plugin)
    find(settings, plugins)  # once, in the place of an error of each measurement
    with stages() as progress:
        tuner = Tuner(settings, plugins, seconds=args.seconds, progress=progress)
        try:
            tuner.run(formats, kv_dtypes, counts)
        except KeyboardInterrupt:
            print("ostro: interrupted; these measurements are complete", file=sys.stderr)
    show(tuner.found)
    if args.write is not None:
        write(args.write, tuner.found, args.plugin)
    return 0


def run_kernels(args: argparse.Namespace, settings: Settings) -> int:
    """Measure the kernels of a model, print a table and write the file of the GPU.

    Raises UsageError for other options of this command and for a model that does not run on a GPU.
    """
    from ostro.core.ops.launch import file_of, write
    from ostro.core.plugins.manager import PluginManager
    from ostro.entrypoints.bench.kernels import KernelTuner, opened
    from ostro.entrypoints.cli.stages import stages

    for name, default in SWEEP.items():
        if getattr(args, name) != default:
            option = "--" + name.replace("_", "-")
            raise UsageError(f"{option}: --kernels measures one model with its options")
    gpu = gpu_name(settings)
    plugins = PluginManager()
    plugins.load(settings, args.plugin)
    with stages() as progress, opened(settings, plugins, progress) as engine:
        tuner = KernelTuner(engine, seconds=args.seconds, progress=progress)
        try:
            tuner.run()
        except KeyboardInterrupt:
            print("ostro: interrupted; these measurements are complete", file=sys.stderr)
    if not tuner.found.chosen:
        raise UsageError(
            "nothing was measured: --seconds is too short, or no kernel of this model has launch "
            "parameters"
        )
    show_kernels(tuner.found)
    file = file_of(gpu)
    write(file, gpu, tuner.found.chosen)
    print(f"written to {file}")
    return 0


def gpu_name(settings: Settings) -> str:
    """The name of the GPU that the settings choose. Raises UsageError if it is another device."""
    import torch

    from ostro.core.device import choose_device

    device = choose_device(settings.device)
    if device.type != "cuda":
        raise UsageError(
            f"--kernels measures kernels of a GPU, and the device is {device}; on a CPU, use "
            "`ostro tune` without --kernels"
        )
    return torch.cuda.get_device_name(device)


def show_kernels(found: KernelTuning) -> None:
    """Print a table of the steps: the shapes of kernels, and the time of the measured calls."""
    from rich.table import Table

    from ostro.entrypoints.cli import console

    table = Table("step", "shapes", "changed", "default, us", "fastest, us", "ratio")
    for name, results in found.steps.items():
        if results:
            before = sum(each.default_seconds for each in results)
            after = sum(each.seconds for each in results)
            table.add_row(
                name,
                str(len(results)),
                str(sum(each.changed for each in results)),
                f"{1e6 * before:.0f}",
                f"{1e6 * after:.0f}",
                f"{after / before:.2f}",
            )
    out = console()
    out.print(table)
    if not found.complete:
        out.print("Not all steps were measured; --seconds gives more time.")


def parse_words(option: str, text: str) -> list[str]:
    """Return the words of a list with commas. Raises UsageError for an empty word."""
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise UsageError(f"{option} {text!r:.80}: expected names with commas in between")
    return list(dict.fromkeys(words))


def parse_streams(text: str) -> list[int]:
    """Return numbers in ascending order. Raises UsageError for other words."""
    words = parse_words("--streams", text)
    if not all(word.isdecimal() and 0 < int(word) <= 4096 for word in words):
        raise UsageError(f"--streams {text!r:.80}: expected numbers such as 1,4,16")
    return sorted({int(word) for word in words} - {1})


def show(found: Tuning) -> None:
    """Print a table of the measurements and the best options."""
    from rich.table import Table

    from ostro.entrypoints.bench.tune import describe
    from ostro.entrypoints.cli import console

    best = found.best
    columns = ("format", "KV cache", "threads", "streams", "prefill t/s", "decode t/s", "total t/s")
    table = Table(*columns)
    for trial in found.trials:
        settings = trial.settings
        table.add_row(
            settings.quant or STORED,
            settings.kv_dtype,
            "auto" if settings.threads is None else str(settings.threads),
            str(trial.streams),
            *(f"{rate:.1f}" for rate in (trial.prefill, trial.decode, trial.total)),
        )
    out = console()
    out.print(table)
    for line in found.skipped:
        out.print(f"skipped: {line}")
    if not found.complete:
        out.print("Not all candidates were measured; --seconds gives more time.")
    out.print(f"fastest: {describe(best)}, {best.max_seqs} sequences")


def write(file: Path, found: Tuning, plugins: list[str]) -> None:
    """Write the best options. Raises UsageError if the file exists or cannot be written."""
    from ostro.entrypoints.cli.config_file import model_text

    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(model_text(found.best, plugins))
    except OSError as error:
        raise UsageError(f"--write {file}: {error.strerror}") from None
    print(f"ostro serve --config {file}")
