"""The masks of the grammar processor: of one sequence and several, of drafts, after preemption."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny.grammars import Walker, added, allowed, fill, open_masks, request, vocabulary, words

from ostro.core.errors import RequestError
from ostro.plugins.logits.grammar.processor import GrammarProcessor

KINDS = ("starter", "trained", "sentencepiece")
CHOICES = ["yes", "yesterday", "no", "né"]
Change = Callable[[torch.Tensor], None]


def fitting(written: bytes, kind: str) -> set[int]:
    """The tokens after which some choice may still be written, by their bytes."""
    known = vocabulary(kind)
    texts = [choice.encode() for choice in CHOICES]
    found = {
        id
        for id, piece in enumerate(known.pieces)
        if piece and any(text.startswith(written + piece) for text in texts)
    }
    return found | (set(known.eos_ids) if written in texts else set())


def agrees(found: set[int], fitting: set[int], kind: str) -> bool:
    """Whether a mask allows all tokens that fit, or the right one if the text is forced.

    llguidance allows one token then: the first of the text's usual tokens.
    """
    pieces = sorted((vocabulary(kind).pieces[id] for id in fitting), key=len)
    forced = all(pieces[-1].startswith(piece) for piece in pieces) and all(pieces)
    return found == fitting or (forced and len(found) == 1 and found < fitting)


def check(kind: str, change: Change = lambda masks: None) -> None:
    """Compare the masks of all prefixes with the tokens whose bytes fit, after a change."""
    known = vocabulary(kind)
    prepared = GrammarProcessor.prepare({"choice": CHOICES}, known)
    processor = GrammarProcessor(2, known, torch.device("cpu"))
    ids = {piece: id for id, piece in enumerate(known.pieces) if len(piece) == 1}
    for choice in CHOICES:
        processor.update([added(0, prepared)], [], [])
        written, new = b"", list[int]()
        for byte in [*choice.encode(), None]:
            masks = open_masks(known)
            assert not fill(processor, [request(0, new)], masks)
            change(masks)
            found = allowed(masks[0], known.size)
            assert agrees(found, fitting(written, kind), kind), (choice, written)
            if byte is not None:
                written, new = written + bytes([byte]), [ids[bytes([byte])]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_allows_the_tokens_whose_bytes_fit(kind: str) -> None:
    check(kind)


@pytest.mark.parametrize("token", [b"y", b"yes", b"q"])
def test_a_flipped_bit_is_found(token: bytes) -> None:
    """The comparison above is red for a mask with one wrong bit."""
    at = vocabulary().pieces.index(token)

    def flip(masks: torch.Tensor) -> None:
        masks[0, at // 32] ^= 1 << (at % 32)

    with pytest.raises(AssertionError):
        check("starter", flip)


def test_a_complete_grammar_allows_the_ends_alone() -> None:
    walker = Walker({"choice": ["no"]}, vocabulary())
    assert walker.accepts("no")
    walker.restart()
    walker.new = walker.vocabulary.encode("no")
    assert walker.next() == set(walker.vocabulary.eos_ids)


def test_drafts_have_the_masks_of_their_own_steps() -> None:
    known = vocabulary()
    drafts = known.encode('{"a": 1}')
    walker = Walker({"json_object": True}, known)
    steps = []
    for id in drafts:
        steps.append(walker.next())
        walker.new = [id]
    steps.append(walker.next())
    walker.restart()
    masks = open_masks(known, len(drafts) + 1)
    assert not fill(walker.processor, [request(0, [], drafts)], masks)
    assert [allowed(mask, known.size) for mask in masks] == steps
    # The drafts are not consumed: two are accepted, and the third is another token.
    assert walker.next() == steps[0]
    walker.new = drafts[:2]
    assert walker.next() == steps[2]


def test_a_forbidden_draft_ends_the_masks() -> None:
    known = vocabulary()
    walker = Walker({"json_object": True}, known)
    wrong = known.pieces.index(b"q")
    masks = open_masks(known, 3)
    assert not fill(walker.processor, [request(0, [], [wrong, wrong])], masks)
    assert wrong not in allowed(masks[0], known.size)
    assert walker.next() == allowed(masks[0], known.size)


def test_rows_of_a_batch_have_their_own_masks() -> None:
    """Some with drafts and some without, in any order; together as one by one."""
    known = vocabulary()
    parameters: list[Any] = [
        {"regex": "[0-9]+"},
        {"json_object": True},
        {"choice": ["a", "b"]},
        {"regex": "x+"},
    ]
    texts = ["123", '{"k', "a", "xx"]
    prepared = [GrammarProcessor.prepare(each, known) for each in parameters]
    processor = GrammarProcessor(8, known, torch.device("cpu"))
    processor.update([added(row, each) for row, each in enumerate(prepared)], [], [])
    order = [2, 0, 3, 1]
    drafts = {0: known.encode("12"), 1: known.encode('{"k'), 2: [], 3: []}
    masks = open_masks(known, sum(1 + len(drafts[row]) for row in order))
    assert not fill(processor, [request(row, [], drafts[row]) for row in order], masks)
    first = 0
    for row in order:
        alone = open_masks(known, 1 + len(drafts[row]))
        single = GrammarProcessor(8, known, torch.device("cpu"))
        single.update([added(0, prepared[row])], [], [])
        fill(single, [request(0, [], drafts[row])], alone)
        assert torch.equal(masks[first : first + len(alone)], alone), parameters[row]
        assert known.encode(texts[row])[0] in allowed(alone[0], known.size)
        first += len(alone)


def test_sequences_share_a_grammar_and_not_its_state() -> None:
    known = vocabulary()
    prepared = GrammarProcessor.prepare({"choice": ["ab", "cd"]}, known)
    processor = GrammarProcessor(4, known, torch.device("cpu"))
    processor.update([added(0, prepared), added(1, prepared)], [], [])
    a, c, b, d = (known.pieces.index(piece) for piece in (b"a", b"c", b"b", b"d"))
    masks = open_masks(known, 2)
    assert not fill(processor, [request(0, [a]), request(1, [c])], masks)
    assert [allowed(mask, known.size) for mask in masks] == [{b}, {d}]


def test_a_preempted_sequence_goes_on_where_it_was() -> None:
    known = vocabulary()
    prepared = GrammarProcessor.prepare({"json_object": True}, known)
    output = known.encode('{"key": [1, 2')
    processor = GrammarProcessor(4, known, torch.device("cpu"))
    processor.update([added(0, prepared)], [], [])
    before, after = open_masks(known), open_masks(known)
    fill(processor, [request(0, output)], before)
    processor.update([], [0], [])
    processor.update([added(3, prepared, output)], [], [])
    assert not fill(processor, [request(3)], after)
    assert torch.equal(before, after)
    # Removed rows are forgotten, and rows that move keep their state.
    processor.update([], [], [(3, 1)])
    moved = open_masks(known)
    fill(processor, [request(1)], moved)
    assert torch.equal(before, moved) and list(processor.rows) == [1]


def test_a_row_that_fails_leaves_the_others() -> None:
    """A forbidden token can come from a faulty engine only; a limit is reported the same way."""
    known = vocabulary()
    prepared = GrammarProcessor.prepare({"regex": "[0-9]+"}, known)
    processor = GrammarProcessor(4, known, torch.device("cpu"))
    processor.update([added(0, prepared), added(1, prepared)], [], [])
    wrong, digit = known.pieces.index(b"q"), known.pieces.index(b"7")
    masks = open_masks(known, 2)
    errors = fill(processor, [request(0, [wrong]), request(1, [digit])], masks)
    assert list(errors) == [0] and isinstance(errors[0], RequestError)
    assert digit in allowed(masks[1], known.size) and wrong not in allowed(masks[1], known.size)


def test_a_step_beyond_the_limits_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of readings of an ambiguous grammar grows with each token."""
    monkeypatch.setattr("ostro.plugins.logits.grammar.masks.MAX_TOKEN", 0.002)
    known = vocabulary()
    ambiguous = {"lark": 'start: s\ns: s s s s | s s s | s s | "a"'}
    prepared = GrammarProcessor.prepare(ambiguous, known)
    processor = GrammarProcessor(4, known, torch.device("cpu"))
    processor.update([added(0, prepared)], [], [])
    a = known.pieces.index(b"a")
    for _ in range(600):
        errors = fill(processor, [request(0, [a])], open_masks(known))
        if errors:
            break
    assert "limit of its grammar" in str(errors[0])


