"""`ostro serve`: serve models over HTTP."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from ostro.core.errors import UsageError
from ostro.entrypoints.cli.options import (
    add_adapter_options,
    add_model_options,
    parse_settings,
    take_model,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "models",
        nargs="*",
        metavar="[NAME=]REF",
        help="models to serve: the first as -m, others as --also",
    )
    add_model_options(parser)
    add_adapter_options(parser)
    group = parser.add_argument_group("server")
    add = group.add_argument
    add(
        "--host",
        default="127.0.0.1",
        help="address to listen on (default: 127.0.0.1); others than loopback require a key",
    )
    add(
        "-p",
        "--port",
        type=int,
        default=1234,
        help="port to listen on (default: 1234); 0 selects a free one",
    )
    add(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help="require this API key; repeat the option for several keys",
    )
    add(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="require an API key of FILE, one a line (default: none)",
    )
    add(
        "--keys",
        type=Path,
        metavar="FILE",
        help="require a key of FILE, which has names, scopes and limits (docs/keys.md); SIGHUP "
        "reads it again (default: none)",
    )
    add(
        "--share-prefixes",
        action="store_true",
        help="let all keys share the prefix cache; cached_tokens then shows what others have sent",
    )
    add("--open-metrics", action="store_true", help="let /metrics answer without a key")
    add(
        "--max-queue",
        type=int,
        metavar="N",
        help="sequences that may run and wait together (default: 32 times --max-seqs)",
    )
    add(
        "--max-queue-tokens",
        type=int,
        metavar="N",
        help="tokens of the prompts of these sequences (default: an eighth of the context each)",
    )
    add(
        "--max-wait",
        type=float,
        metavar="S",
        help="answer 503 if a request has no first token after this many seconds (default: never)",
    )
    add(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="Host header to accept besides localhost and IP addresses; applies without API keys",
    )
    add(
        "--cors-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="web origin whose pages may call the server, such as https://app.example",
    )
    add(
        "--drain-timeout",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds to let running requests finish on SIGTERM (default: 30)",
    )
    add(
        "--hang-timeout",
        type=float,
        default=120.0,
        metavar="S",
        help="seconds without a response until the engine counts as hung (default: 120)",
    )
    add(
        "--restart",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="restart the engine when it dies or hangs, three times in five minutes (default: on)",
    )
    add(
        "--also",
        action="append",
        default=[],
        metavar="[NAME=]REF",
        help="serve another model as well; repeat the option for several models",
    )
    add(
        "--adapter-root",
        metavar="DIR",
        help="enable the routes that load adapters, from DIR only (default: disabled)",
    )
    admin = group.add_mutually_exclusive_group().add_argument
    admin(
        "--admin-key",
        metavar="KEY",
        help="key with the scope admin, which may load and unload adapters (default: none)",
    )
    admin(
        "--admin-key-file",
        type=Path,
        metavar="FILE",
        help="read the admin key from FILE (default: none)",
    )
    add(
        "--store",
        default="memory",
        metavar="FOLDER",
        help="keep files and batches in FOLDER, in memory, or not at all: none (default: memory)",
    )
    add(
        "--retention",
        default="30d",
        metavar="AGE",
        help="delete stored documents after 30d, 12h, 5m or never: forever (default: 30d)",
    )
    add(
        "--print-openapi",
        action="store_true",
        help="print the OpenAPI document of the routes and exit",
    )
    add(
        "--access-log",
        action="store_true",
        help="log client, key name, method, path, status and id of each request",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until a signal arrives."""
    from ostro.entrypoints.cli.store import parse_duration
    from ostro.entrypoints.http.server import serve

    if args.print_openapi:
        return print_openapi(args.plugin)
    if not args.hang_timeout > 0:
        raise UsageError(f"--hang-timeout {args.hang_timeout}: expected a positive number")
    for name in ("max_queue", "max_queue_tokens", "max_wait"):
        if (value := getattr(args, name)) is not None and not value > 0:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} {value}: expected a positive number")
    further = take_model(args, args.models)
    if args.model is not None:
        split_name(args)
    return serve(
        parse_settings(args),
        host=args.host,
        port=args.port,
        api_keys=api_keys(args),
        allow_hosts=args.allow_host,
        cors_origins=args.cors_origin,
        drain_timeout=args.drain_timeout,
        hang_timeout=args.hang_timeout,
        restart=args.restart,
        also=[*further, *args.also],
        admin_key=admin_key(args),
        store=args.store,
        retention=parse_duration(args.retention),
        keys=args.keys,
        share_prefixes=args.share_prefixes,
        open_metrics=args.open_metrics,
        max_queue=args.max_queue,
        max_queue_tokens=args.max_queue_tokens,
        max_wait=args.max_wait,
        access_log=args.access_log,
        plugin_paths=args.plugin,
    )


def split_name(args: argparse.Namespace) -> None:
    """Take the name of the model from NAME=REF, as --also does.

    Raises UsageError for another name in --name.
    """
    name, equals, reference = args.model.partition("=")
    if not equals or Path(args.model).exists():
        return
    if args.name not in (None, name):
        raise UsageError(f"expected one name, got --name {args.name} and {args.model}")
    args.name, args.model = name, reference


def print_openapi(plugin_paths: Sequence[str]) -> int:
    """Print the OpenAPI document of a server with the built-in and the given plugins."""
    from ostro.core.plugins.manager import PluginManager
    from ostro.entrypoints.http.app import describe

    plugins = PluginManager()
    plugins.load(None, plugin_paths)
    print(json.dumps(describe(plugins), indent=1))
    return 0


def api_keys(args: argparse.Namespace) -> list[str]:
    """All API keys. Raises UsageError for an unreadable or empty file, and for an empty key."""
    found = list(args.api_key)
    if args.api_key_file is not None:
        found += read_keys("--api-key-file", args.api_key_file)
    if not all(key.strip() for key in found):
        raise UsageError("--api-key is empty")
    return found


def admin_key(args: argparse.Namespace) -> str | None:
    """The admin key, None without one. Raises UsageError unless its file contains one key."""
    if args.admin_key_file is None:
        return str(args.admin_key) if args.admin_key is not None else None
    found = read_keys("--admin-key-file", args.admin_key_file)
    if len(found) > 1:
        raise UsageError(f"--admin-key-file {args.admin_key_file}: expected one key")
    return found[0]


def read_keys(option: str, file: Path) -> list[str]:
    """The keys of a file, one a line. Raises UsageError if it is unreadable or has no key."""
    try:
        lines = file.read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{option} {file}: {error}") from None
    found = [line.strip() for line in lines if line.strip()]
    if not found:
        raise UsageError(f"{option} {file}: contains no key")
    return found
