"""Options that several commands share, and the `Settings` they make."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import inf
from pathlib import Path
from typing import Any

from ostro.core.errors import UsageError
from ostro.core.settings import STARTER, Settings
from ostro.entrypoints.cli.parser import Advanced


def utf8_text(word: str) -> str:
    """The text of an argument, whose bytes are UTF-8 in every locale.

    In a locale of another encoding, such as C, Python represents the bytes that it cannot decode by
    lone surrogates. Names of files keep them, because `open` expects them.
    Raises UsageError for bytes that are not UTF-8.
    """
    try:
        word.encode()
    except UnicodeEncodeError:
        try:
            return os.fsencode(word).decode()
        except UnicodeError:
            raise UsageError(f"the argument {os.fsencode(word)!r:.200} is not UTF-8 text") from None
    return word


SAMPLING: Mapping[str, Mapping[str, Any]] = {
    "max_tokens": {
        "type": int,
        "metavar": "N",
        "help": "maximum number of tokens to generate (default: the rest of the context)",
    },
    "temperature": {
        "type": float,
        "metavar": "T",
        "help": "sampling temperature; 0 is greedy (default: the model's)",
    },
    "top_k": {
        "type": int,
        "metavar": "K",
        "help": "sample from the K most likely tokens (default: the model's)",
    },
    "top_p": {
        "type": float,
        "metavar": "P",
        "help": "sample from the top P of the probability mass (default: the model's)",
    },
    "min_p": {
        "type": float,
        "metavar": "P",
        "help": Advanced("minimum probability relative to the top token (default: the model's)"),
    },
    "repetition_penalty": {
        "type": float,
        "metavar": "R",
        "help": Advanced("penalty on repeated tokens; 1 is none (default: the model's)"),
    },
    "seed": {
        "type": int,
        "metavar": "N",
        "help": "random seed; the same seed gives the same output (default: random)",
    },
    "stop": {
        "action": "append",
        "default": [],
        "type": utf8_text,
        "metavar": "TEXT",
        "help": "stop at this text; repeat the option for several texts",
    },
}
"""Declarations of the options about sampling, by their fields of `Sampling`."""

DTYPES = ("auto", "float32", "bfloat16", "float16")


def add_sampling_options(target: argparse._ActionsContainer, *names: str) -> None:
    """Declare these options of `SAMPLING`; -n is --max-tokens."""
    for name in names:
        short = ("-n",) if name == "max_tokens" else ()
        target.add_argument(*short, f"--{name.replace('_', '-')}", **SAMPLING[name])


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options that select a model and control how it is loaded and run."""
    add_source_options(parser.add_argument_group("model"))
    add_weight_options(parser.add_argument_group("weights"))
    add_engine_options(parser.add_argument_group("engine"))
    add_debug_options(parser.add_argument_group("debugging"))


class OneModel(argparse.Action):
    """The action of REF and of -m, which name the same model: one of them is allowed."""

    def __call__(
        self, parser: argparse.ArgumentParser, found: argparse.Namespace, value: Any, *_: Any
    ) -> None:
        if getattr(found, "model", None) is not None:
            parser.error(f"expected one model, got {found.model} and {value}; remove one")
        found.model = value


def add_reference(parser: argparse.ArgumentParser) -> None:
    """Declare the positional REF, which names the model like -m."""
    parser.add_argument(
        "model",
        nargs="?",
        metavar="REF",
        action=OneModel,
        default=argparse.SUPPRESS,
        help="model, as with -m",
    )


def take_model(
    args: argparse.Namespace, words: Sequence[str | None], *, texts: bool = False
) -> list[str]:
    """Set the model to the first positional unless -m names it; returns the others.

    For commands with further positionals. `words` are all positionals, None for absent ones. With
    `texts`, a first one that is plainly a text is not the model.
    """
    given = [word for word in words if word is not None]
    if args.model is None and given and not (texts and is_text(given[0])):
        args.model, *given = given
    return given


def is_text(word: str) -> bool:
    """Whether a word is plainly a text: it has spaces, and is no path."""
    return len(word.split()) > 1 and not looks_like_path(word)


def looks_like_path(word: str) -> bool:
    """Whether a word names a local file or folder, which may not exist."""
    return word.startswith((".", "/", "~")) or os.path.exists(word)


