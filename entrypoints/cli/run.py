"""`ostro run`: a chat in the terminal, or one answer with -i."""

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
/adapter              list the adapters and how much of each applies
/adapter A=0.5 B=0.7  apply these: /adapter A is all of A, /adapter none is the model alone
/adapter load NAME REF"""

HELP = f"""\
/clear    forget the conversation
/system   set the system message: /system You are brief.
/help     these lines
/exit     leave (or Ctrl-D); Ctrl-C stops an answer
{ADAPTER}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options. All adapters that --adapter names apply."""
    add_model_options(parser)
    add_adapter_options(parser)
    add = parser.add_argument_group("chat").add_argument
    add("-i", "--input", metavar="PROMPT", help="answer this and leave")
    add("--image", action="append", default=[], metavar="FILE", help="a picture for -i to ask of")
    add("--audio", action="append", default=[], metavar="FILE", help="a sound for -i to ask of")
    add("--video", action="append", default=[], metavar="FILE", help="a video for -i to ask of")
    add("--system", metavar="TEXT", help="system message")
    add("--raw", action="store_true", help="continue the text as it is, without a chat template")
    add("--think", action=argparse.BooleanOptionalAction, help="ask for reasoning, or for none")
    add("-n", "--max-tokens", type=int, metavar="N")
    add("--temperature", type=float, metavar="T", help="0 takes the likeliest token")
    add("--top-k", type=int, metavar="K")
    add("--top-p", type=float, metavar="P")
    add("--min-p", type=float, metavar="P")
    add("--repetition-penalty", type=float, metavar="R")
    add("--seed", type=int, metavar="N")
    add("--stop", action="append", default=[], metavar="TEXT")


def run(args: argparse.Namespace) -> int:
    from ostro.entrypoints.python import load_text

    check_raw(args)
    check_media(args)
    start = time.perf_counter()
    with progress() as told:
        model = load_text(settings(args), args.plugin, progress=told)
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
    """Raise UsageError where --raw leaves nothing that another option could be said with."""
    given = {
        "--system": args.system is not None,
        "--think": args.think is not None,
        "--chat-template": args.chat_template is not None,
    }
    for option, used in given.items():
        if args.raw and used:
            raise UsageError(f"--raw uses no chat template, which {option} is for; leave one out")


def check_media(args: argparse.Namespace) -> None:
    """Raise UsageError for media that nothing is asked of."""
    if (args.image or args.audio or args.video) and (args.raw or args.input is None):
        raise UsageError("--image, --audio and --video go with -i, and not with --raw")


def asked(args: argparse.Namespace) -> dict[str, Any]:
    """The message of -i, its media before its text."""
    media = [
        {"type": kind, kind: file}
        for kind in ("image", "audio", "video")
        for file in getattr(args, kind)
    ]
    if not media:
        return said("user", args.input)
    return {"role": "user", "content": [*media, {"type": "text", "text": args.input}]}


@contextmanager
def progress() -> Iterator[Progress | None]:
    """A bar on a terminal while weights are read; nothing where nobody looks."""
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


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def messages(args: argparse.Namespace, history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    system = [said("system", args.system)] if args.system else []
    return system + history


def chat(model: Text, args: argparse.Namespace) -> int:
    """Read, answer, remember, until the user leaves."""
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
            text = answer(model, args, messages(args, [*history, said("user", line)]), line)
        except ContextLengthExceeded as error:
            print(f"ostro: {error}; /clear forgets the conversation", file=sys.stderr)
            continue
        except AdapterError as error:
            print(f"ostro: {error}; /adapter none goes on without", file=sys.stderr)
            continue
        history += [said("user", line), said("assistant", text)]


def command(
    model: Text, line: str, args: argparse.Namespace, history: list[dict[str, Any]]
) -> None:
    """One of the chat's own commands."""
    name, _, rest = line.partition(" ")
    if name == "/clear":
        history.clear()
    elif name == "/system" and args.raw:
        print("ostro: --raw uses no chat template, so there is no system message", file=sys.stderr)
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
    """Load or choose adapters, then list them. Raises AdapterError for those that cannot be."""
    if words[:1] == ["load"]:
        if len(words) != 3:
            raise UsageError("write /adapter load NAME REF")
        model.load_adapter(words[1], words[2], inplace=True)
    elif words == ["none"]:
        args.chosen = {}
    elif words:
        asked = dict(scale_of(word) for word in words)
        model.mixture(asked, [])  # reads them
        args.chosen = asked
    for facts in model.adapters:
        scale = args.chosen.get(facts.name)
        chosen = "" if scale is None else f" = {scale:g}"
        known = f": {facts.kind}, rank {facts.rank}" if facts.loaded else ""
        print(f"{facts.name}{chosen}{known}", file=sys.stderr)
    if not model.adapters:
        print("there are no adapters; /adapter load NAME REF", file=sys.stderr)


def scale_of(word: str) -> tuple[str, float]:
    """NAME or NAME=SCALE. Raises UsageError for a scale that is no number."""
    name, equals, scale = word.partition("=")
    try:
        return name, float(scale) if equals else 1.0
    except ValueError:
        raise UsageError(f"{word!r:.80}: the scale is no number; write NAME=0.5") from None


def answer(
    model: Text, args: argparse.Namespace, conversation: list[dict[str, Any]], raw: str
) -> str:
    """Print an answer as it is drawn; Ctrl-C ends it. Returns what was said."""
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
    """What the options say, on top of what the model's own generation config suggests."""
    names = "max_tokens temperature top_k top_p min_p repetition_penalty seed".split()
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    return {**model.suggested, **given, "stop": tuple(args.stop)}
