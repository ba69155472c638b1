"""`ostro transcribe`: transcribe audio files to text, subtitles or JSON."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from ostro.core.errors import UsageError
from ostro.entrypoints.cli.options import (
    add_model_options,
    check_ranges,
    parse_settings,
    take_model,
    utf8_text,
)
from ostro.entrypoints.cli.parser import Advanced

FORMATS = ("text", "json", "verbose_json", "srt", "vtt")
FORMS = {".json": "verbose_json", ".srt": "srt", ".txt": "text", ".vtt": "vtt"}
"""Formats by the suffix of the output file, if `--format` is not given."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("first", nargs="?", metavar="REF", help="model, unless -m names it")
    add_model_options(parser)
    add = parser.add_argument_group("audio").add_argument
    add("files", nargs="+", metavar="FILE", help="audio file: WAV, FLAC, OGG or MP3")
    add(
        "-o", "--output", type=Path, metavar="FILE", help="file to write (default: standard output)"
    )
    add(
        "--format",
        choices=FORMATS,
        metavar="FORMAT",
        help=f"output format: {', '.join(FORMATS)} (default: by the suffix of --output, or text)",
    )
    add(
        "--language",
        metavar="NAME",
        help="language of the audio: de, german, ... (default: detect)",
    )
    add("--translate", action="store_true", help="translate to English")
    add(
        "--prompt",
        type=utf8_text,
        metavar="TEXT",
        help="text whose style and spelling to follow (default: none)",
    )
    add(
        "--temperature",
        type=float,
        metavar="T",
        help="sampling temperature (default: 0, then higher ones where decoding fails)",
    )
    add(
        "--follow",
        action="store_true",
        help=Advanced("condition each window on the text of the previous one"),
    )


def run(args: argparse.Namespace) -> int:
    from ostro.entrypoints.python.load import open_model

    files = [Path(word) for word in take_model(args, [args.first, *args.files])]
    if not files:
        raise UsageError(f"no audio file; with the model {args.model}, add FILE")
    if args.output is not None and len(files) > 1:
        raise UsageError("--output supports one FILE; remove it, or give one FILE")
    if missing := [str(file) for file in files if not file.is_file()]:
        raise UsageError(f"no such file: {', '.join(missing)}")
    check_ranges(args, {"temperature": (0, 2)})
    form = args.format or FORMS.get(args.output.suffix if args.output else "", "text")
    options = {
        "language": args.language,
        "task": "translate" if args.translate else "transcribe",
        "prompt": args.prompt,
        "temperature": args.temperature,
        "follow": args.follow,
    }
    with open_model(replace(parse_settings(args), task="transcribe"), args.plugin) as model:
        for file in files:
            text = model.transcribe(file, **options).format(form)
            if args.output is not None:
                args.output.write_text(text, encoding="utf-8")
            else:
                sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
    return 0
