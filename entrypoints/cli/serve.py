"""`ostro serve`: a model over HTTP."""

from __future__ import annotations

import argparse
from pathlib import Path

from ostro.core.errors import UsageError
from ostro.entrypoints.cli.options import add_adapter_options, add_model_options, settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_model_options(parser)
    add_adapter_options(parser)
    add = parser.add_argument_group("server").add_argument
    add("--host", default="127.0.0.1", help="address to listen on; any but loopback needs a key")
    add("-p", "--port", type=int, default=1234, help="0 takes a free one")
    add("--api-key", action="append", default=[], metavar="KEY", help="let in who sends this key")
    add("--api-key-file", type=Path, metavar="FILE", help="keys, one per line")
    add("--allow-host", action="append", default=[], metavar="NAME", help="a name it goes by")
    add("--cors-origin", action="append", default=[], metavar="ORIGIN", help="let its pages call")
    add("--drain-timeout", type=float, default=30.0, metavar="S", help="seconds to finish in")
    add(
        "--hang-timeout",
        type=float,
        default=120.0,
        metavar="S",
        help="seconds without a sign of life after which the engine counts as hung (/health)",
    )
    add(
        "--also",
        action="append",
        default=[],
        metavar="[NAME=]REF",
        help="serve another model beside it",
    )
    add(
        "--adapter-root",
        metavar="DIR",
        help="let adapters in this folder be loaded and unloaded over HTTP",
    )
    add("--admin-key", metavar="KEY", help="let who sends this key load and unload adapters")
    add("--restart", action="store_true", help="start the engine again when it dies")
    add("--access-log", action="store_true", help="log each request's line, never its body")


def run(args: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    from ostro.entrypoints.http.server import serve

    if not args.hang_timeout > 0:
        raise UsageError(f"--hang-timeout {args.hang_timeout}: write a positive number of seconds")
    return serve(
        settings(args),
        host=args.host,
        port=args.port,
        api_keys=keys(args),
        allow_hosts=args.allow_host,
        cors_origins=args.cors_origin,
        drain_timeout=args.drain_timeout,
        hang_timeout=args.hang_timeout,
        restart=args.restart,
        also=args.also,
        admin_key=args.admin_key,
        access_log=args.access_log,
        plugin_paths=args.plugin,
    )


def keys(args: argparse.Namespace) -> list[str]:
    """All keys given. Raises UsageError for a file that cannot be read and for an empty key."""
    found = list(args.api_key)
    if args.api_key_file is not None:
        try:
            lines = args.api_key_file.read_text("utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--api-key-file {args.api_key_file}: {error}") from None
        found += [line.strip() for line in lines if line.strip()]
        if not found:
            raise UsageError(f"--api-key-file {args.api_key_file} holds no key")
    if not all(key.strip() for key in found):
        raise UsageError("--api-key is empty")
    return found