def add_source_options(group: argparse._ArgumentGroup) -> None:
    """Declare the options that select a model and its files."""
    add = group.add_argument
    add(
        "-m",
        "--model",
        metavar="REF",
        action=OneModel,
        help="folder, .gguf file, org/name[@revision][:file] or alias (default: the starter)",
    )
    add(
        "--name",
        type=utf8_text,
        metavar="NAME",
        help="name of the model (default: from its folder or file)",
    )
    add("--arch", metavar="NAME", help=Advanced("architecture (default: as the checkpoint states)"))
    add(
        "--task", metavar="NAME", help=Advanced("task of the model (default: all that it supports)")
    )
    add(
        "--tokenizer",
        metavar="PATH",
        help=Advanced("folder or file of the tokenizer (default: the model's)"),
    )
    add(
        "--chat-template",
        metavar="FILE",
        help=Advanced("file of the chat template (default: the model's)"),
    )
    add(
        "--tool-parser",
        metavar="NAME",
        help=Advanced("parser of tool calls, or none (default: that of the chat template)"),
    )
    add(
        "--reasoning-parser",
        metavar="NAME",
        help=Advanced("parser of reasoning, or none (default: that of the chat template)"),
    )
    add(
        "--generation-config",
        choices=("auto", "none"),
        default=Settings.generation_config,
        help=Advanced(
            "sampling defaults: those of the model or a fallback (auto), or temperature 1 and all "
            "tokens (none) (default: auto)"
        ),
    )
    add_hub_options(group)
    add(
        "--allow-config",
        action="append",
        default=[],
        metavar="KEY",
        help=Advanced(
            "ignore this key of config.json although it may change the model; repeat the option "
            "for several keys"
        ),
    )


def add_hub_options(target: argparse._ActionsContainer) -> None:
    """Declare the options that select a version on the hub and control its download."""
    add = target.add_argument
    add(
        "--revision",
        metavar="REV",
        help=Advanced("branch, tag or commit on the hub (default: main)"),
    )
    add(
        "--token-source",
        metavar="SRC",
        help=Advanced(
            "where to read the hub's access token: env:NAME, file:PATH, cache or none "
            "(default: cache, as `hf auth login` wrote it)"
        ),
    )
    add("--offline", action="store_true", help="use cached files only, never contact the hub")


def add_plugin_option(target: argparse._ActionsContainer) -> None:
    """Declare --plugin."""
    add = target.add_argument
    add(
        "--plugin",
        action="append",
        default=[],
        metavar="PATH",
        help=Advanced("load a plugin from a folder or file; repeat the option for several plugins"),
    )


def add_weight_options(group: argparse._ArgumentGroup) -> None:
    """Declare the options about weights: dtype, placement, quantization."""
    add = group.add_argument
    add(
        "--dtype",
        choices=DTYPES,
        default="auto",
        metavar="DTYPE",
        help=Advanced(f"dtype of computation: {', '.join(DTYPES)} (default: auto)"),
    )
    add("--device", default="auto", help="device: auto, cpu, cuda or cuda:1 (default: auto)")
    either = group.add_mutually_exclusive_group().add_argument
    either(
        "--placement",
        metavar="RULES",
        help=Advanced(
            "device by module: auto, auto:SIZE, 'PATTERN = cpu, PATTERN = offload', or a TOML "
            "file of such pairs; offload keeps weights in host memory (default: all on --device)"
        ),
    )
    either(
        "--offload",
        dest="placement",
        action="store_const",
        const="offload",
        help="offload layers to host memory and stream them to the device",
    )
    add(
        "--quant",
        metavar="FORMAT",
        help="quantize at load: a format (q4k, afq4), bits (4), or a budget (4.5bpw, 6GB) "
        "(default: as stored)",
    )
    add(
        "--topology",
        metavar="RULES",
        help=Advanced(
            "format by module: 'PATTERN = q8_0, PATTERN = float', or a TOML file of such pairs "
            "(default: --quant for all)"
        ),
    )
    add(
        "--importance",
        metavar="FILE",
        help=Advanced("importance matrix for --quant, .imatrix (default: none)"),
    )
    add("--exact", action="store_true", help=Advanced("keep activations in floating point"))


def add_engine_options(group: argparse._ArgumentGroup) -> None:
    """Declare the options of the engine: threads, context, memory, plugins."""
    add = group.add_argument
    add(
        "--threads",
        type=thread_count,
        metavar="N",
        help=Advanced(
            "CPU threads; auto uses the cores that other processes leave free (default: auto)"
        ),
    )
    add(
        "--context",
        type=int,
        metavar="N",
        help="context length in tokens (default: the model's, or what fits in memory)",
    )
    add(
        "--max-seqs",
        type=int,
        default=Settings.max_seqs,
        metavar="N",
        help=f"maximum number of sequences in a batch (default: {Settings.max_seqs})",
    )
    add(
        "--memory",
        metavar="SIZE",
        help=Advanced(
            "memory for the KV cache: 6GB, or a fraction of the free memory "
            "(default: 0.9 on GPUs, 0.25 on CPUs)"
        ),
    )
    add(
        "--kv-dtype",
        default="auto",
        metavar="TYPE",
        help=Advanced("dtype of the KV cache (default: auto)"),
    )
    add(
        "--speculate",
        metavar="NAME|heads|REF",
        help="speculative decoding: ngram proposes tokens that followed the last ones before, a "
        "smaller model of the same family, or Gemma 4's assistant, those that it would generate, "
        "heads those of the checkpoint's multi-token head (MTP); answers stay the same "
        "(default: off)",
    )
    add(
        "--deterministic",
        action="store_true",
        help=Advanced("use only kernels whose results do not depend on the batch; slower"),
    )
    add_plugin_option(group)


