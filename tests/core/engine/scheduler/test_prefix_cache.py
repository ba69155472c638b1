"""The scheduler: blocks shared through the prefix cache and among choices."""

from __future__ import annotations

import pytest
from tiny.loop import (
    Loop,
    Room,
    lora,
)
from tiny.plans import shape


def test_a_prompt_reuses_the_blocks_of_its_longest_cached_prefix() -> None:
    loop = Loop(rows=100)
    loop.add(range(14), limit=4)
    loop.run()
    other = loop.add([*range(10), 500, 501], limit=1)
    assert shape(loop.step()) == [("1", 8, 4)]
    assert other.cached == 8


def test_at_least_one_token_of_a_cached_prompt_is_computed() -> None:
    loop = Loop(rows=100)
    loop.add(range(8), limit=1)
    loop.run()
    loop.add(range(8), limit=1)
    assert shape(loop.step()) == [("1", 4, 4)], "the second block is all of the rest"


def test_the_next_turn_reuses_drawn_tokens() -> None:
    loop = Loop(rows=100)
    first = loop.add(5, limit=8)
    loop.run()
    loop.add([*first.tokens, 500], limit=1)
    assert shape(loop.step()) == [("1", 12, 2)]


@pytest.mark.parametrize("other", [{"salt": "b"}, {"cache": False}, {"mixture": lora("x")}])
def test_salts_uncached_requests_and_adapters_share_no_prefix(
    other: dict[str, object],
) -> None:
    loop = Loop(rows=100, room=Room(1))
    loop.add(range(12), limit=1)
    loop.run()
    loop.add(range(12), limit=1, **other)
    assert shape(loop.step()) == [("1", 0, 12)]
    loop.run()
    loop.add(range(12), limit=1)
    assert shape(loop.step()) == [("2", 8, 4)]


def test_an_uncached_request_publishes_no_block() -> None:
    loop = Loop(rows=100)
    loop.add(range(12), limit=4, cache=False)
    loop.run()
    loop.add(range(12), limit=1)
    assert shape(loop.step()) == [("1", 0, 12)]


def test_an_adapter_that_begins_later_shares_what_comes_before() -> None:
    """An activated adapter changes nothing in the blocks that end before its first token."""
    loop = Loop(rows=100, room=Room(2))
    loop.add(range(16), limit=1)
    loop.run()
    loop.add(range(16), limit=1, mixture=lora("x", since=9))
    assert shape(loop.step()) == [("1", 8, 8)]


def test_choices_wait_for_the_first_and_share_its_prompt() -> None:
    loop = Loop(rows=100)
    loop.choices(range(10), n=3, limit=3)
    assert shape(loop.step()) == [("0", 0, 10)]
    plan = loop.step()
    assert [(c.sequence.index, c.start, c.count) for c in plan.chunks] == [
        (0, 10, 1),
        (1, 8, 2),
        (2, 8, 2),
    ]
    pool = loop.blocks.groups[0].pool
    assert pool.users.count(3) == 2, "the two full blocks of the prompt have three users"
    loop.run()
    assert sorted(s.index for s in loop.finished) == [0, 1, 2]


def test_choices_start_if_the_first_is_aborted_before_it_draws() -> None:
    loop = Loop(rows=4)
    first, *_ = loop.choices(range(10), n=3, limit=2)
    loop.step()
    loop.abort(first)
    loop.run()
    assert [s.index for s in loop.finished] == [1, 2]
