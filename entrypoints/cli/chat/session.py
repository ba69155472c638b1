"""The chat of `ostro run`: its loop, its commands and its answers."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

from ostro.core.errors import AdapterError, ContextLengthExceeded, OstroError, UsageError

if TYPE_CHECKING:
    from ostro.core.media import Prompt
    from ostro.entrypoints.local_model import LocalModel

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
