"""`ostro run`: chat in the terminal, or answer one prompt, with files."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostro.core.errors import RequestError, UsageError
from ostro.entrypoints.cli import writes_unicode
from ostro.entrypoints.cli.chat.adapters import parse_choice
from ostro.entrypoints.cli.chat.answers import print_answer, start_answer
from ostro.entrypoints.cli.chat.attachments import (
    check_media,
    read_attachment,
    read_piped,
    split_inputs,
)
from ostro.entrypoints.cli.chat.base_model import report_base_model
from ostro.entrypoints.cli.chat.conversation import (
    Conversation,
    read_sampling,
    user_message,
)
from ostro.entrypoints.cli.chat.display import PlainDisplay, open_display
from ostro.entrypoints.cli.options import (
    SAMPLING,
    add_adapter_options,
    add_model_options,
    add_sampling_options,
    looks_like_path,
    parse_settings,
    take_model,
    utf8_text,
)
from ostro.entrypoints.cli.parser import Advanced
from ostro.entrypoints.progress import loading

if TYPE_CHECKING:
    from ostro.core.pipeline import ServedModel
    from ostro.entrypoints.python.model import LocalModel

KINDS = ("image", "audio", "video", "file")
"""Options that attach files."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("first", nargs="?", metavar="REF", help="model, unless -m names it")
    add_model_options(parser)
    add_adapter_options(parser)
    group = parser.add_argument_group("chat")
    add = group.add_argument
    add(
        "inputs",
        nargs="*",
        metavar="INPUT",
        help="prompt, or file to attach: text, image, audio or video",
    )
    add(
        "-i",
        "--input",
        type=utf8_text,
        metavar="PROMPT",
        help="answer this prompt and exit, as the positional does; piped text is put before it "
        "(default: chat)",
    )
    for kind in KINDS:
        text = "text file or media" if kind == "file" else kind
        add(
            f"--{kind}",
            action="append",
            default=[],
            metavar="FILE",
            help=f"{text} to attach to the first message; repeat the option for several files",
        )
    add("--choices", type=int, metavar="N", help="number of answers to -i (default: 1)")
    add("--json", action="store_true", help="print the answers to -i as JSON, one per line")
    add(
        "--logprobs",
        type=int,
        metavar="N",
        help=Advanced(
            "with --json: log-probabilities of each token and N alternatives (default: none)"
        ),
    )
    add(
        "--apply",
        action="append",
        metavar="NAME[=SCALE]",
        help="adapter to apply (default: those of --adapter, with scale 1)",
    )
    add("--schema", metavar="FILE", help="JSON schema that answers satisfy (default: none)")
    add("--system", type=utf8_text, metavar="TEXT", help="system message (default: none)")
    add("--plain", action="store_true", help="print answers as they are, not as Markdown")
    add("--no-history", action="store_true", help="do not keep what is typed in the chat")
    add("--raw", action="store_true", help="continue the text, without a chat template")
    add(
        "--no-parse-special",
        action="store_true",
        help="with --raw: control tokens in the text are text (default: they become tokens)",
    )
    add("--think", action=argparse.BooleanOptionalAction, help="enable or disable reasoning")
    add("--thinking-budget", type=int, metavar="N", help="most tokens of reasoning (default: all)")
    add_sampling_options(group, *SAMPLING)


def run(args: argparse.Namespace) -> int:
    check_raw(args)
    files = take_inputs(args)
    check_name(args)
    args.input = read_input(args)
    args.attachments = [
        *(read_attachment(file, kind) for kind, file in attached(args)),
        *map(read_attachment, files),
    ]
    check_input(args)
    conversation = make_conversation(args)
    start = time.perf_counter()
    model = load(args)
    if args.explain:
        sampling = sampling_line(model, conversation)
        print("\n".join([*model.loaded.explain, sampling]), file=sys.stderr)
    if args.input is None:
        return chat(args, model, conversation, start)
    try:
        conversation.messages.append(user_message(args.input, args.attachments))
        if args.json or args.choices is not None:
            print_answers(model, args, conversation)
            return 0
        display = open_display(args.plain)
        answer = print_answer(model, conversation, display, raw=args.raw)
        return 130 if answer.finish is None else 0
    finally:
        model.close()


