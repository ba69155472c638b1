"""`ostro draw`: generate images from a prompt."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

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

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
IMAGE_RANGES = {
    "steps": (1, inf),
    "guidance": (0, inf),
    "seed": (0, 2**63 - 11),
    "count": (1, inf),
    "previews": (0, 50),
    "strength": (0, 1),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_reference(parser)
    add_model_options(parser)
    group = parser.add_argument_group("image")
    add = group.add_argument
    add("prompt", type=utf8_text, metavar="PROMPT", help="description of the image")
    add(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="FILE",
        help=f"file to write ({', '.join(SUFFIXES)})",
    )
    add("--size", metavar="WxH", help="size in pixels, such as 1024x1024 (default: the model's)")
    add("--steps", type=int, metavar="N", help="number of denoising steps (default: the model's)")
    add(
        "--guidance",
        type=float,
        metavar="G",
        help="guidance scale: higher values follow the prompt more closely (default: the model's)",
    )
    add_sampling_options(group, "seed")
    add(
        "-n",
        "--count",
        type=int,
        default=1,
        metavar="N",
        help="number of images; several are written to FILE-1, FILE-2 (default: 1)",
    )
    add(
        "--previews",
        type=int,
        default=0,
        metavar="N",
        help="number of previews to write to FILE on the way (default: 0)",
    )
    add("--image", type=Path, metavar="FILE", help="image to start from (default: noise)")
    add(
        "--strength",
        type=float,
        metavar="S",
        help="how much to change --image, from 0 to 1 (default: the model's)",
    )


def run(args: argparse.Namespace) -> int:
    from ostro.entrypoints.python.load import open_model

    check_output(args.output, SUFFIXES)
    check_ranges(args, IMAGE_RANGES)
    options = options_of(args)
    with open_model(replace(parse_settings(args), task="draw"), args.plugin) as model:
        with bar(args.output) as report:
            images = model.draw(args.prompt, progress=report, **options)
    for i, image in enumerate(images, 1):
        path = args.output
        if len(images) > 1:
            path = path.with_stem(f"{path.stem}-{i}")
        image.save(path)
        print(path)
    return 0


def options_of(args: argparse.Namespace) -> dict[str, Any]:
    """The pipeline's options. Raises UsageError for a malformed size or image."""
    names = ("steps", "guidance", "seed", "strength")
    found = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    found |= {"n": args.count, "previews": args.previews}
    if args.size is not None:
        width, _, height = args.size.partition("x")
        if not (width.isdigit() and height.isdigit() and int(width) and int(height)):
            raise UsageError(f"--size {args.size!r}: expected WIDTHxHEIGHT, such as 1024x1024")
        found |= {"width": int(width), "height": int(height)}
    if args.image is not None:
        from PIL import Image, UnidentifiedImageError

        try:
            found["image"] = Image.open(args.image).convert("RGB")
        except (OSError, UnidentifiedImageError) as error:
            raise UsageError(f"--image {args.image}: {error}") from None
    if args.strength is not None and args.image is None:
        raise UsageError("--strength requires --image")
    return found


@contextmanager
def bar(output: Path) -> Iterator[Callable[[int, int, list[Any]], None]]:
    """A callback that writes previews and, on a terminal, moves a progress bar."""

    def write(images: list[Any]) -> None:
        if images:
            images[0].save(output)

    if not sys.stderr.isatty():
        yield lambda done, total, images: write(images)
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("drawing", total=None)

        def report(done: int, total: int, images: list[Any]) -> None:
            shown.update(task, completed=done, total=total)
            write(images)

        yield report
