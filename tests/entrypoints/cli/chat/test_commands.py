"""The commands of a chat, without a model: what they change and what they refuse."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ostro.core.errors import ContextLengthExceeded
from ostro.entrypoints.cli.chat.commands import ALIASES, COMMANDS, run_command
from ostro.entrypoints.cli.chat.session import Session, wrapped

Open = Callable[..., Session]
ROOT = Path(__file__).parents[4]


def texts(session: Session) -> list[Any]:
    return [message["content"] for message in session.conversation.messages]


def test_messages_and_answers_alternate(open_session: Open, capsys) -> None:
    session = open_session("one", "two")
    for line in ("hello", "  ", "/not a command"[1:], " /usr is a folder"):
        session.handle(line)
    assert texts(session) == [
        "hello",
        "one",
        "not a command",
        "two",
        "/usr is a folder",
        "answer 3",
    ]
    assert capsys.readouterr().out == "one\ntwo\nanswer 3\n"


def test_text_between_triple_quotes_is_one_message(open_session: Open) -> None:
    session = open_session()
    session.handle('"""/exit\nis text\n"""')
    assert texts(session)[0] == "/exit\nis text" and not session.ended


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/bogus", "unknown command /bogus; see /help"),
        ("/exti", "unknown command /exti; nearest: /exit; see /help"),
        ("/temperature 0", "unknown command /temperature; nearest: /set temperature; see /help"),
        ("/set temprature 1", "unknown parameter 'temprature'; nearest: temperature"),
        ("/set temperature", "expected /set temperature VALUE"),
        ("/set temperature hot", "temperature: expected a number, got 'hot'"),
        ("/set seed 1.5", "seed: expected an integer, got '1.5'"),
        ("/set max_tokens many", "max_tokens: expected an integer, got 'many'"),
        ("/set temperature -1", "temperature=-1.0 is not within 0..100"),
        ("/set think maybe", "expected /set think on, off or default"),
        ('/set stop "open', "No closing quotation"),
        ("/show nothing", "expected /show model"),
        ("/retry", "there is no message to answer again"),
        ("/undo", "there is no message to remove"),
        ("/undo 3", "/undo takes nothing after it, got '3'"),
        ("/clear all", "/clear takes nothing after it"),
        ("/retry now", "/retry takes nothing after it"),
        ("/exit now", "/exit takes nothing after it"),
        ("/edit", "there is no message to edit"),
        ("/save", "expected /save FILE"),
        ("/load /nowhere/a.json", "/nowhere/a.json cannot be read: No such file"),
        ("/image /nowhere/a.png", "/nowhere/a.png: No such file"),
        ("/file a b", "expected /file FILE; put a name with spaces in quotes"),
        ("/stats", "there is no answer yet"),
        ("/stats maybe", "expected /stats"),
        ("/help bogus", "unknown command /bogus"),
        ("/model missing", "missing: no such model"),
        ("/adapter add x", "expected /adapter add NAME REF"),
        ("/adapter scale x y", "'y': invalid scale"),
        ("/adapter missing", "no adapter 'missing'"),
    ],
)
def test_a_wrong_command_is_refused_and_changes_nothing(
    open_session: Open, capsys, line: str, message: str
) -> None:
    session = open_session()
    before = session.conversation.__copy__()
    session.handle(line)
    out, err = capsys.readouterr()
    assert err.startswith("ostro: ") and message in err and not out
    assert session.conversation == before and not session.ended


def test_notes_are_wrapped_between_words() -> None:
    text = "/set [NAME VALUE]  set a sampling parameter, or think on/off\n\n"
    text += "see https://a.b/" + "c" * 50
    lines = wrapped(text, 40).split("\n")
    assert lines == [
        "/set [NAME VALUE]  set a sampling",
        "parameter, or think on/off",
        "",
        "see",
        "https://a.b/" + "c" * 50,
    ]
    assert wrapped(text, 80) == text


def test_set_changes_the_next_answer(open_session: Open, capsys) -> None:
    session = open_session()
    for line in (
        "/set temperature 0.25",
        "/set parameter top_k 7",
        '/set stop "END" "a b"',
        "/set seed 3",
        "/set seed default",
        "/set think off",
        "hello",
    ):
        session.handle(line)
    used = session.model.used[0]
    assert (used["temperature"], used["top_k"], used["stop"]) == (0.25, 7, ("END", "a b"))
    assert "seed" not in used and used["chat_template_kwargs"] == {"enable_thinking": False}
    capsys.readouterr()
    session.handle("/set")
    shown = capsys.readouterr().err
    assert (
        "* temperature = 0.25\n" in shown
        and "  seed = none\n" in shown
        and "* stop = END 'a b'\n" in shown
    )
    assert "  min_p = 0.05 (fallback)\n" in shown


@pytest.mark.parametrize(
    ("line", "warning"),
    [
        ("/set temperature 9", "temperature 9 is outside the usual range of 0 to 2\n"),
        ("/set repetition_penalty 0.1", "repetition_penalty 0.1 is outside the usual"),
        ("/set presence_penalty -5", "presence_penalty -5 is outside the usual range of -2 to 2"),
        ("/set frequency_penalty 3", "frequency_penalty 3 is outside the usual"),
    ],
)
def test_an_unusual_value_is_set_with_a_warning(
    open_session: Open, capsys, line: str, warning: str
) -> None:
    session = open_session()
    session.handle(line)
    assert warning in capsys.readouterr().err and len(session.conversation.sampling) == 1
    session.handle("/set top_k 5")
    session.handle("/set temperature 2")
    assert "usual" not in capsys.readouterr().err


def test_a_system_message_is_set_shown_and_removed(open_session: Open, capsys) -> None:
    session = open_session()
    for line in ("/system be brief", "one", "/show system", "/system", "two"):
        session.handle(line)
    first, second = session.model.prompts
    assert first[0] == {"role": "system", "content": "be brief"} and second[0]["role"] == "user"
    assert "be brief" in capsys.readouterr().err


def test_retry_replaces_the_last_answer(open_session: Open) -> None:
    session = open_session("one", "two", ContextLengthExceeded("too long"))
    session.handle("hello")
    session.handle("/retry")
    assert texts(session) == ["hello", "two"]
    assert [p[-1]["content"] for p in session.model.prompts] == ["hello", "hello"]
    session.handle("/retry")  # it fails: the answer stays
    assert texts(session) == ["hello", "two"]


def test_undo_edit_and_clear(open_session: Open) -> None:
    session = open_session()
    for line in ("one", "two", "/undo"):
        session.handle(line)
    assert texts(session) == ["one", "answer 1"]
    session.handle("/edit")
    assert texts(session) == [] and session.draft == "one"
    session.handle("three")
    session.handle("/clear")
    assert texts(session) == []


def test_a_failed_answer_leaves_the_conversation(open_session: Open, capsys) -> None:
    session = open_session("one", ContextLengthExceeded("too long"), "two")
    for line in ("hello", "long", "again"):
        session.handle(line)
    assert texts(session) == ["hello", "one", "again", "two"]
    said = capsys.readouterr().err
    assert "ostro: too long; the message was not added, /clear clears" in said
    assert "/undo" not in said


def test_a_text_file_is_part_of_the_next_message(open_session: Open, tmp_path: Path) -> None:
    file = tmp_path / "my notes.md"
    file.write_text("buy milk\n")
    session = open_session()
    session.handle(f"/file {file}")
    session.handle("what must I buy?")
    session.handle(f'/file "{file}"')
    session.handle("and now?")
    text = "File my notes.md:\n\nbuy milk\n\n"
    assert texts(session)[::2] == [f"{text}what must I buy?", f"{text}and now?"]
    assert not session.attachments


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"a\0b"])
def test_other_files_are_refused(open_session: Open, tmp_path: Path, capsys, data: bytes) -> None:
    file = tmp_path / "data.bin"
    file.write_bytes(data)
    session = open_session()
    session.handle(f"/file {file}")
    assert "neither UTF-8 text nor an image" in capsys.readouterr().err
    assert not session.attachments


def test_an_image_is_refused_by_a_model_of_text(open_session: Open, tmp_path: Path, capsys) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    session = open_session()
    for name in ("image", "file"):
        session.handle(f"/{name} {tmp_path / 'a.png'}")
        assert "accepts text only, not image" in capsys.readouterr().err
    assert not session.attachments


def test_another_model_continues_the_conversation(open_session: Open, capsys) -> None:
    session = open_session()
    session.handle("hello")
    first: Any = session.model
    session.handle("/model other")
    assert first.closed and session.model.name == "other" and len(texts(session)) == 2
    session.handle("/model broken")
    assert "broken: no weights" in capsys.readouterr().err and session.model.name == "other"
    loader: Any = session.loader
    assert loader.loaded == ["other", "broken", "other"]


def test_stats_count_tokens_and_context(open_session: Open, capsys) -> None:
    session = open_session("abcde")
    session.handle("hello")
    capsys.readouterr()
    session.handle("/stats")
    err = capsys.readouterr().err
    assert "prompt: 10 tokens" in err and "answer: 5 tokens in " in err and "tokens/s" in err
    assert "context: 15 of 1000 tokens (2%)" in err and "ended by stop" in err
    session.handle("/stats on")
    session.handle("hello")
    assert "context: 18 of 1000" in capsys.readouterr().err


def test_reasoning_is_shown_and_not_repeated(open_session: Open, capsys) -> None:
    session = open_session("<think>\nbecause\n</think>\n\nyes")
    for line in ("why?", "/show reasoning", "and?"):
        session.handle(line)
    answer = session.model.prompts[1][1]
    assert answer == {"role": "assistant", "content": "yes", "reasoning_content": "because"}
    out, err = capsys.readouterr()
    assert out.startswith("<think>\nbecause\n</think>\n\nyes\n") and err == "because\n"


@pytest.mark.parametrize("tty", [False, True])
def test_control_characters_are_visible_on_a_terminal_only(
    open_session: Open, capsys, monkeypatch: pytest.MonkeyPatch, tty: bool
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: tty, raising=False)
    session = open_session("a\x1bc\n")
    session.handle("hello")
    session.handle("/show messages")
    out, err = capsys.readouterr()
    assert out == ("a␛c\n\n" if tty else "a\x1bc\n\n") and "\x1b" not in err


def test_empty_reasoning_is_not_printed(open_session: Open, capsys) -> None:
    open_session("<think>\n\n</think>\n\nyes").handle("why?")
    assert capsys.readouterr().out == "yes\n"


def test_one_interrupt_stops_an_answer_and_two_end_the_chat(open_session: Open, capsys) -> None:
    session = open_session("abc\x03def")
    steps = iter(["hello", KeyboardInterrupt(), "never"])

    def read(draft: str) -> str:
        step = next(steps)
        if isinstance(step, BaseException):
            raise step
        return step

    assert session.run(read) == 0
    assert texts(session) == ["hello", "abc"] and next(steps) == "never"
    assert capsys.readouterr().out == "abc\n"


def test_a_chat_ends_with_its_input_or_two_interrupts(open_session: Open, capsys) -> None:
    calls = []

    def interrupt(draft: str) -> str:
        calls.append(draft)
        raise KeyboardInterrupt

    assert open_session().run(interrupt) == 0 and len(calls) == 2
    assert "Ctrl-C again or Ctrl-D" in capsys.readouterr().err
    for line in ("/exit", "/quit", "/bye"):
        lines = iter([line, "never"])
        assert open_session().run(lambda draft, lines=lines: next(lines)) == 0
        assert next(lines) == "never"


def test_a_conversation_is_saved_and_loaded(open_session: Open, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    first = open_session()
    for line in ("/system be brief", "/set top_k 4", "/adapter sql=0.5", "hello", f"/save {file}"):
        first.handle(line)
    second = open_session()
    second.handle(f"/load {file}")
    for name in ("system", "sampling", "adapters", "messages"):
        assert getattr(second.conversation, name) == getattr(first.conversation, name) != []
    second.handle("again")
    second.handle("/save")  # the same file
    assert len(json.loads(file.read_text())["messages"]) == 4


def test_another_file_is_not_overwritten(open_session: Open, tmp_path: Path, capsys) -> None:
    file = tmp_path / "notes.md"
    file.write_text("mine")
    open_session().handle(f"/save {file}")
    assert file.read_text() == "mine" and "is not a saved conversation" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not a saved conversation"),
        ("[]", "is not a saved conversation: it has no messages"),
        ("{}", "is not a saved conversation: it has no messages"),
        ('{"architectures": ["LlamaForCausalLM"]}', "is not a saved conversation"),
        (
            '{"messages": [{"role": "user"}]}',
            "messages[0]: Object missing required field",
        ),
        ('{"messages": [{"role": "me", "content": ""}]}', "messages[0].role: Invalid enum value"),
        ('{"messages": [{"role": "user", "content": 1}]}', "messages[0].content: Expected"),
        ('{"messages": [], "adapters": {"a": "b"}}', "adapters[...]: Expected `float`"),
        ('{"messages": [], "adapters": {"a": 1}}', "no adapter 'a'"),
        ('{"messages": [], "sampling": {"top_k": -1}}', "top_k=-1 is not within"),
        ('{"messages": [], "sampling": {"heat": 1}}', "unknown argument heat"),
        ('{"messages": [], "extra": 1}', "extra"),
        ("[" * 100_000, "is not a saved conversation"),
    ],
)
def test_a_malformed_file_is_refused_with_its_field(
    open_session: Open, tmp_path: Path, capsys, text: str, message: str
) -> None:
    file = tmp_path / "talk.json"
    file.write_text(text)
    session = open_session()
    session.handle("hello")
    session.handle(f"/load {file}")
    err = capsys.readouterr().err
    assert err.startswith(f"ostro: {file}") and message in err
    assert texts(session) == ["hello", "answer 1"]


def test_messages_alone_can_be_loaded(open_session: Open, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": ["a", "b"]}]
    file.write_text(json.dumps({"messages": messages}))
    session = open_session()
    session.handle(f"/load {file}")
    assert session.conversation.system == "be brief" and texts(session) == [["a", "b"]]


def test_every_command_has_help_and_is_documented(open_session: Open, capsys) -> None:
    page = (ROOT / "docs/chat.md").read_text()
    session = open_session()
    run_command(session, "/help")
    listed = capsys.readouterr().err
    for name, command in COMMANDS.items():
        assert f"/{name} {command.arguments}".rstrip() in listed and command.help in listed
        assert f"`/{name}" in page
        run_command(session, f"/help {name}")
        assert command.help in capsys.readouterr().err
    assert all(name in COMMANDS for name in ALIASES.values())
