"""A step waits for masks a short time only: slow grammars wait, others go on."""

from __future__ import annotations

from concurrent.futures import Future
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny.grammars import added, allowed, fill, open_masks, request, vocabulary

from ostro.plugins.logits.grammar import masks as module
from ostro.plugins.logits.grammar.masks import MaskThreads
from ostro.plugins.logits.grammar.processor import GrammarProcessor


class Blocking:
    """A matcher whose first mask takes until `go` is set."""

    def __init__(self, matcher: Any) -> None:
        self.inner, self.begun, self.go = matcher, Event(), Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def unsafe_compute_mask_ptr(self, pointer: int, size: int) -> None:
        self.begun.set()
        assert self.go.wait(10)
        self.inner.unsafe_compute_mask_ptr(pointer, size)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> MaskThreads:
    """The threads of this test, all of which are quick; a step waits until all are done."""
    made = MaskThreads()
    monkeypatch.setattr("ostro.plugins.logits.grammar.processor.MASKS", made)
    monkeypatch.setattr(module, "STEP", 60)
    monkeypatch.setattr(module, "SLOW", 60)
    return made


def two_rows() -> tuple[GrammarProcessor, Blocking, Any]:
    """A processor with a mask that blocks in row 0, and another one in row 1."""
    prepared = GrammarProcessor.prepare({"choice": ["ab", "cd"]}, vocabulary())
    blocking = Blocking(prepared.matcher())
    stub = SimpleNamespace(matcher=lambda: blocking)
    processor = GrammarProcessor(4, vocabulary(), torch.device("cpu"))
    processor.update([added(0, stub), added(1, prepared)], [], [])
    return processor, blocking, prepared


def wait_for(event: Event) -> Any:
    """In place of `wait`: the time of the step is over when `event` is set."""
    return lambda futures, timeout: event.wait(60)


