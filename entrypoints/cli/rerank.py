"""`ostro rerank`: rank documents by relevance to a query, the best first."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from ostro.entrypoints.cli.embed import read_texts
from ostro.entrypoints.cli.options import add_model_options, parse_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_model_options(parser)
    add = parser.add_argument_group("texts").add_argument
    add("query", metavar="QUERY", help="query to rank the documents by")
    add("documents", nargs="*", metavar="TEXT", help="document to rank")
    add(
        "-f",
        "--file",
        type=Path,
        metavar="FILE",
        help="read documents from FILE, one a line; - is standard input",
    )
    add("--top", type=int, metavar="N", help="print the best N only")


def run(args: argparse.Namespace) -> int:
    from ostro.entrypoints.python import open_model

    documents = read_texts(args.documents, args.file)
    with open_model(replace(parse_settings(args), task="rerank"), args.plugin) as model:
        ranked = model.rerank(args.query, documents)
    for item in ranked[: args.top]:
        print(f"{item.score:.4f}\t{item.index}\t{documents[item.index]}")
    return 0
