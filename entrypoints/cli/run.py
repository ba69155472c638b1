"""`ostro run`: chat in the terminal, or answer one prompt with -i."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from ostro.core.errors import UsageError
from ostro.entrypoints.cli.chat.session import (
    answer,
    chat,
    message,
    messages,
    prompt_of,
    sampling,
    scale_of,
)
from ostro.entrypoints.cli.options import (
    add_adapter_options,
    add_model_options,
    add_reference,
    parse_settings,
)
from ostro.entrypoints.cli.progress import progress

if TYPE_CHECKING:
    from ostro.entrypoints.local_model import LocalModel, Piece


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_reference(parser)
    add_model_options(parser)
    add_adapter_options(parser)
    add = parser.add_argument_group("chat").add_argument
    add("-i", "--input", metavar="PROMPT", help="answer this prompt and exit (default: chat)")
    add("--image", action="append", default=[], metavar="FILE", help="image to attach to -i")
    add("--audio", action="append", default=[], metavar="FILE", help="audio to attach to -i")
    add("--video", action="append", default=[], metavar="FILE", help="video to attach to -i")
    add("--choices", type=int, metavar="N", help="number of answers to -i (default: 1)")
    add("--json", action="store_true", help="print the answers to -i as JSON, one per line")
    add(
        "--logprobs",
        type=int,
        metavar="N",
        help="with --json: log-probabilities of each token and N alternatives (default: none)",
    )
    add(
        "--apply",
        action="append",
        metavar="NAME[=SCALE]",
        help="adapter to apply (default: those of --adapter, with scale 1)",
    )
    add("--system", metavar="TEXT", help="system message (default: none)")
    add("--raw", action="store_true", help="complete the text without a chat template")
    add("--think", action=argparse.BooleanOptionalAction, help="enable or disable reasoning")
    add(
        "-n",
        "--max-tokens",
        type=int,
        metavar="N",
        help="maximum number of tokens to generate (default: the rest of the context)",
    )
    add(
        "--temperature",
        type=float,
        metavar="T",
        help="sampling temperature; 0 is greedy (default: the model's)",
    )
    add(
        "--top-k",
        type=int,
        metavar="K",
        help="sample from the K most likely tokens (default: the model's)",
    )
    add(
        "--top-p",
        type=float,
        metavar="P",
        help="sample from the top P of the probability mass (default: the model's)",
    )
    add(
        "--min-p",
        type=float,
        metavar="P",
        help="minimum probability relative to the top token (default: the model's)",
    )
    add(
        "--repetition-penalty",
        type=float,
        metavar="R",
        help="penalty on repeated tokens; 1 is none (default: the model's)",
    )
    add("--seed", type=int, metavar="N", help="random seed (default: random)")
    add(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="stop at this text; repeat the option for several texts",
    )


def run(args: argparse.Namespace) -> int:
    from ostro.entrypoints.python import load_text

    check_raw(args)
    check_input(args)
    applied = args.apply or [entry.partition("=")[0] for entry in args.adapters]
    args.chosen = dict(scale_of(word) for word in applied)
    start = time.perf_counter()
    with progress() as report:
        model = load_text(parse_settings(args), args.plugin, progress=report)
    if args.explain:
        print("\n".join(model.explain), file=sys.stderr)
    try:
        if args.input is not None:
            conversation = [*messages(args, []), user_message(args)]
            if args.json or args.choices is not None:
                print_answers(model, args, conversation)
            else:
                answer(model, args, conversation, args.input)
            return 0
        print(
            f"{model.name}, ready in {time.perf_counter() - start:.1f} s. /help for commands.",
            file=sys.stderr,
        )
        print(sampling_line(model, args), file=sys.stderr)
        return chat(model, args)
    finally:
        model.close()


def sampling_line(model: LocalModel, args: argparse.Namespace) -> str:
    """The sampling parameters of answers with their sources, and the limit on their length."""
    given = sampling(args)
    del given["stop"]
    limit = given.pop("max_tokens", None)
    length = f"{limit} tokens (-n)" if limit else f"the context of {model.model.context} tokens"
    used = model.sampling_defaults.override(given, "options")
    return f"sampling: {used}; answers end at {length}"


def check_raw(args: argparse.Namespace) -> None:
    """Raise UsageError for options of the chat template together with --raw."""
    given = {
        "--system": args.system is not None,
        "--think": args.think is not None,
        "--chat-template": args.chat_template is not None,
    }
    for option, used in given.items():
        if args.raw and used:
            raise UsageError(f"--raw uses no chat template and cannot be combined with {option}")


def check_input(args: argparse.Namespace) -> None:
    """Raise UsageError for options of -i without it, and for media with --raw."""
    if (args.image or args.audio or args.video) and (args.raw or args.input is None):
        raise UsageError("--image, --audio and --video require -i and exclude --raw")
    if (args.choices is not None or args.json) and args.input is None:
        raise UsageError("--choices and --json require -i")
    if args.logprobs is not None and not args.json:
        raise UsageError("--logprobs requires --json")


def user_message(args: argparse.Namespace) -> dict[str, Any]:
    """The user message of -i: its media, then its text."""
    media = [
        {"type": kind, kind: file}
        for kind in ("image", "audio", "video")
        for file in getattr(args, kind)
    ]
    if not media:
        return message("user", args.input)
    return {"role": "user", "content": [*media, {"type": "text", "text": args.input}]}


def print_answers(
    model: LocalModel, args: argparse.Namespace, conversation: list[dict[str, Any]]
) -> None:
    """Print all answers to -i, as text or as JSON: index, text, tokens, finish and logprobs."""
    prompt = prompt_of(model, args, conversation, args.input)
    rules = {**sampling(args), "n": args.choices or 1, "logprobs": args.logprobs}
    answers: dict[int, list[Piece]] = {}
    for piece in model.stream(prompt, adapters=args.chosen, **rules):
        answers.setdefault(piece.index, []).append(piece)
    for index, pieces in sorted(answers.items()):
        text, tokens = "".join(piece.text for piece in pieces), pieces[:-1]
        if not args.json:
            print(text)
            continue
        found = {
            "index": index,
            "text": text,
            "tokens": [piece.token for piece in tokens],
            "finish": pieces[-1].finish,
        }
        if args.logprobs is not None:
            each = [piece.logprobs for piece in tokens if piece.logprobs is not None]
            found["logprobs"] = [{"logprob": x.logprob, "top": x.top} for x in each]
        print(json.dumps(found, ensure_ascii=False))
