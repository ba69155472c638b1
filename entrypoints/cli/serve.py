"""`ostro serve`: serve models over HTTP."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from ostro.core.errors import UsageError
from ostro.entrypoints.cli.options import (
    add_adapter_options,
    add_model_options,
    parse_settings,
    take_model,
)
from ostro.entrypoints.cli.server_options import add_server_options
from ostro.entrypoints.serve_config import ModelOptions, further_model, split_name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "models",
        nargs="*",
        metavar="[NAME=]REF",
        help="models to serve: the first as -m, others as --also",
    )
    group = add_options(parser)
    group.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="read options, keys and models from a TOML file (docs/config.md); options of the "
        "command line override it (default: none)",
    )


def add_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Declare the options of models and of the server; return the group of the latter."""
    parser.set_defaults(given=frozenset())
    add_model_options(parser)
    add_adapter_options(parser)
    group = add_server_options(parser)
    add = group.add_argument
    add(
        "--also",
        action="append",
        default=[],
        metavar="[NAME=]REF",
        help="serve another model as well; repeat the option for several models",
    )
    add(
        "--print-config",
        action="store_true",
        help="print the options and models as a file for --config, without secrets, and exit",
    )
    add(
        "--print-openapi",
        action="store_true",
        help="print the OpenAPI document of the routes and exit",
    )
    return group


def run(args: argparse.Namespace) -> int:
    """Serve until a signal arrives."""
    from ostro.entrypoints.cli.config_file import config_text, configure
    from ostro.entrypoints.http.server import serve

    models = [] if args.config is None else configure(args)
    if args.print_openapi:
        return print_openapi(args.plugin)
    models = models or command_line_models(args)
    check_numbers(args)
    if args.print_config:
        print(config_text(args, models), end="")
        return 0
    return serve(models, **server_options(args))


def command_line_models(args: argparse.Namespace) -> list[ModelOptions]:
    """The models of the positionals, -m and --also; the default first."""
    further = take_model(args, args.models)
    if args.model is not None:
        take_name(args)
    first = parse_settings(args)
    others = [further_model(first, reference) for reference in (*further, *args.also)]
    return [ModelOptions(settings=first), *others]


def check_numbers(args: argparse.Namespace) -> None:
    """Raise UsageError for a limit that is not positive."""
    for name in ("hang_timeout", "max_queue", "max_queue_tokens", "max_wait", "request_timeout"):
        if (value := getattr(args, name)) is not None and not value > 0:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} {value}: expected a positive number")


def server_options(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of `ostro.entrypoints.http.options.Options` that options state.

    A field has the value of its option, whose name is that of the field. Below are the fields with
    another name or another form than their options.
    """
    from ostro.entrypoints.cli.store import parse_bytes, parse_duration
    from ostro.entrypoints.http.options import Options
    from ostro.entrypoints.http.proxies import parse_proxies
    from ostro.entrypoints.http.root_path import parse_root_path

    stated = {each.name: getattr(args, each.name) for each in fields(Options) if each.name in args}
    stated |= dict(
        api_keys=api_keys(args),
        allow_hosts=args.allow_host,
        cors_origins=args.cors_origin,
        admin_key=admin_key(args),
        retention=parse_duration(args.retention),
        store_limit=None if args.store_limit is None else parse_bytes(args.store_limit),
        root_path=parse_root_path(args.root_path),
        trusted_proxies=parse_proxies(args.trusted_proxies),
        log_requests_size=(
            Options.log_requests_size
            if args.log_requests_size is None
            else parse_bytes(args.log_requests_size)
        ),
        plugin_paths=args.plugin,
    )
    return stated


def take_name(args: argparse.Namespace) -> None:
    """Take the name of the model from NAME=REF, as --also does.

    Raises UsageError for another name in --name.
    """
    name, reference = split_name(args.model)
    if name is None:
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
    from ostro.entrypoints.cli.config_file import MASK

    found = list(args.api_key)
    if args.api_key_file is not None:
        found += read_keys("--api-key-file", args.api_key_file)
    if not all(key.strip() for key in found):
        raise UsageError("--api-key is empty")
    if MASK in found:
        raise UsageError(f"--api-key {MASK}: write the key, which --print-config left out")
    return found


def admin_key(args: argparse.Namespace) -> str | None:
    """The admin key, None without one. Raises UsageError unless its file contains one key."""
    from ostro.entrypoints.cli.config_file import MASK

    if args.admin_key is not None and args.admin_key_file is not None:
        raise UsageError("--admin-key and --admin-key-file exclude each other; remove one")
    if args.admin_key == MASK:
        raise UsageError(f"--admin-key {MASK}: write the key, which --print-config left out")
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
