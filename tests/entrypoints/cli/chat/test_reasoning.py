"""Reasoning is separated from the answer, whatever the pieces in which the text arrives."""

from __future__ import annotations

import pytest

from ostro.entrypoints.cli.chat.reasoning import ReasoningSplitter

CASES = {
    "plain": ("", "a <think> b", "", "a <think> b"),
    "spaces": ("", "  a\n", "", "  a\n"),
    "reasoned": ("", "<think>\nx < y\n</think>\n\nyes\n", "x < y", "yes\n"),
    "other marker": ("", "[THINK]x[/THINK]yes", "x", "yes"),
    "empty": ("", "<think>\n\n</think>\n\nyes", "", "yes"),
    "in the prompt": ("user <think>\n", "x\n</think>\n\nyes", "x", "yes"),
    "unfinished": ("", "<think>x\ny </thi", "x\ny </thi", ""),
    "almost": ("", "<thing>", "", "<thing>"),
    "second": ("", "<think>x</think>a</think>b", "x", "a</think>b"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_parts(case: str, size: int) -> None:
    prompt, text, reasoning, answer = CASES[case]
    splitter = ReasoningSplitter(prompt)
    parts = [part for i in range(0, len(text), size) for part in splitter.add(text[i : i + size])]
    parts += splitter.finish()
    assert "".join(part.text for part in parts if part.marker) == reasoning
    assert "".join(part.text for part in parts if not part.marker) == answer


def test_an_answer_is_not_delayed() -> None:
    splitter = ReasoningSplitter()
    assert [part.text for part in splitter.add("He")] == ["He"]
    assert [part.text for part in splitter.add("llo <")] == ["llo <"]
