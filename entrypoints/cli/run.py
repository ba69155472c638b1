"""`ostro run`: chat in the terminal, or answer one prompt with -i."""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from ostro.core.errors import AdapterError, ContextLengthExceeded, OstroError, UsageError
from ostro.entrypoints.cli.options import add_adapter_options, add_model_options, parse_settings
from ostro.entrypoints.cli.progress import progress

if TYPE_CHECKING:
    from ostro.core.media import Prompt
    from ostro.entrypoints.local_model import LocalModel, Piece

ADAPTER = """\
/adapter              list the adapters and their scales
/adapter A=0.5 B=0.7  apply these adapters; /adapter A has scale 1, /adapter none disables all
/adapter load NAME REF  load an adapter"""

HELP = f"""\
/clear    clear the conversation
/system   set the system message: /system You are brief.
/help     print this help
/exit     exit (or Ctrl-D); Ctrl-C stops an answer
{ADAPTER}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_model_options(parser)
    add_adapter_options(parser)
    add = parser.add_argument_group("chat").add_argument
    add("-i", "--input", metavar="PROMPT", help="answer this prompt and exit")
    add("--image", action="append", default=[], metavar="FILE", help="image to attach to -i")
    add("--audio", action="append", default=[], metavar="FILE", help="audio to attach to -i")
    add("--video", action="append", default=[], metavar="FILE", help="video to attach to -i")
    add("--choices", type=int, metavar="N", help="number of answers to -i (default: 1)")
    add("--json", action="store_true", help="print the answers to -i as JSON, one per line")
    add("--logprobs", type=int, metavar="N", help="with --json: of each token and N alternatives")
    add(
        "--apply",
        action="append",
        metavar="NAME[=SCALE]",
        help="adapter to apply (default: those of --adapter, with scale 1)",
    )
    add("--system", metavar="TEXT", help="system message")
    add("--raw", action="store_true", help="complete the text without a chat template")
    add("--think", action=argparse.BooleanOptionalAction, help="enable or disable reasoning")
    add("-n", "--max-tokens", type=int, metavar="N", help="maximum number of tokens to generate")
    add("--temperature", type=float, metavar="T", help="sampling temperature; 0 is greedy")
    add("--top-k", type=int, metavar="K", help="sample from the K most likely tokens")
    add("--top-p", type=float, metavar="P", help="sample from the top P of the probability mass")
    add("--min-p", type=float, metavar="P", help="minimum probability relative to the top token")
    add(
        "--repetition-penalty",
        type=float,
        metavar="R",
        help="penalty on repeated tokens; 1 is none",
    )
    add("--seed", type=int, metavar="N", help="random seed")
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
        return chat(model, args)
    finally:
        model.close()


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


def message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def messages(args: argparse.Namespace, history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    system = [message("system", args.system)] if args.system else []
    return system + history


def chat(model: LocalModel, args: argparse.Namespace) -> int:
    """Answer lines of standard input until it ends or /exit."""
    history: list[dict[str, Any]] = []
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return 0
        except KeyboardInterrupt:
            print(file=sys.stderr)
            continue
        if not line:
            continue
        if line.startswith("/"):
            if line in ("/exit", "/quit"):
                return 0
            command(model, line, args, history)
            continue
        try:
            text = answer(model, args, messages(args, [*history, message("user", line)]), line)
        except ContextLengthExceeded as error:
            print(f"ostro: {error}; /clear clears the conversation", file=sys.stderr)
            continue
        except AdapterError as error:
            print(f"ostro: {error}; /adapter none disables adapters", file=sys.stderr)
            continue
        history += [message("user", line), message("assistant", text)]


def command(
    model: LocalModel, line: str, args: argparse.Namespace, history: list[dict[str, Any]]
) -> None:
    """Run a line that begins with "/"."""
    name, _, rest = line.partition(" ")
    if name == "/clear":
        history.clear()
    elif name == "/system" and args.raw:
        print("ostro: --raw uses no chat template and no system message", file=sys.stderr)
    elif name == "/system":
        args.system = rest or None
    elif name == "/adapter":
        try:
            choose(model, args, rest.split())
        except OstroError as error:
            print(f"ostro: {error}", file=sys.stderr)
    else:
        print(HELP, file=sys.stderr)


def choose(model: LocalModel, args: argparse.Namespace, words: list[str]) -> None:
    """Load or select adapters, then list them. Raises AdapterError."""
    if words[:1] == ["load"]:
        if len(words) != 3:
            raise UsageError("expected /adapter load NAME REF")
        model.load_adapter(words[1], words[2], inplace=True)
    elif words == ["none"]:
        args.chosen = {}
    elif words:
        scales = dict(scale_of(word) for word in words)
        model.mixture(scales, [])  # raises unless all can be loaded
        args.chosen = scales
    for info in model.adapters:
        scale = args.chosen.get(info.name)
        chosen = "" if scale is None else f" = {scale:g}"
        known = f": {info.kind}, rank {info.rank}" if info.loaded else ""
        print(f"{info.name}{chosen}{known}", file=sys.stderr)
    if not model.adapters:
        print("no adapters; load one with /adapter load NAME REF", file=sys.stderr)


def scale_of(word: str) -> tuple[str, float]:
    """Parse NAME or NAME=SCALE. Raises UsageError for a malformed scale."""
    name, equals, scale = word.partition("=")
    try:
        return name, float(scale) if equals else 1.0
    except ValueError:
        raise UsageError(
            f"{word!r:.80}: invalid scale; expected NAME=SCALE, such as style=0.5"
        ) from None


def answer(
    model: LocalModel, args: argparse.Namespace, conversation: list[dict[str, Any]], raw: str
) -> str:
    """Print an answer while it is generated and return it; Ctrl-C stops it."""
    text = ""
    try:
        prompt = prompt_of(model, args, conversation, raw)
        stream = model.stream(prompt, adapters=args.chosen, **sampling(args))
        with closing(stream):
            for piece in stream:
                text += piece.text
                print(piece.text, end="", flush=True)
    except KeyboardInterrupt:
        pass
    print()
    return text


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


def prompt_of(
    model: LocalModel, args: argparse.Namespace, conversation: list[dict[str, Any]], raw: str
) -> Prompt:
    """The prompt of a conversation, or with --raw of the text alone."""
    if args.raw:
        return model.prompt(raw)
    options = {} if args.think is None else {"enable_thinking": args.think}
    return model.prompt(conversation, adapters=args.chosen, **options)


def sampling(args: argparse.Namespace) -> dict[str, Any]:
    """Sampling parameters of the options; the model's generation config holds for the rest."""
    names = (
        "max_tokens",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "repetition_penalty",
        "seed",
    )
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    return {**given, "stop": tuple(args.stop)}
