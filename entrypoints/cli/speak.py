"""`ostro speak`: synthesize speech from a text."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path

from ostro.core.errors import UsageError
from ostro.entrypoints.cli.options import (
    add_model_options,
    add_reference,
    add_sampling_options,
    check_output,
    check_ranges,
    parse_settings,
    utf8_text,
)

SUFFIXES = (".wav", ".flac", ".mp3", ".opus", ".pcm")
SPEECH_RANGES = {
    "temperature": (0, inf),
    "top_p": (0, 1),
    "guidance": (1, inf),
    "max_seconds": (0, inf),
    "seed": (0, 2**63 - 1),
}
OPTIONS = ("voice", "seed", "temperature", "top_p", "guidance", "max_seconds")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_reference(parser)
    add_model_options(parser)
    group = parser.add_argument_group("speech")
    add = group.add_argument
    add("text", type=utf8_text, metavar="TEXT", help="text to speak; - is standard input")
    add(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="FILE",
        help=f"file to write ({', '.join(SUFFIXES)})",
    )
    add("--voice", metavar="NAME", help="voice of the model (default: its first)")
    add_sampling_options(group, "seed", "temperature", "top_p")
    add(
        "--guidance",
        type=float,
        metavar="G",
        help="guidance scale, at least 1: higher values follow the text more closely "
        "(default: the model's)",
    )
    add(
        "--max-seconds",
        type=float,
        metavar="S",
        help="maximum length in seconds (default: the model's)",
    )


def run(args: argparse.Namespace) -> int:
    from ostro.entrypoints.python.load import open_model

    check_output(args.output, SUFFIXES)
    check_ranges(args, SPEECH_RANGES)
    text = read_text(args.text)
    options = {name: getattr(args, name) for name in OPTIONS}
    with open_model(replace(parse_settings(args), task="speak"), args.plugin) as model:
        model.pipeline("speak").check_format(args.output.suffix[1:].lower())
        with bar() as report:
            sound = model.speak(text, progress=report, **options)
    sound.save(args.output)
    print(args.output)
    return 0


def read_text(given: str) -> str:
    """The text to speak, of standard input for "-". Raises UsageError unless it is UTF-8."""
    try:
        return sys.stdin.read() if given == "-" else given
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input: {error}; expected UTF-8 text") from None


@contextmanager
def bar() -> Iterator[Callable[[int, int], None] | None]:
    """A callback that moves a progress bar; None without a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("speaking", total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)
