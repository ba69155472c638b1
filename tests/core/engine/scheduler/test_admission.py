"""The scheduler: admission of waiting requests, and aborts."""

from __future__ import annotations

from tiny.loop import (
    Loop,
    Room,
    lora,
    pages,
)
from tiny.plans import ids


def test_admits_by_priority_and_then_by_arrival() -> None:
    loop = Loop(rows=100, seqs=8)
    for priority in (1, 0, 1, -3, 0):
        loop.add(5, priority=priority)
    assert ids(loop.step().started) == ["3", "1", "4", "0", "2"]


def test_admits_no_more_than_max_seqs() -> None:
    loop = Loop(rows=100, seqs=2)
    for _ in range(4):
        loop.add(3, limit=2)
    plan = loop.step()
    assert ids(plan.started) == ["0", "1"] and ids(loop.scheduler.waiting) == ["2", "3"]
    loop.step()
    assert ids(loop.step().started) == ["2", "3"]


def test_a_request_that_lacks_blocks_waits_until_another_has_finished() -> None:
    """Its whole prompt and one token more must fit, though one step computes a part."""
    loop = Loop(pages(6), rows=8)
    loop.add(10, limit=2)
    loop.add(12, limit=2)
    loop.step()
    assert ids(loop.scheduler.running) == ["0"] and ids(loop.scheduler.waiting) == ["1"]
    loop.run()
    assert ids(loop.finished) == ["0", "1"] and not loop.scheduler.preemptions


def test_a_request_that_fits_does_not_overtake_one_that_lacks_blocks() -> None:
    loop = Loop(pages(6), rows=40)
    for length in (10, 16, 3):
        loop.add(length)
    assert ids(loop.step().started) == ["0"]
    assert ids(loop.scheduler.waiting) == ["1", "2"]


def test_a_prompt_without_output_may_fill_the_pool() -> None:
    loop = Loop(pages(2), rows=40)
    loop.add(8, limit=0)
    loop.run()
    assert ids(loop.finished) == ["0"]


def test_abort_removes_running_and_waiting_requests() -> None:
    loop = Loop(seqs=1, room=Room(1))
    running = loop.add(9, mixture=lora("x"))
    waiting = loop.add(9)
    loop.step()
    loop.abort(waiting)
    assert not loop.scheduler.waiting and loop.scheduler.running == [running]
    loop.abort(running)
    pool = loop.blocks.groups[0].pool
    assert not loop.scheduler.running and pool.used == 0 and loop.room and not loop.room.used
    loop.abort(running)
    assert loop.scheduler.rows == [0], "its row is released once"


def test_abort_of_a_running_request_drops_its_pending_token() -> None:
    loop = Loop(lag=1)
    first, second = loop.add(5), loop.add(5)
    loop.step()
    loop.abort(first)
    loop.run()
    assert len(first.tokens) == 5 and len(second.tokens) == 9
