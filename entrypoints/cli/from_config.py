"""`ostro from-config FILE`: serve the models of a config file, as `ostro serve --config FILE`."""

from __future__ import annotations

import argparse
from pathlib import Path

from ostro.entrypoints.cli import serve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "config", type=Path, metavar="FILE", help="TOML file of the server (docs/config.md)"
    )
    serve.add_options(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal arrives."""
    return serve.run(argparse.Namespace(**vars(args), models=[]))
