"""Reasoning is shown apart from the answer."""

from __future__ import annotations

from typing import Any

import pytest

from ostro.core.messages.text import Reasoning, Text
from ostro.entrypoints.cli.chat.answers import ChatAnswer, generate, print_answer
from ostro.entrypoints.cli.chat.display import PlainDisplay

CASES: dict[str, tuple[str, str, str, str]] = {
    "plain": ("a <think> b", "", "a <think> b", "a <think> b\n"),
    "spaces": ("  a\n", "", "  a\n", "  a\n\n"),
    "reasoned": (
        "<think>\nx < y\n</think>\n\nyes\n",
        "x < y",
        "yes\n",
        "<think>\nx < y\n</think>\n\nyes\n\n",
    ),
    "unfinished": (
        "<think>x\ny </thi",
        "x\ny </thi",
        "",
        "<think>\nx\ny </thi\n</think>\n",
    ),
}


@pytest.mark.parametrize("end", ["", "\x03"], ids=["ended", "interrupted"])
@pytest.mark.parametrize("case", CASES)
def test_answers(
    open_session: Any, case: str, end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An interrupted answer loses nothing that was withheld."""
    text, reasoning, said, printed = CASES[case]
    session = open_session(text + end)
    answer = print_answer(session.model, session.conversation, PlainDisplay())
    assert (answer.reasoning, answer.text) == (reasoning, said)
    assert (answer.prompt_tokens, answer.tokens) == (10, len(text))
    assert answer.finish == (None if end else "stop")
    assert capsys.readouterr().out == printed


def test_raw_answers_are_not_parsed(open_session: Any) -> None:
    session, answer = open_session("<think>x</think>yes", raw=True), ChatAnswer()
    events = list(generate(session.model, session.conversation, answer, raw=True))
    assert (answer.reasoning, answer.text) == ("", "<think>x</think>yes")
    assert not any(isinstance(event, Reasoning) for event in events)
    assert "".join(event.text for event in events if isinstance(event, Text)) == answer.text