def sampling_line(model: LocalModel, conversation: Conversation) -> str:
    """The sampling parameters of answers with their sources, and the limit on their length."""
    hidden = ("stop", "schema")
    given = {name: x for name, x in conversation.sampling.items() if name not in hidden}
    limit = given.pop("max_tokens", None)
    context = f"the context of {model.model.context} tokens, or when they repeat themselves"
    length = f"{limit} tokens (-n)" if limit else context
    used = model.sampling_defaults.override(given, "options")
    return f"sampling: {used}; answers end at {length}"


def load(args: argparse.Namespace) -> LocalModel:
    """Load the model of the options, with a progress bar on a terminal."""
    from ostro.entrypoints.python.load import load_text

    def check(model: ServedModel) -> None:
        report_base_model(model, args)
        check_media(model, args.attachments)  # before its weights are read

    with loading() as report:
        return load_text(parse_settings(args), args.plugin, progress=report, check=check)


def chat(
    args: argparse.Namespace, model: LocalModel, conversation: Conversation, start: float
) -> int:
    """Chat in the terminal until the user leaves. Closes the model, whose loading began at `start`.

    The line editor is ready before the first line is printed: keys typed earlier are echoed twice.
    """
    from ostro.entrypoints.cli.chat.commands import attach_part
    from ostro.entrypoints.cli.chat.editor import Editor
    from ostro.entrypoints.cli.chat.session import Session, note

    session = Session(model, conversation, open_display(args.plain), OptionsLoader(args), args.raw)
    try:
        for part in args.attachments:
            attach_part(session, part)
        editor = Editor(session, history=not args.no_history)
        seconds = time.perf_counter() - start
        note(f"{model.name}, ready in {seconds:.1f} s. /help for commands.")
        note(sampling_line(model, conversation))
        return session.run(editor.read)
    finally:
        session.model.close()


class OptionsLoader:
    """Loads models with the options of the command."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args

    def check(self, reference: str) -> None:
        """Raise an OstroError if the model cannot be found; reads no weights."""
        from ostro.core.plugins.manager import PluginManager
        from ostro.entrypoints.open import find_model

        settings = parse_settings(self._replace(reference))
        plugins = PluginManager()
        plugins.load(settings, self.args.plugin)
        find_model(settings, plugins)

    def load(self, reference: str | None) -> LocalModel:
        """Load a model; None is that of the options. Raises an OstroError."""
        return load(self.args if reference is None else self._replace(reference))

    def _replace(self, reference: str) -> argparse.Namespace:
        """The options for another model: those of the first one's files and name are dropped."""
        names = "name arch tokenizer chat_template tool_parser reasoning_parser revision"
        own = [*names.split(), "adapter_folder"]
        changed: dict[str, Any] = {"model": reference, "adapters": [], "attachments": []}
        changed |= dict.fromkeys(own)
        return argparse.Namespace(**{**vars(self.args), **changed})


def take_inputs(args: argparse.Namespace) -> list[str]:
    """Set the model and the prompt from the positionals; returns the files among them.

    Raises UsageError for several prompts.
    """
    prompt, files = split_inputs(take_model(args, [args.first, *args.inputs], texts=True))
    if prompt is not None and args.input is not None:
        raise UsageError(
            f"expected one prompt, got {prompt[:80]!r}, which is not a file, and -i; remove one"
        )
    args.input = args.input if prompt is None else utf8_text(prompt)
    return files


def check_name(args: argparse.Namespace) -> None:
    """Raise an OstroError for a name that is neither a model nor an alias.

    Standard input may never end, so the name is checked before. Aliases and ids of the hub may need
    a download; `load` finds them.
    """
    from ostro.core.load.open import find
    from ostro.core.plugins.manager import PluginManager

    if args.model is None or ("/" in args.model and not looks_like_path(args.model)):
        return
    settings = parse_settings(args)
    plugins = PluginManager()
    plugins.load(settings, args.plugin)
    if args.model in plugins.collect("aliases"):
        return
    path = find(settings, plugins)
    if args.model != args.first or not path.is_file():
        return
    if not plugins.claimant("checkpoints", lambda c: c.claims(path), path.name):
        raise UsageError(
            f"{args.model} is no model, which the first word names; attach the file with "
            f"--file {args.model}"
        )