def test_a_step_does_not_wait_for_a_slow_mask(
    threads: MaskThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = vocabulary()
    processor, blocking, _ = two_rows()
    a, c, b, d = (known.pieces.index(piece) for piece in (b"a", b"c", b"b", b"d"))
    masks = open_masks(known, 2)
    with monkeypatch.context() as patch:
        patch.setattr(module, "wait", wait_for(blocking.begun))
        # Row 1 is behind row 0 in the same thread, and has not begun either.
        unfilled = processor.fill([request(0, [a]), request(1, [c])], masks)
    assert unfilled == {0: None, 1: None}
    # Asked again, row 1 goes to another thread, and row 0 is not computed twice.
    assert processor.fill([request(0), request(1)], masks) == {0: None}
    assert allowed(masks[1], known.size) == {d}
    blocking.go.set()
    assert not fill(processor, [request(0), request(1, [])], masks)
    assert [allowed(mask, known.size) for mask in masks] == [{b}, {d}]


def test_a_row_that_has_not_begun_keeps_no_older_mask(
    threads: MaskThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = vocabulary()
    processor, blocking, _ = two_rows()
    c, d = known.pieces.index(b"c"), known.pieces.index(b"d")
    masks = open_masks(known, 1)
    assert not processor.fill([request(1)], masks)  # the mask before the token below
    with monkeypatch.context() as patch:
        patch.setattr(module, "wait", wait_for(blocking.begun))
        assert processor.fill([request(0), request(1, [c])], open_masks(known, 2)) == {
            0: None,
            1: None,
        }
    blocking.go.set()
    assert not processor.fill([request(1)], masks) and allowed(masks[0], known.size) == {d}


def test_no_step_waits_for_a_row_that_was_slow(
    threads: MaskThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its masks have a thread of their own, and it becomes quick again."""
    known = vocabulary()
    processor, blocking, _ = two_rows()
    processor.rows[0].seconds = 61
    masks = open_masks(known, 2)
    # The step waits 60 s for quick rows, and row 0 blocks as long.
    assert processor.fill([request(0), request(1)], masks) == {0: None}
    assert processor.forced(request(1)) == []
    assert processor.rows[0].busy and blocking.begun.wait(60)
    blocking.go.set()
    assert not fill(processor, [request(0)], masks)
    assert torch.equal(masks[0], masks[1]) and not processor.rows[0].slow


def test_tokens_of_a_slow_row_are_read_with_its_next_mask(threads: MaskThreads) -> None:
    """Reading them may take as long as a mask: a step does not wait for that."""
    known = vocabulary()
    processor, blocking, _ = two_rows()
    processor.rows[0].seconds = 61
    a = known.pieces.index(b"a")
    assert processor.forced(request(0, [a])) == [] and processor.rows[0].tokens == [a]
    blocking.go.set()
    masks = open_masks(known, 1)
    assert not fill(processor, [request(0)], masks)
    assert allowed(masks[0], known.size) == {known.pieces.index(b"b")}


def test_masks_that_were_begun_are_not_computed_again(
    threads: MaskThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`begin` does not wait; `fill` waits for what it began."""
    known = vocabulary()
    processor, blocking, _ = two_rows()
    a, c, b, d = (known.pieces.index(piece) for piece in (b"a", b"c", b"b", b"d"))
    processor.begin([request(0, [a]), request(1, [c])])
    assert blocking.begun.wait(60) and processor.rows[0].busy
    blocking.go.set()
    monkeypatch.setattr(threads, "begin", None)
    masks = open_masks(known, 2)
    assert not processor.fill([request(0), request(1)], masks)
    assert [allowed(mask, known.size) for mask in masks] == [{b}, {d}]


@pytest.mark.parametrize("part", ["consume_tokens", "unsafe_compute_mask_ptr"])
def test_a_token_beyond_the_limit_ends_the_sequence_alone(
    threads: MaskThreads, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """The processor time of its tokens and of its mask count."""
    known = vocabulary()
    processor, blocking, _ = two_rows()
    blocking.go.set()
    times = [0.0, 0.0, 0.0, 0.0]
    times[1 if part == "consume_tokens" else 3] = module.MAX_TOKEN * 2
    times[2] = times[1]
    row = processor.rows[0]
    monkeypatch.setattr(module, "thread_time", lambda: times.pop(0))
    masks = open_masks(known, 1)
    [error] = fill(processor, [request(0, [known.pieces.index(b"a")])], masks).values()
    assert "takes too long to read" in str(error) and row.error is error
    monkeypatch.undo()
    assert not fill(processor, [request(1)], masks)


def test_a_panic_ends_the_sequence_alone(
    threads: MaskThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Panic(BaseException):
        """What an extension in Rust raises when it panics."""

    def panic(*args: Any) -> None:
        raise Panic("no such state")

    known = vocabulary()
    processor, blocking, _ = two_rows()
    monkeypatch.setattr(blocking, "unsafe_compute_mask_ptr", panic)
    masks = open_masks(known, 2)
    [(index, error)] = fill(processor, [request(0), request(1)], masks).items()
    assert index == 0 and "Panic: no such state" in str(error)


def test_many_masks_share_threads(threads: MaskThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many threads as pay compute the masks of a large batch, each mask once."""
    known, rows = vocabulary(), 100
    prepared = GrammarProcessor.prepare({"choice": ["ab", "cd"]}, known)
    processor = GrammarProcessor(rows, known, torch.device("cpu"))
    processor.update([added(row, prepared) for row in range(rows)], [], [])
    a, c, b, d = (known.pieces.index(piece) for piece in (b"a", b"c", b"b", b"d"))
    started = list[Future[None]]()
    submit = threads._quick.submit

    def note(*args: Any) -> Future[None]:
        started.append(submit(*args))
        return started[-1]

    monkeypatch.setattr(threads._quick, "submit", note)
    masks = open_masks(known, rows)
    requests = [request(row, [c if row % 2 else a]) for row in range(rows)]
    assert not fill(processor, requests, masks)
    assert [allowed(mask, known.size) for mask in masks] == [{b}, {d}] * (rows // 2)
    assert len(started) == module.THREADS
