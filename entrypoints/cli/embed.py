"""`ostro embed`: compute embeddings of texts from the command line or a file."""

from __future__ import annotations

import argparse
import json
import sys
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from ostro.core.errors import UsageError
from ostro.entrypoints.cli import writes_unicode
from ostro.entrypoints.cli.options import (
    add_model_options,
    check_output,
    check_ranges,
    parse_settings,
    take_model,
    utf8_text,
)

if TYPE_CHECKING:
    from torch import Tensor

SUFFIXES = (".npy", ".safetensors", ".jsonl")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("first", nargs="?", metavar="REF", help="model, unless -m names it")
    add_model_options(parser)
    add = parser.add_argument_group("texts").add_argument
    add("texts", nargs="*", metavar="TEXT", help="text to embed")
    add(
        "-f",
        "--file",
        type=Path,
        metavar="FILE",
        help="read texts from FILE, one a line; - is standard input (default: TEXT)",
    )
    add(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help=f"file to write ({', '.join(SUFFIXES)}; default: standard output)",
    )
    add(
        "--prompt",
        type=utf8_text,
        metavar="NAME",
        help="prepend this prompt of the model's config to every text (default: none)",
    )
    add(
        "--dimensions",
        type=int,
        metavar="N",
        help="truncate to N dimensions and re-normalise (default: all)",
    )


def run(args: argparse.Namespace) -> int:
    from dataclasses import replace

    from ostro.entrypoints.python.load import open_model

    words = take_model(args, [args.first, *args.texts], texts=True)
    texts = read_texts([utf8_text(word) for word in words], args.file)
    check_output(args.output, SUFFIXES)
    check_ranges(args, {"dimensions": (1, inf)})
    with open_model(replace(parse_settings(args), task="embed"), args.plugin) as model:
        vectors = model.embed(texts, prompt=args.prompt, dimensions=args.dimensions)
    write(vectors, texts, args.output)
    return 0


def read_texts(given: list[str], file: Path | None) -> list[str]:
    """The texts of a command. Raises UsageError for no text, and for texts together with --file."""
    if given and file is not None:
        raise UsageError("expected texts or --file, not both")
    if not given and file is None:
        raise UsageError("no texts; add TEXT after the model, or --file FILE with one text a line")
    if file is None:
        return given
    try:
        lines = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"--file {file}: {error}") from None
    return [line for line in lines.splitlines() if line.strip()]


def write(vectors: Tensor, texts: list[str], output: Path | None) -> None:
    """Write embeddings [n, d] in the format of `output`'s suffix; None prints JSON lines."""
    if output is not None and output.suffix == ".npy":
        import numpy

        numpy.save(output, vectors.numpy())
    elif output is not None and output.suffix == ".safetensors":
        from safetensors.torch import save_file

        save_file({"vectors": vectors}, output)
    else:
        rows = zip(texts, vectors.tolist(), strict=True)
        ascii = output is None and not writes_unicode()
        lines = [json.dumps({"text": t, "vector": v}, ensure_ascii=ascii) + "\n" for t, v in rows]
        if output is None:
            sys.stdout.writelines(lines)
        else:
            output.write_text("".join(lines), encoding="utf-8")
