"""`ostro rerank`: rank documents by relevance to a query, the best first."""

from __future__ import annotations

import argparse
from dataclasses import replace
from math import inf
from pathlib import Path

from ostro.core.errors import UsageError
from ostro.entrypoints.cli.embed import read_texts
from ostro.entrypoints.cli.options import (
    add_model_options,
    check_ranges,
    parse_settings,
    take_model,
    utf8_text,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("first", nargs="?", metavar="REF", help="model, unless -m names it")
    add_model_options(parser)
    add = parser.add_argument_group("texts").add_argument
    add("query", metavar="QUERY", help="query to rank the documents by")
    add("documents", nargs="*", metavar="TEXT", help="document to rank")
    add(
        "-f",
        "--file",
        type=Path,
        metavar="FILE",
        help="read documents from FILE, one a line; - is standard input (default: TEXT)",
    )
    add("--top", type=int, metavar="N", help="print the best N only (default: all)")


def run(args: argparse.Namespace) -> int:
    from ostro.entrypoints.python.load import open_model

    words = take_model(args, [args.first, args.query, *args.documents], texts=True)
    if not words:
        raise UsageError(f"no query; with the model {args.model}, add QUERY")
    query, *given = map(utf8_text, words)
    documents = read_texts(given, args.file)
    check_ranges(args, {"top": (1, inf)})
    with open_model(replace(parse_settings(args), task="rerank"), args.plugin) as model:
        ranked = model.rerank(query, documents)
    for item in ranked[: args.top]:
        print(f"{item.score:.4f}\t{item.index}\t{documents[item.index]}")
    return 0