def test_output_before_a_text_marker_is_free() -> None:
    """Tokens may cut the marker anywhere, and half a marker is text."""
    known = vocabulary()
    walker = Walker({"regex": "[0-9]+", "after": "</think>"}, known)
    first = walker.next()
    assert {known.pieces.index(b"q"), known.pieces.index(b"{")} <= first
    assert not first & known.eos_ids, "the answer does not end before the grammar"
    walker.restart()
    walker.new = known.encode("so <thi </thin </think>")
    digits = {id for id, piece in enumerate(known.pieces) if piece.isdigit() and piece.isascii()}
    assert walker.next() == digits


def test_a_control_token_as_marker() -> None:
    known = vocabulary()
    start = known.special["<|im_start|>"]
    walker = Walker({"choice": ["42"], "after": "<|im_start|>"}, known)
    everything = set(range(known.size)) - known.eos_ids
    assert walker.next() == everything
    walker.new = known.encode("a text that spells <|im_start|>")
    assert walker.next() == everything
    walker.new = [start]
    assert {known.pieces[id][:1] for id in walker.next()} == {b"4"}
    assert walker.accepts("42", [*known.encode("hm"), start])


def test_a_mask_has_one_bit_per_logit() -> None:
    for kind in KINDS:
        known = vocabulary(kind)
        walker = Walker({"regex": "(?s:.*)"}, known)
        found = walker.next()
        assert max(found) < known.size and words(known) * 32 >= known.size
        assert not any(known.pieces[id] == b"" for id in found - known.eos_ids)


