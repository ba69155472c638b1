"""Budgets of reasoning: masks that force the marker of its end, token by token."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tiny.grammars import added, allowed, open_masks, request, vocabulary

from ostro.core.errors import RequestError
from ostro.core.tokenizer.vocabulary import Vocabulary
from ostro.plugins.logits.reasoning_budget.processor import ReasoningBudget

CONTROLS = {"<think>": 300, "</think>": 301, "<|message|>": 302}


@pytest.fixture
def known() -> Vocabulary:
    """A vocabulary of bytes, a few longer tokens, and control tokens."""
    words = [b"ab", b"a</th", b"think>", b"<think>"]
    pieces = [*(bytes([i]) for i in range(256)), *words]
    pieces += [b""] * (310 - len(pieces))
    return Vocabulary(310, pieces, CONTROLS, frozenset({309}), lambda text: list(text.encode()))


class Row:
    """One sequence with a budget."""

    def __init__(self, known: Vocabulary, row: int = 2, **parameter: Any) -> None:
        self.known, self.row = known, row
        given = {"begin": "<think>", "end": "</think>", **parameter}
        ReasoningBudget.check(given, known.size)
        self.processor = ReasoningBudget(4, known, torch.device("cpu"))
        self.prepared = ReasoningBudget.prepare(given, known)
        self.processor.update([added(row, self.prepared)], [], [])

    def forced(self, tokens: Sequence[int] = (), drafts: Sequence[int] = ()) -> list[int | None]:
        """The only tokens that are allowed after these tokens and each draft, None for any."""
        masks = open_masks(self.known, 1 + len(drafts))
        assert self.processor.fill([request(self.row, tokens, drafts)], masks) == {}
        found = [allowed(mask, self.known.size) for mask in masks]
        assert all(len(each) in (1, self.known.size) for each in found)
        return [min(each) if len(each) == 1 else None for each in found]


def test_the_end_is_forced_after_the_budget(known: Vocabulary) -> None:
    row = Row(known, tokens=3, open=True)
    assert row.forced() == [None]
    assert row.forced([65, 66]) == [None]
    assert row.forced([67]) == [301]
    assert row.forced([301]) == [None] and row.forced([65] * 9) == [None]


def test_the_model_begins_the_reasoning(known: Vocabulary) -> None:
    row = Row(known, tokens=2)
    assert row.forced([65] * 9) == [None]
    assert row.forced([300]) == [None] and row.forced([65]) == [None] and row.forced([65]) == [301]


@pytest.mark.parametrize("text", ["é", "…", "🙂"])
def test_a_character_is_not_cut(known: Vocabulary, text: str) -> None:
    """A grammar beside the budget allows only the rest of the character."""
    for size in range(1, len(text.encode())):
        row = Row(known, tokens=1, open=True)
        assert row.forced([*text.encode()[:size]]) == [None]
        assert row.forced([*text.encode()[size:]]) == [301]
    assert Row(known, tokens=1, open=True).forced([0xFF]) == [301]
    assert Row(known, tokens=1, open=True).forced([0x80] * 4) == [301]


def test_all_reasoning_of_an_output_counts(known: Vocabulary) -> None:
    row = Row(known, tokens=3)
    assert row.forced([300, 65, 65, 301, 66, 66, 66, 300]) == [None]
    assert row.forced([65]) == [301]
    assert row.forced([301, 66, 300]) == [301]


def test_without_a_budget_reasoning_ends_at_once(known: Vocabulary) -> None:
    assert Row(known, tokens=0, open=True).forced() == [301]
    assert Row(known, tokens=0).forced([300]) == [301]


def test_text_that_spells_a_control_token_is_text(known: Vocabulary) -> None:
    row = Row(known, tokens=1)
    spelled = known.pieces.index(b"<think>")
    assert row.forced([spelled, 65, 65]) == [None]
    assert row.forced([300, 65, *b"</think>"]) == [301]


def test_markers_of_text_are_found_across_tokens(known: Vocabulary) -> None:
    text = Vocabulary(known.size, known.pieces, {}, known.eos_ids, known.encode)
    begin, end = known.pieces.index(b"a</th"), known.pieces.index(b"think>")
    row = Row(text, tokens=2, open=True)
    # "a</th" and "ink>" write the end themselves.
    assert row.forced([begin, *b"ink>", 65, 65]) == [None]
    row = Row(text, tokens=2)
    assert row.forced([*b"x<", end, 65]) == [None]  # "<think>" begins here
    expected = list(b"</think>")
    assert row.forced([65]) == [expected[0]]
    for written, following in zip(expected, [*expected[1:], None], strict=True):
        assert row.forced([written]) == [following]
    assert row.forced([*b"<think>"]) == [expected[0]]


def test_a_marker_of_several_control_tokens_and_text(known: Vocabulary) -> None:
    row = Row(known, tokens=1, begin="<think>x<|message|>", end="</think>y")
    assert row.forced([300, 120, 65, 302, 65, 65]) == [None]
    assert row.forced([300, 120, 302]) == [None]
    assert row.forced([65]) == [301] and row.forced([301]) == [121] and row.forced([121]) == [None]


def test_drafts_are_followed_and_not_kept(known: Vocabulary) -> None:
    row = Row(known, tokens=2, open=True)
    assert row.forced([], [65, 66, 67]) == [None, None, 301, 301]
    assert row.forced([], [65, 301, 66]) == [None] * 4
    assert row.forced([65], [66]) == [None, 301]
    assert row.forced([66]) == [301]


def test_a_preempted_sequence_goes_on(known: Vocabulary) -> None:
    row = Row(known, tokens=3, open=True)
    row.processor.update([added(0, row.prepared, [65, 65, 65])], [row.row], [(0, 1)][:0])
    row.row = 0
    assert row.forced() == [301]
    row.processor.update([], [], [(0, 3)])
    row.row = 3
    assert row.forced([301, 65]) == [None]


def test_several_rows_have_masks_of_their_own(known: Vocabulary) -> None:
    row = Row(known, row=0, tokens=1, open=True)
    row.processor.update([added(1, row.prepared), added(2, row.prepared, [65])], [], [])
    masks = open_masks(known, 4)
    row.processor.fill([request(2), request(0, [], [65]), request(1)], masks)
    counts = [len(allowed(mask, known.size)) for mask in masks]
    assert counts == [1, known.size, 1, known.size]


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        (7, "Expected `object`"),
        ({"begin": "a", "end": "b"}, "required field `tokens`"),
        ({"tokens": -1, "begin": "a", "end": "b"}, "tokens=-1 is negative"),
        ({"tokens": 1.5, "begin": "a", "end": "b"}, "Expected `int`"),
        ({"tokens": 1, "begin": "", "end": "b"}, "a marker has 0 characters"),
        ({"tokens": 1, "begin": "a", "end": "b" * 300}, "a marker has 300 characters"),
        ({"tokens": 1, "begin": "a", "end": "b", "more": 1}, "unknown field `more`"),
    ],
)
def test_a_parameter_is_checked(parameter: Any, message: str) -> None:
    with pytest.raises(RequestError, match=re.escape(message)):
        ReasoningBudget.check(parameter, 100)


def test_an_end_that_the_tokens_cannot_write_is_refused(known: Vocabulary) -> None:
    lower = Vocabulary(
        known.size, known.pieces, {}, known.eos_ids, lambda text: list(text.lower().encode())
    )
    with pytest.raises(RequestError, match="cannot write '</Think>'"):
        ReasoningBudget.prepare({"tokens": 1, "begin": "a", "end": "</Think>"}, lower)


@pytest.mark.parametrize("kind", ["starter", "trained", "sentencepiece"])
def test_real_vocabularies_write_the_end(kind: str) -> None:
    row = Row(vocabulary(kind), tokens=0, open=True)
    written = b""
    for _ in range(40):
        (token,) = row.forced()
        if token is None:
            break
        written += vocabulary(kind).pieces[token]
        row.processor.follow(row.processor.progress[row.row], [token])
    assert written == b"</think>"


def test_the_whole_end_is_forced_at_once(known: Vocabulary) -> None:
    text = Vocabulary(known.size, known.pieces, {}, known.eos_ids, known.encode)
    row = Row(text, tokens=1, open=True)
    assert row.processor.forced(request(row.row)) is None
    assert row.processor.forced(request(row.row, [65])) == [*b"</think>"]
    assert row.processor.forced(request(row.row, [*b"</th"])) == [*b"ink>"]
    assert row.processor.forced(request(row.row, [*b"ink>"])) is None
