"""The options that `run`, `serve` and `bench` share, and the settings they make."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

from ostro.core.errors import UsageError
from ostro.core.records import STARTER, Settings

DTYPES = ("auto", "float32", "bfloat16", "float16")


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Declare what says which model to load, and how."""
    model = parser.add_argument_group("model")
    add = model.add_argument
    add(
        "-m",
        "--model",
        metavar="REF",
        help="folder, .gguf file or org/name[@revision][:file]; default: the starter",
    )
    add("--arch", metavar="NAME", help="the architecture, where a checkpoint does not say it")
    add("--task", metavar="NAME", help="the task, where an architecture has several")
    add("--tokenizer", metavar="PATH", help="a tokenizer from elsewhere")
    add("--chat-template", metavar="FILE", help="a chat template from elsewhere")
    add("--dtype", choices=DTYPES, default="auto", help="what to compute in")
    add("--device", default="auto", help="cpu, cuda, cuda:1")
    either = model.add_mutually_exclusive_group().add_argument
    either(
        "--placement",
        metavar="RULES",
        help="auto, auto:SIZE, 'PATTERN = cpu, PATTERN = rest', or a TOML file of such pairs",
    )
    either(
        "--offload",
        dest="placement",
        action="store_const",
        const="rest",
        help="layers rest in host memory and visit the device, one after the other",
    )
    add("--quant", metavar="FORMAT", help="quantize at load: 4, q4k, afq4, 4.5bpw, 6GB")
    add(
        "--topology",
        metavar="RULES",
        help="formats by pattern: 'PATTERN = q8_0, PATTERN = float', or a TOML file of such pairs",
    )
    add("--importance", metavar="FILE", help="how much columns matter to --quant (.imatrix)")
    add("--exact", action="store_true", help="quantized weights multiply floats, never integers")
    add("--threads", type=int, metavar="N", help="threads on CPU (default: one per core)")
    add("--context", type=int, metavar="N", help="tokens of prompt and answer together")
    add("--max-seqs", type=int, default=32, metavar="N", help="sequences that run at once")
    add("--memory", metavar="SIZE", help="room for the K/V cache: 6GB, or a share such as 0.5")
    add("--kv-dtype", default="auto", metavar="TYPE", help="type of the K/V cache")
    add("--revision", metavar="REV", help="branch, tag or commit on the hub")
    add("--token-source", metavar="SRC", help="the hub's token: env:NAME, file:PATH, cache, none")
    add("--offline", action="store_true", help="never ask the hub; use what is cached")
    add("--name", metavar="NAME", help="what to call the model")
    add("--deterministic", action="store_true", help="row by row reproducible kernels only; slower")
    add("--replay", action="store_true", help="run the loop of captured graphs on any device")
    add("--allow-config", action="append", default=[], metavar="KEY", help="let a config key pass")
    add("--dummy-weights", metavar="SHAPE", help="random weights of a shape (qwen3-0.6b, llama-8b)")
    add("--explain", action="store_true", help="say who answered and which kernels were chosen")
    add("--plugin", action="append", default=[], metavar="PATH", help="use a plugin from a folder")


def add_adapter_options(parser: argparse.ArgumentParser) -> None:
    """Declare what says which adapters requests may ask for, and how many there is room for."""
    add = parser.add_argument_group("adapters").add_argument
    add(
        "--adapter",
        dest="adapters",
        action="append",
        default=[],
        metavar="NAME=REF",
        help="an adapter by a name of its own: a folder, a file, or org/name on the hub",
    )
    add("--adapters", dest="adapter_folder", metavar="DIR", help="every folder in it is an adapter")
    add(
        "--adapter-slots",
        type=int,
        default=Settings.adapter_slots,
        metavar="N",
        help="room on the device for so many adapters of rank 16",
    )
    add("--adapter-memory", metavar="SIZE", help="room on the host for those that nobody runs: 8GB")
    add(
        "--max-adapters",
        type=int,
        default=Settings.max_adapters,
        metavar="N",
        help="names of adapters that there may be",
    )
    add(
        "--max-adapter-rank",
        type=int,
        default=Settings.max_adapter_rank,
        metavar="R",
        help="refuse adapters of a higher rank",
    )
    add(
        "--adapter-resolvers",
        action="store_true",
        help="look for adapters of unknown names where plugins find them",
    )


def settings(args: argparse.Namespace) -> Settings:
    """The settings that parsed options say; those that a command does not have keep defaults.

    Raises UsageError for an access token where nothing is fetched.
    """
    reference = args.model or STARTER
    here = args.dummy_weights or reference == STARTER or Path(reference).exists()
    if args.token_source and here:
        raise UsageError("--token-source: files on this machine need no token; leave it out")
    known = {field.name for field in fields(Settings)}
    given = {name: value for name, value in vars(args).items() if name in known}
    for name in ("adapters", "allow_config"):
        given[name] = tuple(given.get(name, ()))
    return Settings(**{**given, "reference": reference})
