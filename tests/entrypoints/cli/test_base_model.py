"""`ostro run` with a model that has no chat template; answers that repeat themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny.model import TEMPLATE, make_gguf

from ostro.core.errors import UsageError
from ostro.core.messages.outputs import TokenOutput
from ostro.core.messages.requests import TokenRequest
from ostro.entrypoints.cli.chat.base_model import join_text
from ostro.entrypoints.cli.chat.conversation import Conversation
from ostro.entrypoints.cli.chat.repetition import LENGTH, PERIOD, RepetitionGuard
from ostro.entrypoints.python.engine import LocalEngine
from ostro.entrypoints.python.load import load
from ostro.entrypoints.python.model import LocalModel

GREEDY = ("--temperature", "0", "-n", "8")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a GGUF file without a chat template."""
    return str(make_gguf(tmp_path_factory.mktemp("models") / "base.gguf", template=None))


@pytest.fixture(scope="module")
def model(base: str) -> Iterator[LocalModel]:
    with load(base) as loaded:
        yield loaded


def continued(model: LocalModel, text: str) -> str:
    return model.generate(text, temperature=0, max_tokens=8)


def test_one_prompt_is_continued_with_a_note(ostro, base: str, model: LocalModel) -> None:
    ran = ostro("run", "-m", base, *GREEDY, "-i", "hello")
    assert (ran.code, ran.out) == (0, continued(model, "hello") + "\n")
    assert ran.err.count("\n") == 1 and "base is a base model: it has no chat template" in ran.err
    assert "--raw" in ran.err and "--chat-template FILE" in ran.err
    assert ostro("run", "-m", base, *GREEDY, "--raw", "-i", "hello").err == ""


def test_each_message_of_a_chat_adds_a_line_to_the_text(
    ostro, typed, base: str, model: LocalModel
) -> None:
    typed(["hello", "good morning", "/system be brief", "/clear", "hello"])
    ran = ostro("run", "-m", base, *GREEDY)
    first = continued(model, "hello")
    second = continued(model, f"hello{first}\ngood morning")
    assert ran.out == f"{first}\n{second}\n{first}\n"
    assert "Each message begins a new line of the text." in ran.err
    assert "a system message needs a chat template" in ran.err


@pytest.mark.parametrize(
    "option",
    [
        ("--system", "be brief"),
        ("--think",),
        ("--thinking-budget", "8"),
        ("--image", "x.png"),
    ],
)
def test_options_of_a_template_are_refused_before_weights_are_read(
    ostro, base: str, option: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def read(*_: Any) -> None:
        raise AssertionError("the weights are read")

    monkeypatch.setattr("ostro.entrypoints.python.load.LocalModel", read)
    monkeypatch.chdir(tmp_path)
    Path("x.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    ran = ostro("run", "-m", base, "-i", "hello", *option)
    assert ran.code == 2 and "needs a chat template" in ran.err
    assert "--chat-template FILE" in ran.err


def test_a_template_file_makes_a_base_model_answer(
    ostro, base: str, model: LocalModel, tmp_path: Path
) -> None:
    file = tmp_path / "template.jinja"
    file.write_text(TEMPLATE)
    ran = ostro("run", "-m", base, *GREEDY, "-i", "hello", "--chat-template", str(file))
    assert (ran.code, ran.err) == (0, "")
    assert ran.out != continued(model, "hello") + "\n"


def conversation(**fields: Any) -> Conversation:
    turns = [("user", "Once upon"), ("assistant", " a time"), ("user", "a cat"), ("user", "sat")]
    messages: list[Any] = [{"role": role, "content": text} for role, text in turns]
    return Conversation(**{"messages": messages, **fields})


def test_messages_become_text() -> None:
    assert join_text(conversation()) == "Once upon a time\na cat\nsat"
    media = [{"role": "user", "content": [{"type": "image", "image": "x.png"}]}]
    for fields in (
        {"system": "be brief"},
        {"think": False},
        {"thinking_budget": 8},
        {"messages": media},
    ):
        with pytest.raises(UsageError, match="needs a chat template"):
            join_text(conversation(**fields))


def repeated(engine: LocalEngine, request: TokenRequest) -> Iterator[TokenOutput]:
    """Outputs of the first token of the prompt."""
    assert request.sampling.max_tokens is not None
    for _ in range(request.sampling.max_tokens):
        yield TokenOutput(id=request.id, tokens=request.tokens[:1])
    yield TokenOutput(id=request.id, finish="length")


def test_an_answer_that_repeats_itself_ends(
    ostro, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalEngine, "generate", repeated)
    ran = ostro("run", "-m", tiny, "-i", "aaa", "--raw")
    assert (ran.code, ran.out) == (0, "a" * LENGTH + "\n")
    assert "the answer repeats itself and was stopped" in ran.err
    whole = ostro("run", "-m", tiny, "-i", "aaa", "--raw", "-n", "600")
    assert (whole.out, whole.err) == ("a" * 600 + "\n", "")


@pytest.mark.parametrize("period", [1, 2, 7, PERIOD])
def test_a_cycle_ends_an_answer(period: int) -> None:
    guard, start = RepetitionGuard(), 100
    for token in range(start):
        assert not guard.add(1000 + token)
    found = [guard.add(i % period) for i in range(2 * LENGTH)]
    assert found.index(True) == LENGTH - 1


@pytest.mark.parametrize("period", [PERIOD + 1, 10**9])
def test_longer_cycles_and_text_do_not(period: int) -> None:
    guard = RepetitionGuard()
    assert not any(guard.add(i % period) for i in range(2000))


def test_an_interrupted_cycle_does_not_end_an_answer() -> None:
    """Rows of a table repeat all tokens but one."""
    guard = RepetitionGuard()
    assert not any(guard.add(5 if i % 20 else i) for i in range(2000))
