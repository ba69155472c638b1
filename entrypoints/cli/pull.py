"""`ostro pull`: download models into the Hugging Face cache."""

from __future__ import annotations

import argparse
import sys

from ostro.entrypoints.cli.options import add_hub_options, add_plugin_option


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.description = (
        "Download the files that a model needs into the Hugging Face cache, and print its path. "
        "Files that are complete are not downloaded again."
    )
    parser.add_argument(
        "references", nargs="+", metavar="REF", help="org/name[@revision][:file] or alias"
    )
    parser.add_argument("--adapter", action="store_true", help="the references are adapters")
    add_hub_options(parser)
    add_plugin_option(parser)


def run(args: argparse.Namespace) -> int:
    from ostro.core.plugins.manager import PluginManager
    from ostro.core.settings import Settings

    settings = Settings(
        revision=args.revision, token_source=args.token_source, offline=args.offline
    )
    kind, plugins = "adapter" if args.adapter else "model", PluginManager()
    plugins.load(settings, args.plugin)
    for reference in args.references:
        try:
            print(plugins.locate(reference, settings, kind))
        except KeyboardInterrupt:
            again = "ostro: run the command again to continue; complete files are kept"
            print(f"\n{again}", file=sys.stderr)
            raise
    return 0
