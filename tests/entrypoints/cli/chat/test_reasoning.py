"""Reasoning is separated from the answer, whatever the pieces in which the text arrives."""

from __future__ import annotations

import pytest
from tiny.chats import small

from ostro.entrypoints.cli.chat.answers import Answer, generate
from ostro.entrypoints.cli.chat.reasoning import ReasoningSplitter
from ostro.entrypoints.local_model import Piece

ANALYSIS = "<|channel|>analysis<|message|>"
COMMENTARY = "<|end|><|start|>assistant<|channel|>commentary<|message|>"
FINAL = "<|end|><|start|>assistant<|channel|>final<|message|>"

CASES = {
    "plain": ("", "a <think> b", "", "a <think> b"),
    "spaces": ("", "  a\n", "", "  a\n"),
    "reasoned": ("", "<think>\nx < y\n</think>\n\nyes\n", "x < y", "yes\n"),
    "other marker": ("", "[THINK]x[/THINK]yes", "x", "yes"),
    "empty": ("", "<think>\n\n</think>\n\nyes", "", "yes"),
    "in the prompt": ("user <think>\n", "x\n</think>\n\nyes", "x", "yes"),
    "unfinished": ("", "<think>x\ny </thi", "x\ny </thi", ""),
    "almost": ("", "<thing>", "", "<thing>"),
    "gpt-oss": ("<|start|>assistant", f"{ANALYSIS}x{FINAL}yes", "x", "yes"),
    "gpt-oss without reasoning": ("", "<|channel|>final<|message|>yes", "", "yes"),
    "gpt-oss with commentary": ("", f"{ANALYSIS}x{COMMENTARY}y{FINAL}yes", "xy", "yes"),
    "gpt-oss in the prompt": (ANALYSIS, f"x{FINAL}yes", "x", "yes"),
    "gemma 4": ("", "<|channel>thought\nx\n<channel|>yes", "x", "yes"),
    "empty and whitespace": ("", "<think></think>\n", "", ""),
    "solar": ("", "<|think|>x<|end|><|begin|>assistant<|content|>yes", "x", "yes"),
    "command r": ("", "<|START_THINKING|>x<|END_THINKING|>yes", "x", "yes"),
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


def test_control_tokens_separate_the_channels_of_gpt_oss(open_session) -> None:
    """The detokenizer drops control tokens, and an answer contains none."""
    tokenizer = small("<|channel|>", "<|message|>", "<|end|>", "<|start|>")
    said = f"{ANALYSIS}Two.{FINAL}2<|end|>"
    tokens = tokenizer.encode(said, special=False, parse_special=True)
    text = tokenizer.detokenizer()
    pieces = [Piece(text.add([token]), token=token) for token in tokens]
    session = open_session()
    session.model.tokenizer = tokenizer
    session.model.stream = lambda *_, **__: (piece for piece in [*pieces, Piece("", finish="stop")])
    assert "".join(piece.text for piece in pieces) == "analysisTwo.assistantfinal2"
    answer = Answer()
    list(generate(session.model, session.conversation, answer, raw=False))
    assert (answer.reasoning, answer.text) == ("Two.", "2")
