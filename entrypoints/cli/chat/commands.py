"""The commands of a chat: lines that begin with "/"."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostro.core.errors import OstroError, UsageError, nearest
from ostro.core.messages.requests import unusual_values
from ostro.entrypoints.cli.chat import conversation as files
from ostro.entrypoints.cli.chat.adapters import ACTIONS, change_adapters, describe_adapters
from ostro.entrypoints.cli.chat.attachments import check_media, read_attachment
from ostro.entrypoints.cli.chat.base_model import continues_text
from ostro.entrypoints.cli.chat.conversation import read_sampling, text_of
from ostro.entrypoints.cli.chat.session import note

if TYPE_CHECKING:
    from ostro.entrypoints.cli.chat.session import Session

PARAMETERS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "max_tokens",
    "min_tokens",
    "stop",
)
"""Sampling parameters that /set accepts."""

SUBJECTS = ("model", "system", "sampling", "adapters", "messages", "reasoning")
"""What /show prints."""

KEYS = '''\
"""         begin and end a message of several lines; Alt-Enter also begins a new line
Ctrl-C       stop the answer; twice: leave
Ctrl-D       leave
Up, Down     earlier messages; Ctrl-R searches them
Tab          complete commands, names and files
Ctrl-X Ctrl-E  edit the message in $EDITOR
A message that begins with "/" needs a space before it.'''


@dataclass(frozen=True)
class Command:
    """A command; `run` gets the session and the rest of the line.

    `complete` returns the words that may follow; `files` completes paths.
    """

    arguments: str
    help: str
    run: Callable[[Session, str], None]
    complete: Callable[[Session], Iterable[str]] = lambda session: ()
    files: bool = False


def run_command(session: Session, line: str) -> None:
    """Run a line that begins with "/". Raises an OstroError."""
    name, _, rest = line.strip()[1:].partition(" ")
    name = ALIASES.get(name, name)
    if name not in COMMANDS:
        parameter = f"; nearest: set {name}" if name in PARAMETERS else ""
        near = parameter or nearest(name, COMMANDS, n=1)
        raise UsageError(f"unknown command /{name:.40}{near.replace(': ', ': /')}; see /help")
    command, rest = COMMANDS[name], rest.strip()
    if rest and not command.arguments:
        raise UsageError(f"/{name} takes nothing after it, got {rest[:40]!r}")
    command.run(session, rest)


def words_of(text: str) -> list[str]:
    """Split arguments as a shell does. Raises UsageError for an open quote."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{text:.80}: {error}") from None


def one_word(text: str, usage: str) -> str:
    """The only argument; a path with spaces needs no quotes. Raises UsageError for several."""
    if text and Path(text).expanduser().exists():
        return text
    words = words_of(text)
    if len(words) != 1:
        raise UsageError(f"expected {usage}; put a name with spaces in quotes")
    return words[0]


def print_help(session: Session, rest: str) -> None:
    name = rest.removeprefix("/")
    if not name:
        lines = [f"/{key} {each.arguments}".rstrip() for key, each in COMMANDS.items()]
        helps = [each.help for each in COMMANDS.values()]
        width = max(map(len, lines)) + 2
        note("\n".join(f"{line:{width}}{text}" for line, text in zip(lines, helps, strict=True)))
        note(f"\n{KEYS}")
    elif name in COMMANDS:
        command = COMMANDS[name]
        note(f"/{name} {command.arguments}".rstrip() + f"\n{command.help}")
        if name == "set":
            note(f"parameters: {', '.join(PARAMETERS)}, think, system")
    else:
        raise UsageError(f"unknown command /{name:.40}{nearest(name, COMMANDS, n=1)}")


def set_parameter(session: Session, rest: str) -> None:
    """/set [NAME VALUE]; "default" removes a value."""
    name, _, value = rest.removeprefix("parameter ").partition(" ")
    value = value.strip()
    if not name:
        show_sampling(session)
    elif name == "system":
        set_system(session, value)
    elif name not in (*PARAMETERS, "think"):
        near = nearest(name, (*PARAMETERS, "think", "system"), n=1)
        raise UsageError(f"unknown parameter {name[:40]!r}{near}; /help set lists them")
    elif not value:
        raise UsageError(f"expected /set {name} VALUE, or /set {name} default")
    elif name == "think":
        set_thinking(session, value)
    else:
        sampling = {key: x for key, x in session.conversation.sampling.items() if key != name}
        if value != "default":
            sampling[name] = tuple(words_of(value)) if name == "stop" else value
        checked = read_sampling(sampling, session.model.sampling_defaults.values)
        session.conversation.sampling = {
            key: getattr(checked, key, x) for key, x in sampling.items()
        }
        note(f"{name} = {written(getattr(checked, name))}")
        if warning := unusual_values({name: getattr(checked, name)}):
            note(warning)


def written(value: Any) -> str:
    """A value as /set takes it: the texts of a list in quotes, "none" for none."""
    if isinstance(value, tuple):
        return shlex.join(value) or "none"
    return "none" if value is None else str(value)


def set_thinking(session: Session, value: str) -> None:
    """Enable or disable reasoning: the template's variable enable_thinking."""
    values = {"on": True, "off": False, "default": None}
    if value not in values:
        raise UsageError("expected /set think on, off or default")
    session.conversation.think = values[value]


def show(session: Session, rest: str) -> None:
    """/show [SUBJECT]"""
    subjects: dict[str, Callable[[Session], None]] = {
        "model": show_model,
        "system": lambda s: note(s.conversation.system or "no system message"),
        "sampling": show_sampling,
        "adapters": lambda s: note(describe_adapters(s)),
        "messages": show_messages,
        "reasoning": lambda s: note((s.answer and s.answer.reasoning) or "no reasoning"),
    }
    if not rest:
        for subject in ("model", "system", "sampling", "adapters"):
            subjects[subject](session)
    elif rest in subjects:
        subjects[rest](session)
    else:
        raise UsageError(f"expected /show {' | '.join(SUBJECTS)}")


def show_model(session: Session) -> None:
    model = session.model
    note(f"{model.name}: {model.model.architecture.name}, context {model.model.context} tokens")


def show_sampling(session: Session) -> None:
    """Print the values that apply to the next answer; * marks those of this chat.

    Defaults of the model and of the fallback have their source in parentheses.
    """
    given, defaults = session.conversation.sampling, session.model.sampling_defaults
    values, sources = read_sampling(given, defaults.values), defaults.sources
    for name in PARAMETERS:
        source = f" ({sources[name]})" if name in sources and name not in given else ""
        note(f"{'*' if name in given else ' '} {name} = {written(getattr(values, name))}{source}")
    if session.conversation.think is not None:
        note(f"* think = {'on' if session.conversation.think else 'off'}")


def show_messages(session: Session) -> None:
    for message in session.conversation.messages:
        media = [f"[{part['type']}]" for part in files.media_of(message)]
        note(f"{message['role']}: {' '.join([*media, text_of(message)])}")
    for part in session.attachments:
        note(f"attached: {part[part['type']]:.80}")


def set_system(session: Session, text: str) -> None:
    if continues_text(session.model, session.conversation, raw=session.raw):
        raise UsageError("a system message needs a chat template; --raw and base models use none")
    session.conversation.system = text or None


def retry(session: Session, rest: str) -> None:
    if not session.retry():
        raise UsageError("there is no message to answer again")


def undo(session: Session, rest: str) -> None:
    removed = session.undo()
    if removed is None:
        raise UsageError("there is no message to remove")
    note(f"removed: {text_of(removed)[:200]}")


def edit(session: Session, rest: str) -> None:
    if not session.edit():
        raise UsageError("there is no message to edit")


def save(session: Session, rest: str) -> None:
    file = file_of(session, rest, "/save FILE")
    session.conversation.model = session.model.name
    files.save(session.conversation, file)
    session.file = file
    note(f"saved {len(session.conversation.messages)} messages to {file}")


def load(session: Session, rest: str) -> None:
    """Replace the conversation by a saved one, after all of it has been checked."""
    file = file_of(session, rest, "/load FILE")
    found = files.load(file)
    try:
        read_sampling(found.sampling)
        session.model.mixture(found.adapters, [])
    except OstroError as error:
        raise UsageError(f"{file}: {error}") from None
    session.conversation, session.file = found, file
    session.attachments.clear()
    note(f"loaded {len(found.messages)} messages from {file}")


def file_of(session: Session, rest: str, usage: str) -> Path:
    """The file of /save or /load: the argument, or that of the last one."""
    if not rest and session.file is not None:
        return session.file
    return Path(one_word(rest, usage)).expanduser()


def attach(kind: str | None) -> Callable[[Session, str], None]:
    """The command that attaches a file of a kind to the next message."""

    def run(session: Session, rest: str) -> None:
        file = one_word(rest, f"/{kind or 'file'} FILE")
        attach_part(session, read_attachment(file, kind))
        note(f"attached to the next message: {file}")

    return run


def attach_part(session: Session, part: dict[str, Any]) -> None:
    """Attach a part to the next message. Raises an OstroError unless the model supports it."""
    check_media(session.model.model, [part])
    session.attachments.append(part)


def set_adapters(session: Session, rest: str) -> None:
    change_adapters(session, words_of(rest))
    note(describe_adapters(session))


def change_model(session: Session, rest: str) -> None:
    if rest:
        session.change_model(one_word(rest, "/model REF"))
    show_model(session)


def show_stats(session: Session, rest: str) -> None:
    if rest in ("on", "off"):
        session.stats = rest == "on"
    elif rest:
        raise UsageError("expected /stats, /stats on or /stats off")
    elif session.answer is None:
        raise UsageError("there is no answer yet")
    else:
        note(session.answer.describe(session.model.model.context))


def clear(session: Session, rest: str) -> None:
    session.clear()


def leave(session: Session, rest: str) -> None:
    session.ended = True


def adapter_words(session: Session) -> list[str]:
    return [*ACTIONS, *(info.name for info in session.model.adapters)]


COMMANDS: dict[str, Command] = {
    "help": Command("[COMMAND]", "print this help", print_help, lambda session: COMMANDS),
    "set": Command(
        "[NAME VALUE]",
        "set a sampling parameter, or think on/off; VALUE default removes it",
        set_parameter,
        lambda session: (*PARAMETERS, "think", "system"),
    ),
    "show": Command("[SUBJECT]", ", ".join(SUBJECTS), show, lambda session: SUBJECTS),
    "retry": Command("", "answer the last message again", retry),
    "undo": Command("", "remove the last message and its answer", undo),
    "edit": Command("", "edit the last message and send it again", edit),
    "save": Command("[FILE]", "write the conversation as JSON", save, files=True),
    "load": Command("[FILE]", "read a conversation that /save wrote", load, files=True),
    "system": Command("[TEXT]", "set the system message; without TEXT remove it", set_system),
    "image": Command("FILE", "attach an image to the next message", attach("image"), files=True),
    "audio": Command("FILE", "attach audio to the next message", attach("audio"), files=True),
    "video": Command("FILE", "attach a video to the next message", attach("video"), files=True),
    "file": Command("FILE", "attach a text file, or media", attach(None), files=True),
    "adapter": Command(
        "[ACTION]",
        "list adapters; add NAME REF [SCALE], scale NAME SCALE, remove NAME, A=0.5 B=0.7, none",
        set_adapters,
        adapter_words,
    ),
    "model": Command("[REF]", "show the model, or load another one", change_model, files=True),
    "stats": Command(
        "[on|off]",
        "tokens/s and context of the last answer; on prints them after every answer",
        show_stats,
        lambda session: ("on", "off"),
    ),
    "clear": Command("", "clear the conversation", clear),
    "exit": Command("", "leave (or Ctrl-D)", leave),
}

ALIASES = {"quit": "exit", "bye": "exit", "?": "help", "h": "help", "q": "exit"}
"""Other names of commands, which other programs have."""
