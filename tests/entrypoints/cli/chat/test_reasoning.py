"""Reasoning is shown apart from the answer, as the parser of the chat template finds it."""

from __future__ import annotations

from typing import Any

import pytest
from tiny.chats import small

from ostro.entrypoints.cli.chat.answers import ChatAnswer, generate
from ostro.entrypoints.local_model import Piece
from ostro.plugins.parsers.command_r7b.parser import CommandR7BParser
from ostro.plugins.parsers.gemma4.parser import Gemma4Parser
from ostro.plugins.parsers.generic.parser import FallbackParser
from ostro.plugins.parsers.harmony.parser import HarmonyParser
from ostro.plugins.parsers.mistral.parser import MistralParser
from ostro.plugins.parsers.solar.parser import SolarParser

ANALYSIS = "<|channel|>analysis<|message|>"
FINAL = "<|end|><|start|>assistant<|channel|>final<|message|>"

CASES: dict[str, tuple[Any, str, str, str, str]] = {
    "plain": (FallbackParser, "a <think> b", "", "a <think> b", ""),
    "spaces": (FallbackParser, "  a\n", "", "  a\n", ""),
    "reasoned": (FallbackParser, "<think>\nx < y\n</think>\n\nyes\n", "x < y", "yes\n", "<think>"),
    "unfinished": (FallbackParser, "<think>x\ny </thi", "x\ny </thi", "", "<think>"),
    "mistral": (MistralParser, "[THINK]x[/THINK]yes", "x", "yes", "[THINK]"),
    "gpt-oss": (HarmonyParser, f"{ANALYSIS}x{FINAL}yes", "x", "yes", "<think>"),
    "gemma 4": (Gemma4Parser, "<|channel>thought\nx\n<channel|>yes", "x", "yes", "<think>"),
    "solar": (
        SolarParser,
        "<|think|>x<|end|><|begin|>assistant<|content|>yes",
        "x",
        "yes",
        "<think>",
    ),
    "command r": (
        CommandR7BParser,
        "<|START_THINKING|>x<|END_THINKING|>yes",
        "x",
        "yes",
        "<think>",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_parts(open_session: Any, case: str) -> None:
    kind, text, reasoning, said, marker = CASES[case]
    session, answer = open_session(text), ChatAnswer()
    session.model.parser = lambda prompt, adapters: kind("<|start|>assistant", ())
    parts = list(generate(session.model, session.conversation, answer, raw=False))
    assert (answer.reasoning, answer.text) == (reasoning, said)
    assert {part.marker for part in parts if part.marker} == ({marker} if marker else set())


def test_raw_answers_are_not_parsed(open_session: Any) -> None:
    session, answer = open_session("<think>x</think>yes", raw=True), ChatAnswer()
    list(generate(session.model, session.conversation, answer, raw=True))
    assert (answer.reasoning, answer.text) == ("", "<think>x</think>yes")


def test_control_tokens_separate_the_channels_of_gpt_oss(open_session: Any) -> None:
    """The detokenizer drops control tokens, and an answer contains none."""
    tokenizer = small("<|channel|>", "<|message|>", "<|end|>", "<|start|>")
    said = f"{ANALYSIS}Two.{FINAL}2<|end|>"
    tokens = tokenizer.encode(said, special=False, parse_special=True)
    text = tokenizer.detokenizer()
    pieces = [Piece(text.add([token]), token=token) for token in tokens]
    session = open_session()
    session.model.tokenizer = tokenizer
    session.model.parser = lambda prompt, adapters: HarmonyParser(
        "<|start|>assistant", (), tokenizer.controls
    )
    session.model.stream = lambda *_, **__: (piece for piece in [*pieces, Piece("", finish="stop")])
    assert "".join(piece.text for piece in pieces) == "analysisTwo.assistantfinal2"
    answer = ChatAnswer()
    list(generate(session.model, session.conversation, answer, raw=False))
    assert (answer.reasoning, answer.text) == ("Two.", "2")