@pytest.mark.parametrize(
    "answer",
    [
        {"choice": ["42"]},
        {"regex": "4[0-9]"},
        {"json_schema": {"const": 42}},
        {"gbnf": 'root ::= "42"'},
        {"lark": 'start: "42"'},
    ],
    ids=lambda answer: next(iter(answer)),
)
def test_an_outer_grammar_encloses_the_answer(answer: dict[str, Any]) -> None:
    outer = 'start: ("(" /[a-z]+/ ")")? (@answer | "none")'
    walker = Walker({**answer, "outer": outer}, vocabulary())
    for text in ("42", "none", "(so)42", "(so)none"):
        assert walker.accepts(text), text
    for text in ("so", "(so)", "(so)41none", "42none", "(42)"):
        assert not walker.accepts(text), text


def test_an_outer_grammar_may_follow_a_marker() -> None:
    parameter = {"choice": ["42"], "outer": 'start: "\\n"? @answer', "after": "</think>"}
    walker = Walker(parameter, vocabulary())
    assert walker.accepts("Hm, 7.</think>42") and walker.accepts("</think>\n42")
    assert not walker.accepts("42") and not walker.accepts("Hm</think> 42")


def test_white_space_may_follow_a_marker() -> None:
    for space in (False, True):
        parameter = {"choice": ["42"], "after": "</think>", "space": space}
        walker = Walker(parameter, vocabulary())
        assert walker.accepts("Hm</think>42") and not walker.accepts("Hm</think>\n\n\n42")
        assert walker.accepts("Hm</think>\n\n42") == space == walker.accepts("</think> 42")


NAMES = {name: {"type": "boolean"} for name in ("a_rather_long_name", "another_rather_long_name")}
RECORD = {"type": "object", "properties": NAMES, "required": [*NAMES]}


@pytest.mark.parametrize("kind", KINDS)
def test_forced_tokens_are_the_only_ones_that_their_masks_allow(kind: str) -> None:
    """Step by step, and several at once behind the choices."""
    known = vocabulary(kind)
    text = '{"a_rather_long_name":true,"another_rather_long_name":false}'
    ids, drawn, forced = known.encode(text), list[int](), 0
    walker, stepped = Walker({"json_schema": RECORD}, known), Walker({"json_schema": RECORD}, known)
    while len(drawn) < len(ids):
        found = walker.processor.forced(request(0, walker.new))
        walker.new = []
        for token in found:
            assert stepped.next() == {token}
            stepped.new, walker.new = [token], [*walker.new, token]
        forced += len(found)
        drawn += found
        written = b"".join(known.pieces[id] for id in drawn).decode()
        assert text.startswith(written)
        if len(written) < len(text):
            token = next(
                id
                for id in sorted(walker.next())
                if text[len(written) :].encode().startswith(known.pieces[id] or b"?")
            )
            assert token in stepped.next()
            walker.new, stepped.new = [token], [token]
            drawn.append(token)
        else:
            break
    assert forced > len(drawn) / 3


def test_a_forced_token_that_takes_too_long_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    walker = Walker({"choice": ["abcabc"]}, vocabulary())
    monkeypatch.setattr("ostro.plugins.logits.grammar.masks.MAX_TOKEN", -1.0)
    walker.processor.forced(request(0, walker.vocabulary.encode("a")))
    monkeypatch.undo()
    errors = fill(walker.processor, [request(0)], open_masks(walker.vocabulary))
    assert "takes too long" in str(errors[0])
