"""The scheduler: adapters of requests, and X-LoRA."""

from __future__ import annotations

import pytest
from tiny.loop import (
    Loop,
    Room,
    image,
    lora,
    pages,
    states,
    xlora,
)
from tiny.plans import ids, shape


def test_adapters_are_not_acquired_before_a_row_is_free() -> None:
    room = Room(4)
    loop = Loop(seqs=1, room=room)
    loop.add(3, limit=3)
    loop.step()
    loop.add(3, mixture=lora("x"))
    loop.step()
    assert room.calls == 0
    loop.run()
    assert ids(loop.finished) == ["0", "1"] and not room.used


def test_adapters_are_released_if_the_blocks_do_not_suffice() -> None:
    room = Room(4)
    loop = Loop(pages(4), room=room)
    loop.add(8, limit=4)
    loop.step()
    loop.add(8, mixture=lora("x"))
    loop.step()
    assert ids(loop.scheduler.waiting) == ["1"] and not room.used


@pytest.mark.parametrize("how", ["finish", "abort", "preempt"])
def test_adapters_are_released_with_the_row(how: str) -> None:
    room = Room(1)
    loop = Loop(seqs=1, room=room)
    sequence = loop.add(3, mixture=lora("x"), priority=1)
    loop.step()
    assert room.used == 1
    if how == "finish":
        loop.run()
    elif how == "abort":
        loop.abort(sequence)
    else:
        loop.add(3, priority=0)
        loop.step()
    assert room.used == 0 and sequence.lease.rows == ()


def test_only_requests_without_adapters_overtake_one_whose_adapters_do_not_fit() -> None:
    loop = Loop(seqs=8, rows=100, room=Room(1))
    for mixture in (lora("x"), lora("y"), lora("x"), None, lora("z"), None):
        loop.add(3, limit=2, **({"mixture": mixture} if mixture else {}))
    assert ids(loop.step().started) == ["0", "3", "5"], "not even one with adapters on the device"
    loop.run()
    assert ids(loop.finished) == ["0", "3", "5", "1", "2", "4"]


def test_requests_with_the_same_adapters_run_together() -> None:
    loop = Loop(seqs=8, rows=100, room=Room(1))
    for _ in range(3):
        loop.add(3, mixture=lora("x"))
    assert ids(loop.step().started) == ["0", "1", "2"]


def test_media_are_encoded_under_the_adapters_of_their_request() -> None:
    loop = Loop(rows=100, room=Room(2))
    loop.add(8, items=[image("x", 2, 4)], mixture=lora("x", encodes=True))
    loop.add(8, items=[image("y", 2, 4)], mixture=lora("y", encodes=True))
    loop.add(8, items=[image("plain", 2, 4)])
    plan = loop.step()
    assert plan.mixture_rows == {b"x": 1, b"y": 2} and list(plan.encodes) == [b"x", b"y", b"plain"]


def test_an_xlora_request_is_computed_in_two_passes() -> None:
    loop = Loop(rows=100, room=Room(2))
    sequence = loop.add(range(10), mixture=xlora("x"))
    loop.step()
    assert sequence.passes == len(sequence.tables) == 2
    assert not set(sequence.tables[0].blocks) & set(sequence.tables[1].blocks)
    loop.run()
    loop.add(range(10), mixture=xlora("x"))
    assert shape(loop.step()) == [("1", 8, 2)]


def test_an_xlora_request_resumes_only_what_both_passes_have() -> None:
    """Base requests have published blocks of the base pass, none of the other."""
    loop = Loop(rows=100, room=Room(2))
    loop.add(range(10))
    loop.run()
    second = loop.add(range(10), mixture=xlora("x"))
    assert shape(loop.step()) == [("1", 0, 10)]
    loop.run()
    assert second.cached == 0


def test_blocks_after_the_last_scaling_are_not_shared() -> None:
    """From the third drawn token on, scalings depend on the length of the prompt."""
    loop = Loop(rows=100, room=Room(2))
    first = loop.add(range(9), limit=12, mixture=xlora("x", held_after=3))
    assert first.scaling_end == 12
    loop.run()
    loop.add(first.tokens, mixture=xlora("x", held_after=3))
    assert shape(loop.step()) == [("1", 12, 9)]


def test_rows_after_the_last_scaling_have_no_base_pass() -> None:
    loop = Loop(rows=100, room=Room(2))
    loop.add(range(9), limit=12, mixture=xlora("x", held_after=3))
    own = [chunk.with_scalings.count for plan in loop.run() for chunk in plan.chunks]
    assert own == [9, 1, 1, 1] + [0] * 8


def test_a_step_ends_at_the_last_scaling() -> None:
    """The state of a recurrent layer by the base alone is written in the block of that token."""
    loop = Loop(pages(64), states(16), seqs=1, rows=100, room=Room(2))
    loop.add(9, limit=12, mixture=xlora("x", held_after=3), priority=1, cache=False)
    for _ in range(9):
        loop.step()
    loop.add(3, limit=1)
    plans = loop.run()
    again = shape(plans[1]) + shape(plans[2])
    assert again == [("0", 0, 12), ("0", 12, 4)]
