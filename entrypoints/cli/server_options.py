"""Options of a server, which `ostro serve` and `ostro from-config` share."""

from __future__ import annotations

import argparse
from pathlib import Path

from ostro.entrypoints.cli.parser import Advanced


def add_server_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Declare the options of a server, and return their group."""
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
        "--uds",
        type=Path,
        metavar="PATH",
        help=Advanced(
            "listen on this Unix socket, which only this user can open, in the place of --host "
            "and --port (default: none)"
        ),
    )
    add(
        "--ssl-certfile",
        type=Path,
        metavar="FILE",
        help=Advanced(
            "serve HTTPS with this certificate and those of its issuers, in PEM; SIGHUP reads it "
            "again (default: HTTP)"
        ),
    )
    add(
        "--ssl-keyfile",
        type=Path,
        metavar="FILE",
        help=Advanced("private key of the certificate, in PEM (default: in --ssl-certfile)"),
    )
    add(
        "--root-path",
        default="",
        metavar="PATH",
        help=Advanced(
            "path below which a proxy serves this server, such as /models (default: none)"
        ),
    )
    add(
        "--trusted-proxies",
        default="",
        metavar="ADDR[,ADDR...]",
        help=Advanced(
            "use X-Forwarded-For and X-Forwarded-Proto of these addresses and networks, such as "
            "127.0.0.1,10.0.0.0/8, or of all: * (default: none)"
        ),
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
        help=Advanced("require an API key of FILE, one a line (default: none)"),
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
        help=Advanced(
            "let all keys share the prefix cache; cached_tokens then shows what others have sent"
        ),
    )
    add(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="serve HTTP in this many processes in front of one engine (default: 1); more than one "
        "requires --store FOLDER or --store none",
    )
    add("--open-metrics", action="store_true", help=Advanced("let /metrics answer without a key"))
    add(
        "--max-queue",
        type=int,
        metavar="N",
        help=Advanced("sequences that may run and wait together (default: 32 times --max-seqs)"),
    )
    add(
        "--max-queue-tokens",
        type=int,
        metavar="N",
        help=Advanced(
            "tokens of the prompts of these sequences (default: an eighth of the context each)"
        ),
    )
    add(
        "--max-wait",
        type=float,
        metavar="S",
        help=Advanced(
            "answer 503 if a request has no first token after this many seconds (default: never)"
        ),
    )
    add(
        "--request-timeout",
        type=float,
        metavar="S",
        help=Advanced("abort a request after this many seconds and answer 504 (default: never)"),
    )
    add(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help=Advanced(
            "Host header to accept besides localhost and IP addresses; applies without API keys"
        ),
    )
    add(
        "--cors-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help=Advanced("web origin whose pages may call the server, such as https://app.example"),
    )
    add(
        "--strict-fields",
        action="store_true",
        help=Advanced(
            "refuse requests with unknown fields, which are ignored otherwise, with a line in the "
            "log and the header x-ostro-ignored"
        ),
    )
    add(
        "--drain-timeout",
        type=float,
        default=30.0,
        metavar="S",
        help=Advanced("seconds to let running requests finish on SIGTERM (default: 30)"),
    )
    add(
        "--hang-timeout",
        type=float,
        default=120.0,
        metavar="S",
        help=Advanced("seconds without a response until the engine counts as hung (default: 120)"),
    )
    add(
        "--restart",
        action=argparse.BooleanOptionalAction,
        default=True,
        help=Advanced(
            "restart the engine when it dies or hangs, three times in five minutes (default: on)"
        ),
    )
    add(
        "--adapter-root",
        metavar="DIR",
        help="enable the routes that load adapters, from DIR only (default: disabled)",
    )
    add(
        "--model-root",
        metavar="DIR",
        help="let clients load models from DIR with the routes of models (default: disabled)",
    )
    admin = group.add_mutually_exclusive_group().add_argument
    admin(
        "--admin-key",
        metavar="KEY",
        help=Advanced(
            "key with the scope admin, which may load and unload models and adapters "
            "(default: none)"
        ),
    )
    admin(
        "--admin-key-file",
        type=Path,
        metavar="FILE",
        help=Advanced("read the admin key from FILE (default: none)"),
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
        help=Advanced(
            "delete stored documents after 30d, 12h, 5m or never: forever (default: 30d)"
        ),
    )
    add(
        "--store-limit",
        metavar="SIZE",
        help=Advanced("refuse new documents beyond SIZE, such as 20GB (default: none)"),
    )
    add(
        "--access-log",
        action="store_true",
        help=Advanced(
            "log a line for each request at its end: client, key name, route, model, tokens, "
            "times and status (docs/monitoring.md)"
        ),
    )
    add(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="form of the log on standard error (default: text)",
    )
    add(
        "--log-requests",
        type=Path,
        metavar="FILE",
        help="append the bodies of requests and responses to FILE, which has prompts and answers "
        "(docs/privacy.md; default: none)",
    )
    add(
        "--log-requests-size",
        metavar="SIZE",
        help="rename this file to FILE.1 before it exceeds SIZE (default: 100MB)",
    )
    return group
