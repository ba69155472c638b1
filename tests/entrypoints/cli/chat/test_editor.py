"""The line editor of the chat, with keys from a pipe in the place of a terminal."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from ostro.entrypoints.cli.chat import editor
from ostro.entrypoints.cli.chat.editor import Editor, LineCompleter
from ostro.entrypoints.cli.chat.session import Session, unquote

LEFT, UP, HOME, ENTER, ALT_ENTER = "\x1b[D", "\x1b[A", "\x1b[H", "\r", "\x1b\r"
SEARCH, LEAVE = "\x12", "\x03"
PASTE, PASTED = "\x1b[200~", "\x1b[201~"

Type = Callable[..., list[str]]


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[PipeInput]:
    monkeypatch.setattr(editor, "create_output", lambda **_: DummyOutput())
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        yield pipe


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "ostro" / "history"


@pytest.fixture
def read(keys: PipeInput, open_session: Callable[..., Session]) -> Type:
    """Type keys and return the messages that were read."""

    def run(*typed: str, history: bool = True, draft: str = "") -> list[str]:
        reader = Editor(open_session(), history=history)
        found = []
        for text in typed:
            keys.send_text(text)
            found.append(reader.read(draft))
        return found

    return run


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("ac" + LEFT + "b" + ENTER, "abc"),
        ("bc" + HOME + "a" + ENTER, "abc"),
        ("a" + ALT_ENTER + "b" + ENTER, "a\nb"),
        ('"""a' + ENTER + "b" + ENTER + '"""' + ENTER, '"""a\nb\n"""'),
        (PASTE + "a\r\nb\nc" + PASTED + ENTER, "a\nb\nc"),
        ("wrong\x03right" + ENTER, "right"),
    ],
)
def test_keys(read: Type, state: Path, typed: str, message: str) -> None:
    assert read(typed) == [message]


def test_a_paste_of_200_lines_is_one_message(read: Type, state: Path) -> None:
    text = "\n".join(f"line {i}" for i in range(200))
    assert read(f"{PASTE}{text}{PASTED}{ENTER}") == [text]


def test_the_history_is_kept_between_runs_and_private(read: Type, state: Path) -> None:
    read("first" + ENTER, f"{PASTE}two\nlines{PASTED}{ENTER}")
    assert stat.S_IMODE(state.stat().st_mode) == 0o600
    assert stat.S_IMODE(state.parent.stat().st_mode) == 0o700
    assert read(UP + ENTER) == ["two\nlines"]
    # The last two messages are the same: the history keeps one.
    assert read(UP + UP + UP + ENTER) == ["first"]


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (SEARCH + "ir" + ENTER + ENTER, "first"),
        (SEARCH + "ir" + ENTER + "!" + ENTER, "f!irst"),
        (SEARCH + "s" + SEARCH + ENTER + ENTER, "first"),
        (SEARCH + "ir" + LEAVE + "new" + ENTER, "new"),
        ("dra" + SEARCH + "ir" + LEAVE + "ft" + ENTER, "draft"),
        (SEARCH + "ir\x07new" + ENTER, "new"),
    ],
)
def test_a_search_of_the_history_ends(read: Type, state: Path, typed: str, message: str) -> None:
    assert read("first" + ENTER, "second" + ENTER, typed)[-1] == message


@pytest.mark.parametrize("off", ["option", "variable"])
def test_the_history_can_be_turned_off(
    read: Type, state: Path, monkeypatch: pytest.MonkeyPatch, off: str
) -> None:
    if off == "variable":
        monkeypatch.setenv("OSTRO_HISTORY", "off")
    assert read("a" + ENTER, UP + ENTER, history=off != "option") == ["a", "a"]
    assert not state.exists()


def test_the_history_may_be_another_file(
    read: Type, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSTRO_HISTORY", str(tmp_path / "mine"))
    read("hello" + ENTER)
    assert "+hello" in (tmp_path / "mine").read_text() and not state.exists()


def test_a_long_history_loses_its_older_half(
    read: Type, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(editor, "MAX_HISTORY", 2000)
    state.parent.mkdir(parents=True)
    state.write_text("".join(f"\n# time\n+message {i}\n" for i in range(200)))
    assert read(UP + ENTER) == ["message 199"]
    assert state.stat().st_size < 1200 and state.read_text().startswith("\n# ")


def test_a_state_folder_that_cannot_be_made(
    read: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert read("a" + ENTER, UP + ENTER) == ["a", "a"]
    assert "the history is not kept" in capsys.readouterr().err


def test_ctrl_c_and_ctrl_d_of_an_empty_line(read: Type, state: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        read("\x03")
    with pytest.raises(EOFError):
        read("\x04")


def test_a_draft_is_edited(read: Type, state: Path) -> None:
    assert read("!" + ENTER, draft="hello") == ["hello!"]


def completions(session: Session, text: str) -> list[str]:
    found = LineCompleter(session).get_completions(Document(text), CompleteEvent())
    return [each.text for each in found]


def test_commands_names_and_files_are_completed(
    open_session: Callable[..., Session], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_session()
    assert completions(session, "/re") == ["retry"]
    assert completions(session, "/set temp") == ["temperature"]
    assert completions(session, "/show me") == ["messages"]
    assert completions(session, "/adapter re") == ["remove"]
    assert completions(session, "re") == [] == completions(session, "/nothing a")
    (tmp_path / "image one.png").write_text("")
    monkeypatch.chdir(tmp_path)
    assert completions(session, "/image im") == ["age one.png"]


@pytest.mark.parametrize(
    ("text", "inner"),
    [('"""a"""', "a"), ('  """\na\n"""\n', "\na\n"), ('"""', None), ('"""a', None), ("a", None)],
)
def test_triple_quotes(text: str, inner: str | None) -> None:
    assert unquote(text) == inner
