"""`ostro run`: chat in the terminal, or answer one prompt with -i."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from ostro.core.errors import AdapterError, ContextLengthExceeded, OstroError, UsageError
from ostro.entrypoints.cli.options import add_adapter_options, add_model_options, settings

if TYPE_CHECKING:
    from ostro.core.load.weights import Progress
    from ostro.entrypoints.python import Text

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
    """Declare the command's options. All adapters of --adapter are applied."""
    add_model_options(parser)
    add_adapter_options(parser)
    add = parser.add_argument_group("chat").add_argument
    add("-i", "--input", metavar="PROMPT", help="answer this prompt and exit")
    add("--image", action="append", default=[], metavar="FILE", help="image to attach to -i")
    add("--audio", action="append", default=[], metavar="FILE", help="audio to attach to -i")
    add("--video", action="append", default=[], metavar="FILE", help="video to attach to -i")
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
    check_media(args)
    start = time.perf_counter()
    with progress() as report:
        model = load_text(settings(args), args.plugin, progress=report)
    if args.explain:
        print("\n".join(model.explain), file=sys.stderr)
    args.chosen = {entry.partition("=")[0]: 1.0 for entry in args.adapters}
    try:
        if args.input is not None:
            answer(model, args, [*messages(args, []), asked(args)], args.input)
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


def check_media(args: argparse.Namespace) -> None:
    """Raise UsageError for media without -i, and for media with --raw."""
    if (args.image or args.audio or args.video) and (args.raw or args.input is None):
        raise UsageError("--image, --audio and --video require -i and exclude --raw")


def asked(args: argparse.Namespace) -> dict[str, Any]:
    """The user message of -i: its media, then its text."""
    media = [
        {"type": kind, kind: file}
        for kind in ("image", "audio", "video")
        for file in getattr(args, kind)
    ]
    if not media:
        return message("user", args.input)
    return {"role": "user", "content": [*media, {"type": "text", "text": args.input}]}


@contextmanager
def progress() -> Iterator[Progress | None]:
    """A progress bar for reading weights; None without a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("loading"), BarColumn(), DownloadColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("loading", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def messages(args: argparse.Namespace, history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    system = [message("system", args.system)] if args.system else []
    return system + history


def chat(model: Text, args: argparse.Namespace) -> int:
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
    model: Text, line: str, args: argparse.Namespace, history: list[dict[str, Any]]
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


def choose(model: Text, args: argparse.Namespace, words: list[str]) -> None:
    """Load or select adapters, then list them. Raises AdapterError."""
    if words[:1] == ["load"]:
        if len(words) != 3:
            raise UsageError("expected /adapter load NAME REF")
        model.load_adapter(words[1], words[2], inplace=True)
    elif words == ["none"]:
        args.chosen = {}
    elif words:
        asked = dict(scale_of(word) for word in words)
        model.mixture(asked, [])  # raises unless all can be loaded
        args.chosen = asked
    for facts in model.adapters:
        scale = args.chosen.get(facts.name)
        chosen = "" if scale is None else f" = {scale:g}"
        known = f": {facts.kind}, rank {facts.rank}" if facts.loaded else ""
        print(f"{facts.name}{chosen}{known}", file=sys.stderr)
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
    model: Text, args: argparse.Namespace, conversation: list[dict[str, Any]], raw: str
) -> str:
    """Print an answer while it is generated and return it; Ctrl-C stops it."""
    options = {} if args.think is None else {"enable_thinking": args.think}
    text = ""
    try:
        prompt = (
            model.prompt(raw)
            if args.raw
            else model.prompt(conversation, adapters=args.chosen, **options)
        )
        rules = sampling(model, args)
        with closing(model.stream(prompt, adapters=args.chosen, **rules)) as stream:
            for piece in stream:
                text += piece.text
                print(piece.text, end="", flush=True)
    except KeyboardInterrupt:
        pass
    print()
    return text


def sampling(model: Text, args: argparse.Namespace) -> dict[str, Any]:
    """Sampling parameters: the options, and the model's generation config for the rest."""
    names = "max_tokens temperature top_k top_p min_p repetition_penalty seed".split()
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    return {**model.suggested, **given, "stop": tuple(args.stop)}