def thread_count(text: str) -> int | None:
    """Parse --threads: None for "auto". Raises ArgumentTypeError for other words."""
    if text != "auto" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number or auto")
    return None if text == "auto" else int(text)


def add_debug_options(group: argparse._ArgumentGroup) -> None:
    """Declare the options for tests and for finding faults."""
    add = group.add_argument
    add(
        "--replay",
        action="store_true",
        help=Advanced("run the graph-replay loop on any device, to test it"),
    )
    add(
        "--dummy-weights",
        metavar="SHAPE",
        help=Advanced("use random weights of this shape: qwen3-0.6b, llama-8b (default: no)"),
    )
    add("--explain", action="store_true", help=Advanced("print the selected plugins and kernels"))


def add_adapter_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options about adapters and the memory for them."""
    add = parser.add_argument_group("adapters").add_argument
    add(
        "--adapter",
        dest="adapters",
        action="append",
        default=[],
        metavar="NAME=REF",
        help="adapter: a folder, a file, or org/name on the hub; repeat the option for several",
    )
    add(
        "--adapters",
        dest="adapter_folder",
        metavar="DIR",
        help="use every subfolder of DIR as an adapter, named after the subfolder (default: none)",
    )
    add(
        "--adapter-slots",
        type=int,
        default=Settings.adapter_slots,
        metavar="N",
        help=Advanced(
            "device memory for adapters, in adapters of rank 16 "
            f"(default: {Settings.adapter_slots})"
        ),
    )
    add(
        "--adapter-memory",
        metavar="SIZE",
        help=Advanced("host memory for inactive adapters, such as 4GB (default: 8 GiB)"),
    )
    add(
        "--max-adapters",
        type=int,
        default=Settings.max_adapters,
        metavar="N",
        help=Advanced(f"maximum number of adapters (default: {Settings.max_adapters})"),
    )
    add(
        "--max-adapter-rank",
        type=int,
        default=Settings.max_adapter_rank,
        metavar="R",
        help=Advanced(f"maximum rank of an adapter (default: {Settings.max_adapter_rank})"),
    )
    add(
        "--adapter-resolvers",
        action="store_true",
        help=Advanced("let plugins locate adapters whose names are not registered"),
    )


RANGES: Mapping[str, tuple[float, float]] = {
    "context": (1, inf),
    "threads": (1, inf),
    "adapter_slots": (1, 4096),
    "max_adapters": (0, inf),
    "max_adapter_rank": (1, inf),
}
"""The ranges of options that many commands have, by attribute."""


def check_ranges(args: argparse.Namespace, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Raise UsageError for an option outside of its range. NaN is outside of every range."""
    for name, (low, high) in ranges.items():
        value = getattr(args, name, None)
        if value is not None and not low <= value <= high:
            expected = f"{low} or more" if high == inf else f"{low} to {high}"
            raise UsageError(f"--{name.replace('_', '-')} {value}: expected {expected}")


def check_output(file: Path | None, suffixes: Sequence[str]) -> None:
    """Raise UsageError for a file of --output with another suffix, or in no folder."""
    if file is None:
        return
    if file.suffix.lower() not in suffixes:
        raise UsageError(
            f"--output {file}: expected a name ending with one of {', '.join(suffixes)}"
        )
    if not file.parent.is_dir():
        raise UsageError(f"--output {file}: there is no such folder")


def check_values(args: argparse.Namespace) -> None:
    """Raise UsageError for values of options that are wrong for every model."""
    check_ranges(args, RANGES)
    given = vars(args)
    sizes = [size for name in ("memory", "adapter_memory") if (size := given.get(name)) is not None]
    if sizes:
        from ostro.core.device import parse_size  # imports torch

        for size in sizes:
            parse_size(size)
    for entry in given.get("adapters") or ():
        name, equals, reference = entry.partition("=")
        if not (name and equals and reference):
            raise UsageError(f"--adapter {entry!r}: expected NAME=REFERENCE")
    template = given.get("chat_template")
    if template is not None and not Path(template).is_file():
        raise UsageError(f"--chat-template {template}: no such file")


def parse_settings(args: argparse.Namespace) -> Settings:
    """The `Settings` of parsed options; fields without an option keep their defaults.

    Raises UsageError for invalid values, and for --token-source with a local model.
    """
    check_values(args)
    reference = args.model or STARTER
    local = args.dummy_weights or reference == STARTER or Path(reference).exists()
    if args.token_source and local:
        raise UsageError("--token-source applies to models of the hub only; remove it")
    known = {field.name for field in fields(Settings)}
    given = {name: value for name, value in vars(args).items() if name in known}
    for name in ("adapters", "allow_config"):
        given[name] = tuple(given.get(name, ()))
    return Settings(**{**given, "reference": reference})
