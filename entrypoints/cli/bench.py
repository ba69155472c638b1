"""`ostro bench`: measure a local model, or any server with OpenAI's API."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing
from dataclasses import fields, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostro.core.errors import UsageError
from ostro.core.settings import STARTER, Settings
from ostro.entrypoints.cli.options import (
    add_model_options,
    add_reference,
    check_ranges,
    parse_settings,
)
from ostro.entrypoints.cli.parser import Advanced

if TYPE_CHECKING:
    from ostro.core.engine.engine import Engine
    from ostro.core.tokenizer import Tokenizer
    from ostro.entrypoints.bench.figures import Row, StepProfile

KERNELS = 20
"""The most kernels in a table of a profile."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_reference(parser)
    add_model_options(parser)
    add = parser.add_argument_group("bench").add_argument
    add(
        "-p",
        "--prompt-tokens",
        type=int,
        default=512,
        metavar="N",
        help="length of each prompt in tokens (default: 512)",
    )
    add(
        "-n",
        "--tokens",
        type=int,
        default=64,
        metavar="N",
        help="tokens to generate after the first (default: 64)",
    )
    add("-r", "--runs", type=int, default=5, metavar="N", help="measured runs (default: 5)")
    add(
        "--concurrency",
        default="1",
        metavar="N,N...",
        help="numbers of concurrent requests to measure (default: 1)",
    )
    add(
        "-d",
        "--depth",
        default="0",
        metavar="N,N...",
        help="numbers of tokens that are in the cache before each prompt (default: 0)",
    )
    add(
        "--shared-prefix",
        type=int,
        default=0,
        metavar="N",
        help=Advanced("length of a prefix that all prompts share, in tokens (default: 0)"),
    )
    add(
        "--prompts",
        metavar="FILE",
        help="read prompts from FILE: one a line, or JSON lines with a field 'prompt' "
        "(default: random tokens)",
    )
    add(
        "--with-adapters",
        type=int,
        metavar="N",
        help=Advanced("measure the cost of N random adapters (default: no adapters)"),
    )
    add(
        "--with-rank",
        type=int,
        default=16,
        metavar="R",
        help=Advanced("rank of these adapters (default: 16)"),
    )
    add("--no-prefix-cache", action="store_true", help=Advanced("disable the prefix cache"))
    add(
        "--profile",
        action="store_true",
        help="list the time of each kernel in a prompt and in a decode step of each test",
    )
    add(
        "--url",
        metavar="URL",
        help="measure the server at URL; -m is the name of a model there (default: a local model)",
    )
    add("--api-key", metavar="KEY", help="API key for --url (default: none)")
    add("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    counts = numbers(args.concurrency)
    if not counts or min(counts) < 1:
        raise UsageError(
            f"--concurrency {args.concurrency!r}: expected positive numbers, such as 1,4,8"
        )
    depths = numbers(args.depth)
    if not depths:
        raise UsageError(f"--depth {args.depth!r}: expected numbers of tokens, such as 0,4096")
    if max(depths) and (args.url or args.with_adapters or args.no_prefix_cache):
        raise UsageError("--depth excludes --url, --with-adapters and --no-prefix-cache")
    if args.profile and (args.url or args.with_adapters):
        raise UsageError("--profile excludes --url and --with-adapters")
    if min(args.prompt_tokens, args.tokens, args.runs) < 1:
        raise UsageError("-p, -n and -r must be positive")
    if args.with_adapters is not None and (args.with_adapters < 1 or args.url or args.prompts):
        raise UsageError(
            "--with-adapters requires a positive number, and excludes --url and --prompts"
        )
    if not 0 <= args.shared_prefix <= args.prompt_tokens:
        raise UsageError(f"--shared-prefix {args.shared_prefix}: expected 0 to --prompt-tokens")
    check_ranges(args, {"with_rank": (1, inf)})
    check_target(args)
    rows = remote(args, counts) if args.url else local(args, counts, depths)
    if args.json:
        print(json.dumps([{"model": name_of(args), **row.plain()} for row in rows], indent=2))
    else:
        show(rows, name_of(args))
    return 0


def numbers(text: str) -> list[int]:
    """The numbers of a list such as 1,4,8; none if a part of it is not a number."""
    words = [word.strip() for word in text.split(",")]
    return [int(word) for word in words] if all(word.isdecimal() for word in words) else []


def name_of(args: argparse.Namespace) -> str:
    return str(args.name or args.model or args.dummy_weights or STARTER)


def check_target(args: argparse.Namespace) -> None:
    """Raise UsageError for options of a server without --url, and of a local model with it."""
    if not args.url:
        if args.api_key:
            raise UsageError("--api-key requires --url")
        for option in ("tokenizer", "chat_template"):
            if getattr(args, option) and not args.prompts:
                shown = "--" + option.replace("_", "-")
                raise UsageError(f"{shown} requires --prompts")
        return
    if args.no_prefix_cache:
        raise UsageError("--no-prefix-cache excludes --url: disable the cache of that server")
    settings = parse_settings(args)
    plain = Settings(reference=settings.reference, name=settings.name)
    unused = [
        f.name for f in fields(Settings) if getattr(settings, f.name) != getattr(plain, f.name)
    ]
    if unused or args.plugin:
        option = "--" + (unused or ["plugin"])[0].replace("_", "-")
        raise UsageError(f"{option} applies to a local model and excludes --url")


def local(args: argparse.Namespace, counts: list[int], depths: list[int]) -> list[Any]:
    from ostro.core.engine.startup.start import open_engine
    from ostro.core.messages.commands import ModelSpec
    from ostro.core.plugins.manager import PluginManager
    from ostro.entrypoints.bench.local import measure
    from ostro.entrypoints.python.load import tokenizer as load_tokenizer

    need = max(depths) + args.prompt_tokens + args.tokens + 2
    settings = parse_settings(args)
    if settings.context is None and settings.memory is None:
        settings = replace(settings, max_seqs=max(counts))
    texts = read_prompts(args.prompts)
    tokenizer = load_tokenizer(args.tokenizer or args.model or STARTER) if texts else None
    prompts = encode(tokenizer, texts, args.chat_template) if tokenizer else []
    plugins = PluginManager()
    plugins.load(settings, args.plugin)
    models, explain = open_engine([ModelSpec(settings)], plugins, lambda *progress: None)
    with closing(models):
        engine = models.first.tokens
        if engine is None:
            raise UsageError("bench supports models that generate text only")
        if args.explain:
            print("\n".join(explain), file=sys.stderr)
        if engine.context < need:
            raise UsageError(
                f"a run needs {need} tokens, the context is {engine.context}; lower -p, -n or -d"
            )
        engine.prefix_cache = not args.no_prefix_cache
        if args.with_adapters:
            return cost(args, counts, engine)
        rows = [
            measure(
                engine,
                prompt=args.prompt_tokens,
                tokens=args.tokens,
                runs=args.runs,
                concurrency=count,
                shared=args.shared_prefix,
                depth=depth,
                prompts=prompts,
            )
            for depth in depths
            for count in counts
        ]
        if args.profile:
            add_profiles(rows, engine, args.prompt_tokens)
        return rows


def add_profiles(rows: list[Row], engine: Engine, prompt: int) -> None:
    """Add the profiles of a prompt and of a decode step to each row, as far as they fit."""
    from ostro.entrypoints.bench.profile import profile_decode, profile_prompt

    for row in rows:
        profiles = (
            profile_prompt(engine, prompt=prompt, depth=row.depth),
            profile_decode(engine, sequences=row.concurrency, depth=row.depth + prompt),
        )
        row.profiles += [profile for profile in profiles if profile is not None]


def cost(args: argparse.Namespace, counts: list[int], engine: Engine) -> list[Any]:
    """Rows of the base, of idle adapters and of active ones; prints the adapters' memory."""
    from ostro.entrypoints.bench.adapters import measure_costs

    rows = list[Any]()
    for count in counts:
        found = measure_costs(
            engine,
            adapters=args.with_adapters,
            rank=args.with_rank,
            prompt=args.prompt_tokens,
            tokens=args.tokens,
            runs=args.runs,
            concurrency=count,
        )
        print(found.describe(), file=sys.stderr)
        rows += found.rows
    return rows


def encode(tokenizer: Tokenizer, texts: list[str], template: str | None) -> list[list[int]]:
    """Token ids of texts, which become user messages if a chat template is given."""
    if template is None:
        return [tokenizer.encode(text, parse_special=True) for text in texts]
    from ostro.core.chat import load_template, prompt_tokens

    found = load_template(tokenizer, file=Path(template))
    return [prompt_tokens(found, tokenizer, [{"role": "user", "content": text}]) for text in texts]


def remote(args: argparse.Namespace, counts: list[int]) -> list[Any]:
    from ostro.entrypoints.bench.remote import measure

    return [
        measure(
            args.url.rstrip("/").removesuffix("/v1"),
            model=args.model or "default",
            key=args.api_key,
            prompt=args.prompt_tokens,
            tokens=args.tokens,
            runs=args.runs,
            concurrency=count,
            shared=args.shared_prefix,
            prompts=read_prompts(args.prompts),
        )
        for count in counts
    ]


def read_prompts(file: str | None) -> list[str]:
    """The prompts of a file, [] without one. Raises UsageError for a malformed file."""
    if file is None:
        return []
    try:
        lines = [line for line in Path(file).read_text("utf-8").splitlines() if line.strip()]
        found = [json.loads(x)["prompt"] if x.lstrip().startswith("{") else x for x in lines]
    except (OSError, ValueError) as error:
        raise UsageError(f"--prompts {file}: {error}") from error
    except KeyError as error:
        raise UsageError(f"--prompts {file}: a line has no field {error}") from error
    if not found or not all(isinstance(prompt, str) for prompt in found):
        raise UsageError(f"--prompts {file}: expected one prompt a line")
    return found


def show(rows: list[Row], name: str) -> None:
    from rich.table import Table

    from ostro.entrypoints.cli import console

    columns = ("test", "requests", "prefill t/s", "decode t/s", "total t/s", "TTFT p50/p95 ms")
    table = Table(*columns, title=name)
    table.add_column("ITL p50/p95 ms")
    table.add_column("peak KV cache")
    table.add_column("cached")
    for row in rows:
        peak = "" if row.peak_kv_bytes is None else f"{row.peak_kv_bytes / 2**20:.0f} MiB"
        table.add_row(
            row.test,
            str(row.concurrency),
            f"{row.prefill:.1f} ± {row.prefill_spread:.1f}",
            f"{row.decode:.2f} ± {row.decode_spread:.2f}",
            f"{row.total:.1f}",
            f"{row.ttft_p50:.0f} / {row.ttft_p95:.0f}",
            f"{row.itl_p50:.1f} / {row.itl_p95:.1f}",
            peak,
            str(row.cached_tokens),
        )
    console().print(table)
    for row in rows:
        if row.proposals:
            console().print(describe_drafts(row))
        for profile in row.profiles:
            show_profile(profile)


def show_profile(profile: StepProfile) -> None:
    """Print the slowest kernels of a step."""
    from rich.table import Table

    from ostro.entrypoints.cli import console

    table = Table("kernel", "calls", "us", "share", title=profile.step)
    total = profile.microseconds
    for kernel in profile.kernels[:KERNELS]:
        calls, time = f"{kernel.calls:g}", kernel.microseconds
        table.add_row(kernel.name, calls, f"{time:.1f}", f"{time / total:.0%}")
    if rest := profile.kernels[KERNELS:]:
        time = sum(kernel.microseconds for kernel in rest)
        table.add_row(f"{len(rest)} more", "", f"{time:.1f}", f"{time / total:.0%}")
    table.add_row("all", "", f"{total:.1f}", "")
    console().print(table)


def describe_drafts(row: Row) -> str:
    """The accepted tokens of a row, by their place in a proposal."""
    shares = [f"{count / row.proposals:.0%}" for count in row.accepted_at if count]
    accepted = sum(row.accepted_at)
    return (
        f"{row.concurrency} requests: {accepted} of {row.drafted_tokens} proposed tokens accepted, "
        f"by position {', '.join(shares) or 'none'} of {row.proposals} proposals"
    )
