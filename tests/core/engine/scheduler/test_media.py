"""The scheduler: media of prompts, encoded within the budget of a step."""

from __future__ import annotations

import pytest
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


def test_the_media_of_a_step_cost_no_more_than_its_rows() -> None:
    loop = Loop(rows=20)
    loop.add(30, items=[image(f"{i}", 4 + 6 * i, 4, cost=8) for i in range(4)])
    plan = loop.step()
    assert len(plan.encodes) == 2 and shape(plan) == [("0", 0, 16)], "up to the third image"
    plan = loop.step()
    assert len(plan.encodes) == 2 and shape(plan) == [("0", 16, 14)]


def test_the_first_medium_of_a_step_is_encoded_whatever_it_costs() -> None:
    loop = Loop(rows=20)
    loop.add(12, items=[image("a", 2, 4, cost=1000), image("b", 8, 2, cost=1000)])
    assert [sorted(loop.step().encodes) for _ in range(2)] == [[b"a"], [b"b"]]


def test_a_medium_is_encoded_in_the_step_that_reaches_it() -> None:
    loop = Loop(rows=8)
    loop.add(20, items=[image("a", 10, 4)])
    assert not loop.step().encodes
    assert list(loop.step().encodes) == [b"a"]


def test_a_medium_in_two_requests_is_encoded_once() -> None:
    loop = Loop(rows=40)
    for _ in range(2):
        loop.add(12, items=[image("a", 4, 4, cost=15)])
    assert loop.step().encode_cost == 15
    loop.add(12, items=[image("a", 2, 4, cost=15)])
    assert not loop.step().encodes


def test_evicted_features_are_encoded_again_if_rows_remain() -> None:
    loop = Loop(rows=8, features=0)
    loop.add(16, items=[image("a", 4, 4, (10, 4)), image("b", 0, 2)], limit=2)
    encoded = [sorted(plan.encodes) for plan in loop.run()]
    assert encoded == [[b"a", b"b"], [b"a"], []]


@pytest.mark.parametrize("rows", range(1, 26))
def test_no_chunk_ends_within_an_atomic_span(rows: int) -> None:
    """The loop checks it in every step; a span that is longer than a step is computed at once."""
    loop = Loop(rows=rows)
    loop.add(10, limit=8)
    loop.step()
    loop.add(40, items=[image("a", 3, 9, (14, 5), atomic=True), image("b", 20, 15, atomic=True)])
    chunks = [(c.start, c.start + c.count) for p in loop.run() for c in p.chunks]
    assert any(start <= 20 and 35 <= stop for start, stop in chunks)


def test_an_atomic_span_that_does_not_fit_the_rest_of_a_step_waits_for_its_first_row() -> None:
    loop = Loop(rows=10)
    loop.add(20, items=[image("a", 6, 8, atomic=True)])
    assert [shape(loop.step()) for _ in range(3)] == [[("0", 0, 6)], [("0", 6, 10)], [("0", 16, 4)]]


def test_a_prefix_hit_does_not_end_within_an_atomic_span() -> None:
    loop, items = Loop(rows=100), [image("a", 6, 8, atomic=True)]
    loop.add(range(11), items=[image("a", 6, 5, atomic=True)], limit=1)
    loop.run()
    loop.add(range(20), items=items, limit=1)
    loop.run()
    loop.add([*range(14), 500], items=items, limit=1)
    assert shape(loop.step()) == [("2", 4, 11)], "12 tokens are known, the span ends at 14"


def test_a_prefix_with_another_image_is_another_prefix() -> None:
    loop = Loop(rows=100)
    for key, start in (("a", 0), ("b", 4), ("a", 12)):
        loop.add(range(16), items=[image(key, 5, 4)], limit=1)
        assert loop.step().chunks[0].start == start
        loop.run()


def test_a_cross_medium_is_written_once_and_shared() -> None:
    loop = Loop(pages(64), cross(4), rows=40)
    loop.add(range(12), items=[view("a", 3)])
    plan = loop.step()
    assert [memory.item.key for memory in plan.encoder_blocks] == [b"a"] and plan.encode_cost == 1
    other = loop.add(6, items=[view("a", 2)])
    assert not loop.step().encoder_blocks
    assert [
        loop.blocks.cross_groups[0].pool.users[b] for b in other.encoder_blocks[0].blocks[0]
    ] == [
        2,
        2,
    ]
    loop.run()
    assert loop.blocks.cross_groups[0].pool.used == 0


def test_a_request_without_blocks_for_its_media_waits_without_blocks() -> None:
    loop = Loop(pages(64), cross(3), rows=40, room=Room(2))
    loop.add(6, items=[view("a", 2)], mixture=lora("x"))
    loop.add(6, items=[view("b", 2, length=4), view("c", 4)], mixture=lora("y"))
    loop.step()
    assert ids(loop.scheduler.waiting) == ["1"]
    assert loop.blocks.cross_groups[0].pool.used == 2
    loop.run()
    assert ids(loop.finished) == ["0", "1"]
