"""`ostro run`: one answer with -i, a conversation without, as the Python API would give them."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from tiny.model import TEMPLATE, make_model

from ostro.core.errors import UsageError
from ostro.core.messages.outputs import TokenOutput
from ostro.core.messages.requests import TokenRequest
from ostro.entrypoints.cli import run
from ostro.entrypoints.cli.chat.answers import interruptible
from ostro.entrypoints.python.engine import LocalEngine
from ostro.entrypoints.python.load import load
from ostro.entrypoints.python.model import LocalModel

GREEDY = ("--temperature", "0", "-n", "12")


@pytest.fixture(scope="module")
def model(tiny: str) -> Iterator[LocalModel]:
    with load(tiny) as loaded:
        yield loaded


@pytest.fixture
def chat(ostro, tiny: str, typed):
    """Type lines into `ostro run`; returns what it answered."""

    def type_lines(lines: Sequence[str], *words: str):
        typed(lines)
        return ostro("run", "-m", tiny, *GREEDY, *words)

    return type_lines


def reply_of(model: LocalModel, *texts: str, system: str | None = None) -> str:
    """The greedy answer to a conversation whose turns alternate, the user's first."""
    messages = [] if system is None else [{"role": "system", "content": system}]
    roles = ("user", "assistant")
    messages += [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    return model.generate(messages, temperature=0, max_tokens=12)


def test_one_answer_and_no_more(ostro, tiny: str, model: LocalModel) -> None:
    ran = ostro("run", "-m", tiny, *GREEDY, "-i", "hello")
    assert (ran.code, ran.out, ran.err) == (0, reply_of(model, "hello") + "\n", "")


def test_the_system_message_changes_the_answer(ostro, tiny: str, model: LocalModel) -> None:
    ran = ostro("run", "-m", tiny, *GREEDY, "-i", "hello", "--system", "be brief")
    assert (
        ran.out
        == reply_of(model, "hello", system="be brief") + "\n"
        != reply_of(model, "hello") + "\n"
    )


def test_raw_is_continued_as_it_is(ostro, tiny: str, model: LocalModel) -> None:
    ran = ostro("run", "-m", tiny, *GREEDY, "--raw", "-i", "hello")
    assert ran.out == model.generate("hello", temperature=0, max_tokens=12) + "\n"
    assert ran.out != reply_of(model, "hello") + "\n"


def test_control_tokens_in_raw_text(ostro, tiny: str, model: LocalModel) -> None:
    text = "hello<|im_end|>"
    for option in ([], ["--no-parse-special"]):
        wanted = model.generate(text, parse_special=not option, temperature=0, max_tokens=12)
        ran = ostro("run", "-m", tiny, *GREEDY, "--raw", *option, "-i", text)
        assert ran.out == wanted + "\n"
    ran = ostro("run", "-m", tiny, "--no-parse-special", "-i", text)
    assert ran.code == 2 and "--no-parse-special requires --raw" in ran.err


def test_a_stop_string_ends_the_answer(ostro, tiny: str, model: LocalModel) -> None:
    whole = reply_of(model, "hello")
    stop = whole[4:6]
    ran = ostro("run", "-m", tiny, *GREEDY, "-i", "hello", "--stop", stop)
    assert ran.out == whole[: whole.index(stop)] + "\n"


def test_a_seed_repeats_itself(ostro, tiny: str) -> None:
    words = ("run", "-m", tiny, "-n", "12", "--temperature", "2", "-i", "hello")
    first = ostro(*words, "--seed", "5").out
    assert ostro(*words, "--seed", "5").out == first != ostro(*words, "--seed", "6").out


@pytest.mark.parametrize("think", ["--think", "--no-think"])
def test_think_options_reach_the_template(ostro, tmp_path: Path, think: str) -> None:
    check = (
        "{% if enable_thinking is defined %}{{ raise_exception('thinking ' ~ enable_thinking) }}"
    )
    folder = make_model(tmp_path / "m", template=check + "{% endif %}" + TEMPLATE)
    assert ostro("run", "-m", str(folder), *GREEDY, "-i", "hello").code == 0
    ran = ostro("run", "-m", str(folder), *GREEDY, "-i", "hello", think)
    assert ran.code == 1 and f"thinking {think == '--think'}" in ran.err


def test_reasoning_that_the_template_begins_is_marked(ostro, tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m", template=TEMPLATE + "<think>\n")
    ran = ostro("run", "-m", str(folder), *GREEDY, "-i", "hello")
    assert ran.code == 0 and ran.out.startswith("<think>\n") and ran.out.endswith("\n</think>\n")


def test_what_was_chosen_is_explained(ostro, tiny: str) -> None:
    ran = ostro("run", "-m", tiny, *GREEDY, "-i", "hello", "--explain")
    assert "attention: " in ran.err and "embedding: " in ran.err
    assert "sampling: temperature 0 (options); answers end at 12 tokens (-n)" in ran.err
    ran = ostro("run", "-m", tiny, "-n", "2", "--top-k", "5", "-i", "hello", "--explain")
    line = "temperature 0.8, top_p 0.95, min_p 0.05 (fallback); top_k 5 (options); answers end"
    assert line in ran.err


def test_the_model_s_own_sampling_is_the_default(ostro, tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m")
    (folder / "generation_config.json").write_text('{"do_sample": false}')
    words = ("run", "-m", str(folder), "-n", "12", "-i", "hello")
    first = ostro(*words).out
    assert all(ostro(*words, "--seed", str(seed)).out == first for seed in range(3))
    other = ostro(*words, "--temperature", "3", "--seed", "1")
    assert other.out != first
    assert "ostro: temperature 3 is outside the usual range of 0 to 2" in other.err


@pytest.mark.parametrize("config", [{}, {"hidden_size": 64}])
def test_a_terminal_shows_the_stages_and_is_clean_afterwards(
    ostro,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    model: LocalModel,
    config: dict[str, int],
) -> None:
    folder = make_model(tmp_path / "m", **config)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    ran = ostro("run", "-m", str(folder), *GREEDY, "-i", "hello")
    assert ran.out == ("" if config else reply_of(model, "hello") + "\n")
    line, erased, after = ran.err.rpartition("\r\x1b[K")
    assert "importing torch" in line and erased and after.startswith("ostro:" if config else "")
    assert ran.code == (5 if config else 0)


def test_an_answer_is_streamed(
    ostro, tiny: str, monkeypatch: pytest.MonkeyPatch, model: LocalModel
) -> None:
    written: list[str] = []
    monkeypatch.setattr(
        "builtins.print", lambda *words, **_: written.append("".join(map(str, words)))
    )
    ostro("run", "-m", tiny, *GREEDY, "-i", "hello")
    assert "".join(written) == reply_of(model, "hello") + "\n"
    assert len([piece for piece in written if piece]) > 5


def test_a_chat_keeps_its_history(chat, model: LocalModel) -> None:
    ran = chat(["hello", "", "good morning"])
    first = reply_of(model, "hello")
    second = reply_of(model, "hello", first, "good morning")
    assert ran.code == 0
    assert ran.out == f"{first}\n{second}\n"
    assert second != reply_of(model, "good morning")
    assert "tiny, ready in" in ran.err


def test_the_banner_names_the_sampling_and_its_sources(chat, ostro, tiny: str) -> None:
    assert "sampling: temperature 0 (options); answers end at 12 tokens (-n)" in chat([]).err
    ran = ostro("run", "-m", tiny, "--top-k", "5")
    line = "temperature 0.8, top_p 0.95, min_p 0.05 (fallback); top_k 5 (options); answers end at "
    assert line + "the context of 1024 tokens" in ran.err


def test_clear_forgets_and_exit_leaves(chat, model: LocalModel) -> None:
    ran = chat(["hello", "/clear", "good morning", "/exit", "never generated"])
    assert ran.code == 0
    assert ran.out == f"{reply_of(model, 'hello')}\n{reply_of(model, 'good morning')}\n"


def test_a_system_message_can_be_set_and_taken_away(chat, model: LocalModel) -> None:
    ran = chat(["/system be brief", "hello", "/clear", "/system", "hello"])
    assert ran.out == f"{reply_of(model, 'hello', system='be brief')}\n{reply_of(model, 'hello')}\n"


def test_raw_text_has_no_system_message(chat, model: LocalModel) -> None:
    ran = chat(["/system be brief", "hello"], "--raw")
    assert ran.out == model.generate("hello", temperature=0, max_tokens=12) + "\n"
    assert "a system message needs a chat template; --raw" in ran.err


def test_help_lists_the_commands(chat) -> None:
    ran = chat(["/help"])
    assert ran.code == 0 and "/clear" in ran.err and not ran.out


def test_an_unknown_command_is_named_with_the_nearest(chat) -> None:
    ran = chat(["/bogus", "/retri"])
    assert ran.code == 0 and not ran.out
    assert "ostro: unknown command /bogus; see /help\n" in ran.err
    assert "ostro: unknown command /retri; nearest: /retry; see /help\n" in ran.err


def test_a_conversation_that_grows_too_long_is_not_the_end(chat, model: LocalModel) -> None:
    ran = chat(["hello " * 30, "/clear", "hello"], "--context", "64")
    assert ran.code == 0
    assert ran.out == reply_of(model, "hello") + "\n"
    assert "context length is 64 tokens" in ran.err and "/clear clears" in ran.err
    assert "the message was not added" in ran.err


def test_an_interrupt_ends_the_answer_only(
    chat, model: LocalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, generate = reply_of(model, "hello"), LocalEngine.generate

    def interrupted(self: LocalEngine, request: TokenRequest) -> Iterator[TokenOutput]:
        monkeypatch.setattr(LocalEngine, "generate", generate)
        with closing(self.generate(request)) as outputs:
            for i, output in enumerate(outputs):
                if i == 5:
                    raise KeyboardInterrupt
                yield output

    monkeypatch.setattr(LocalEngine, "generate", interrupted)
    ran = chat(["hello", "good morning"])
    first, second = ran.out.split("\n", 1)
    assert ran.code == 0 and whole.startswith(first) and 0 < len(first) < len(whole)
    assert second == reply_of(model, "hello", first, "good morning") + "\n"


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], None]]:
    """Make a file with this content the standard input."""
    with ExitStack() as files:

        def redirect(data: bytes) -> None:
            (tmp_path / "stdin").write_bytes(data)
            monkeypatch.setattr(sys, "stdin", files.enter_context((tmp_path / "stdin").open()))

        yield redirect


@pytest.mark.parametrize("words", [(), ("-i", "answer this")])
def test_piped_text_is_one_prompt(
    ostro, tiny: str, pipe, model: LocalModel, words: tuple[str, ...]
) -> None:
    pipe(b"hello\ngood morning\n")
    ran = ostro("run", "-m", tiny, *GREEDY, *words)
    prompt = "hello\ngood morning" + ("\n\nanswer this" if words else "")
    assert (ran.code, ran.out) == (0, reply_of(model, prompt) + "\n")
    assert ran.out != reply_of(model, "hello") + "\n"


@pytest.mark.parametrize(("data", "message"), [(b"", "is empty; pass"), (b"\xff", "UTF-8")])
def test_standard_input_without_text(ostro, tiny: str, pipe, data: bytes, message: str) -> None:
    pipe(data)
    ran = ostro("run", "-m", tiny, *GREEDY)
    assert ran.code == 2 and message in ran.err and not ran.out


@pytest.mark.parametrize("data", [b"", b"hello"])
def test_the_nearest_alias_is_named_before_standard_input_is_read(
    ostro, pipe, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    def refuse(size: int) -> bytes:
        raise AssertionError("standard input was read")

    pipe(data)
    monkeypatch.setattr(sys.stdin.buffer, "read", refuse)
    ran = ostro("run", "smollm")
    assert ran.code == 3 and not ran.out
    assert "'smollm' not found; nearest:" in ran.err and "smollm2" in ran.err


@pytest.mark.parametrize("words", [("./nothere",), ("/no/where",), ("~/no where",)])
def test_a_path_that_is_missing_is_named_before_standard_input_is_read(
    ostro, pipe, words: tuple[str, ...]
) -> None:
    pipe(b"")
    ran = ostro("run", *words)
    assert ran.code == 3 and "there is no file or folder" in ran.err and "input" not in ran.err


def test_a_prompt_in_the_place_of_the_model_is_the_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(*words: str) -> tuple[str | None, str | None, list[str]]:
        parser = argparse.ArgumentParser()
        run.add_arguments(parser)
        args = parser.parse_args(words)
        files = run.take_inputs(args)
        return args.model, args.input, files

    monkeypatch.chdir(tmp_path)
    (tmp_path / "my model").mkdir()
    assert taken("What is 27 / 15?") == (None, "What is 27 / 15?", [])
    assert taken("what is it", "photo.png") == (None, "what is it", ["photo.png"])
    assert taken("my model", "What is it?") == ("my model", "What is it?", [])
    assert taken("./no model", "What?") == ("./no model", "What?", [])
    assert taken("-m", "a", "What is it?") == ("a", "What is it?", [])
    assert taken("smollm2") == ("smollm2", None, [])
    with pytest.raises(UsageError, match="expected one prompt"):
        taken("What is it?", "-i", "Who is it?")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("draw", "a wind", "-o", "w.png"), "the built-in starter supports text, embed, not draw"),
        (("speak", "a wind", "-o", "w.wav"), "not speak; name a model that does"),
        (("rerank", "a wind", "a", "b"), "not rerank; name a model that does"),
        (("embed", "hello"), "no texts; add TEXT after the model"),
        (("embed", "hello", "a text", "--file", "x"), "expected texts or --file, not both"),
    ],
)
def test_a_missing_model_or_text_is_named(ostro, words: tuple[str, ...], said: str) -> None:
    ran = ostro(*words)
    assert ran.code == 2 and said in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--temperature", "-1"), "temperature=-1.0 is not within 0..100"),
        (("--top-p", "3"), "top_p=3.0 is not within 0..1"),
        (("--min-p", "2"), "min_p=2.0 is not within"),
        (("-n", "-4"), "max_tokens=-4 is not within"),
    ],
)
def test_a_sampling_parameter_out_of_range_is_refused_before_the_model_is_loaded(
    ostro, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(run, "load", refuse)
    ran = ostro("run", "-i", "hello", *words)
    assert ran.code == 2 and said in ran.err


def test_a_file_in_the_place_of_the_model_names_the_option(ostro, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    ran = ostro("run", str(tmp_path / "notes.txt"), "-i", "Summarize")
    assert ran.code == 2 and "is no model" in ran.err
    assert f"attach the file with --file {tmp_path / 'notes.txt'}" in ran.err


def test_a_closed_standard_input(ostro, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert ostro("run", "-m", tiny, *GREEDY, "-i", "hello").code == 0
    assert ostro("run", "-m", tiny).code == 2


def test_a_text_file_is_put_before_the_prompt(
    ostro, tiny: str, tmp_path: Path, model: LocalModel
) -> None:
    (tmp_path / "a.txt").write_text("hello\n")
    words = ("run", "-m", tiny, *GREEDY, "-i", "good morning", "--file")
    ran = ostro(*words, str(tmp_path / "a.txt"))
    assert ran.out == reply_of(model, "File a.txt:\n\nhello\n\ngood morning") + "\n"
    ran = ostro(*words, "/nowhere/a.txt")
    assert ran.code == 2 and "/nowhere/a.txt: No such file" in ran.err


@pytest.mark.process
def test_the_line_editor_and_rich_are_imported_by_a_chat_only() -> None:
    code = "import ostro.entrypoints.cli.run as run, sys; run.open_display(False)\n"
    code += "assert not {'rich', 'prompt_toolkit', 'torch'} & set(sys.modules)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


def test_an_interrupt_waits_for_the_end_of_a_step(model: LocalModel) -> None:
    stream = model.stream([{"role": "user", "content": "hello"}], temperature=0, max_tokens=12)
    with interruptible(model.local):
        next(stream)
        signal.raise_signal(signal.SIGINT)  # nothing is raised here, where a step may be running
        with pytest.raises(KeyboardInterrupt):
            list(stream)
    assert not model.engine.live and len(reply_of(model, "hello")) > 0


def test_a_second_interrupt_ends_the_program_at_once(model: LocalModel) -> None:
    before = signal.getsignal(signal.SIGINT)
    with interruptible(model.local), pytest.raises(SystemExit) as left:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    assert left.value.code == 130 and not model.local.interrupted
    assert signal.getsignal(signal.SIGINT) is before


def test_json_has_the_reasoning_apart_from_the_text(ostro, tmp_path: Path) -> None:
    """The text is what the schema constrains, behind a budget of reasoning."""
    opening = "{{ messages[-1].content }}<think>\n"
    folder = str(make_model(tmp_path / "tiny", template=opening))
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": ["a", "b"]}')
    rules = ("--temperature", "1", "--seed", "3", "--schema", str(schema))
    command = ("run", "-m", folder, "-i", "hello", *rules)
    ran = ostro(*command, "--json", "--thinking-budget", "8")
    assert ran.code == 0, ran.err
    answer = json.loads(ran.out)
    assert answer["text"] in ('"a"', '"b"') and answer["reasoning"]
    assert answer["finish"] == "stop"
    plain = ostro(*command, "--thinking-budget", "8")
    assert plain.out.startswith("<think>") and plain.out.strip().endswith(answer["text"])
    none = json.loads(ostro(*command, "--json", "--thinking-budget", "0").out)
    assert none["text"] in ('"a"', '"b"') and "reasoning" not in none


def test_budgets_that_are_refused(ostro, tiny: str) -> None:
    for words in (["--thinking-budget", "-1"], ["--thinking-budget", "1", "--raw"]):
        ran = ostro("run", "-m", tiny, "-i", "hello", *words)
        assert ran.code == 2 and "--thinking-budget" in ran.err