def read_input(args: argparse.Namespace) -> str | None:
    """The prompt: piped text, then that of the options. None starts a chat in the terminal.

    Raises UsageError if there is neither a prompt nor a terminal.
    """
    piped = read_piped()
    found = [text for text in (piped, args.input) if text is not None]
    if not found and (sys.stdin is None or not sys.stdin.isatty()):
        raise UsageError("standard input is empty; pass a prompt, or pipe text")
    return "\n\n".join(found) if found else None


def attached(args: argparse.Namespace) -> list[tuple[str | None, str]]:
    """The kinds and files of --image, --audio, --video and --file."""
    return [
        (None if kind == "file" else kind, file) for kind in KINDS for file in getattr(args, kind)
    ]


def make_conversation(args: argparse.Namespace) -> Conversation:
    """An empty conversation with the settings of the options.

    Raises UsageError for a sampling parameter out of range.
    """
    from ostro.core.messages.requests import unusual_values

    applied = args.apply or [entry.partition("=")[0] for entry in args.adapters]
    values = {name: getattr(args, name) for name in SAMPLING}
    if args.thinking_budget is not None and args.thinking_budget < 0:
        raise UsageError(f"--thinking-budget {args.thinking_budget} is negative")
    if args.max_tokens == 0:
        raise UsageError("-n 0 generates nothing; use at least 1")
    try:
        read_sampling({**values, "n": args.choices, "logprobs": args.logprobs})
    except RequestError as error:
        raise UsageError(str(error)) from None
    if warning := unusual_values(values):
        print(f"ostro: {warning}", file=sys.stderr)
    values["schema"] = None if args.schema is None else read_schema(args.schema)
    return Conversation(
        system=args.system,
        think=args.think,
        thinking_budget=args.thinking_budget,
        parse_special=not args.no_parse_special,
        sampling={name: x for name, x in values.items() if x not in (None, [])},
        adapters=dict(parse_choice(word) for word in applied),
    )


def read_schema(file: str) -> dict[str, Any]:
    """The JSON schema in a file. Raises UsageError if it cannot be read, or is no object."""
    try:
        schema = json.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--schema {file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--schema {file}: not valid JSON: {error}") from None
    if not isinstance(schema, dict):
        raise UsageError(f"--schema {file}: expected a JSON schema, which is an object")
    return schema


def check_raw(args: argparse.Namespace) -> None:
    """Raise UsageError for options of the chat template with --raw, and of text without it."""
    if args.no_parse_special and not args.raw:
        raise UsageError("--no-parse-special requires --raw: messages have no control tokens")
    given = {
        "--system": args.system is not None,
        "--think": args.think is not None,
        "--thinking-budget": args.thinking_budget is not None,
        "--chat-template": args.chat_template is not None,
    }
    for option, used in given.items():
        if args.raw and used:
            raise UsageError(f"--raw uses no chat template and cannot be combined with {option}")


def check_input(args: argparse.Namespace) -> None:
    """Raise UsageError for options of one prompt without it, and for media with --raw."""
    if args.raw and any(part["type"] != "text" for part in args.attachments):
        raise UsageError("images, audio and videos cannot be combined with --raw")
    if (args.choices is not None or args.json) and args.input is None:
        raise UsageError("--choices and --json require a prompt")
    if args.logprobs is not None and not args.json:
        raise UsageError("--logprobs requires --json")


def print_answers(model: LocalModel, args: argparse.Namespace, conversation: Conversation) -> None:
    """Print all answers to -i, as text or as JSON.

    JSON has index, text, reasoning if there is any, tokens, finish and logprobs.
    """
    arguments = {"n": args.choices, "logprobs": args.logprobs}
    answer, display = start_answer(model, conversation, raw=args.raw, **arguments), PlainDisplay()
    for choice in answer.collect():
        if not args.json:
            if choice.reasoning:
                display.reason(choice.reasoning)
            display.write(choice.text)
            display.finish()
            continue
        fields: dict[str, Any] = {
            "index": choice.index,
            "text": choice.text,
            **({"reasoning": choice.reasoning} if choice.reasoning else {}),
            "tokens": choice.tokens,
            "finish": choice.finish,
        }
        if args.logprobs is not None:
            entries = [entry for entry in choice.logprobs or () if entry is not None]
            fields["logprobs"] = [{"logprob": x.logprob, "top": x.top} for x in entries]
        print(json.dumps(fields, ensure_ascii=not writes_unicode()))
