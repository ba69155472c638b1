"""The scheduler: preemption by priority and for lack of blocks."""

from __future__ import annotations

from tiny.loop import (
    Loop,
    Room,
    cross,
    image,
    lora,
    pages,
    view,
)
from tiny.plans import ids, shape


def crowded(*priorities: int, lag: int = 0) -> Loop:
    """Requests that fill their pool with their prompts and must grow by a block each."""
    loop = Loop(pages(2 * len(priorities)), rows=100, seqs=8, lag=lag)
    for priority in priorities:
        loop.add(7, limit=6, priority=priority)
    return loop


def test_preempts_the_youngest_request() -> None:
    loop = crowded(0, 0, 0)
    while not loop.scheduler.preemptions:
        loop.step()
    assert ids(loop.scheduler.waiting) == ["2"]
    loop.run()
    assert ids(loop.finished) == ["0", "1", "2"] and loop.scheduler.preemptions == 1


def test_preempts_the_lowest_priority_first() -> None:
    loop = crowded(2, 0, 1)
    while not loop.scheduler.preemptions:
        loop.step()
    assert ids(loop.scheduler.waiting) == ["0"]
    loop.run()
    assert ids(loop.finished) == ["1", "2", "0"]


def test_a_request_without_a_younger_one_preempts_itself() -> None:
    loop = Loop(pages(4), rows=100)
    loop.add(7, limit=8)
    late = loop.add(7, limit=6, priority=1)
    late.arrival = -1  # its priority still makes it the last in line
    while not loop.scheduler.preemptions:
        loop.step()
    assert loop.scheduler.waiting == [late] and late.tables[0].blocks == []


def test_a_preempted_request_is_computed_again_with_what_it_has_drawn() -> None:
    loop = crowded(0, 0)
    first, second = loop.live
    while not loop.scheduler.preemptions:
        loop.step()
    drawn = len(second.tokens) - 7
    assert drawn > 0 and (second.computed, second.published, second.row) == (0, 0, -1)
    plans = loop.run()
    again = next(c for plan in plans for c in plan.chunks if c.sequence is second)
    assert again.start + again.count == 7 + drawn and again.draws
    assert [len(s.tokens) for s in (first, second)] == [13, 13]


def test_a_preempted_request_reports_the_cached_tokens_of_its_first_start() -> None:
    loop = crowded(0, 0)
    loop.run()
    assert loop.scheduler.preemptions and [s.cached for s in loop.finished] == [0, 0]


def test_a_preempted_request_waits_for_its_pending_token() -> None:
    loop = crowded(0, 0, lag=1)
    second = loop.live[1]
    while not loop.scheduler.preemptions:
        loop.step()
    # The step that it drew in was read at the end of the pass that preempted it.
    assert not second.pending
    second.pending = 1
    assert not second.startable
    second.pending = 0
    loop.run()
    assert [len(s.tokens) for s in loop.finished] == [13, 13]


def test_a_preempted_request_keeps_its_queue_position() -> None:
    loop = crowded(0, 0, 0)
    loop.add(7, limit=1)
    while not loop.scheduler.preemptions:
        loop.step()
    assert ids(loop.scheduler.waiting) == ["2", "3"]


def test_a_request_whose_rows_are_planned_is_preempted_by_a_better_one() -> None:
    """Both compute their prompts; the pool holds 12 tokens and 11 of these, and one block more."""
    loop = Loop(pages(6), rows=12)
    loop.add(14, priority=1, limit=1)
    loop.step()
    loop.add(11, priority=0, limit=1)
    assert shape(loop.step()) == [("1", 0, 10)]
    assert loop.scheduler.preemptions == 1
    loop.run()
    assert ids(loop.finished) == ["1", "0"]


def test_a_request_preempted_while_planning_is_not_in_the_plan() -> None:
    """Nor are its media: the adapters of their encoder are released with it."""
    room = Room(2)
    loop = Loop(pages(64), cross(8), rows=100, room=room)
    for key in ("x", "y"):
        items = [image(key, 0, 4), view(f"{key} seen", 5)]
        loop.add(9, limit=1, items=items, mixture=lora(key, encodes=True))
    first, second = loop.live
    plan = loop.scheduler.plan()
    assert plan.mixture_rows == {b"x": 1, b"x seen": 1, b"y": 2, b"y seen": 2}
    loop.scheduler.preempt(first, plan)
    assert [chunk.sequence for chunk in plan.chunks] == plan.started == [second]
    assert list(plan.encodes) == [b"y"] and [m.item.key for m in plan.encoder_blocks] == [b"y seen"]
    assert plan.mixture_rows == {b"y": 2, b"y seen": 2} and list(room.mixtures) == [2]


def test_a_better_priority_preempts_the_worst() -> None:
    loop = Loop(seqs=2)
    loop.add(3, priority=1)
    loop.add(3, priority=2)
    loop.step()
    loop.add(3, priority=0)
    plan = loop.step()
    assert ids(plan.started) == ["2"] and sorted(ids(loop.scheduler.running)) == ["0", "2"]
    assert ids(loop.scheduler.waiting) == ["1"]


def test_the_same_priority_preempts_nothing() -> None:
    loop = Loop(seqs=1)
    loop.add(3, priority=1, limit=9)
    loop.step()
    loop.add(3, priority=1)
    loop.add(3, priority=2)
    loop.step()
    assert ids(loop.scheduler.running) == ["0"] and not loop.scheduler.preemptions


def test_a_better_priority_preempts_nothing_where_there_is_room() -> None:
    loop = Loop(seqs=2)
    loop.add(3, priority=1, limit=9)
    loop.step()
    loop.add(3, priority=0)
    assert ids(loop.step().started) == ["1"] and not loop.scheduler.preemptions
