"""The scheduler: chunks of prompts, decode rows, and block boundaries of cache kinds."""

from __future__ import annotations

import pytest
from tiny.loop import (
    Loop,
    pages,
    states,
)
from tiny.plans import shape

from ostro.core.engine.scheduler import LOGPROB_ROWS


def test_a_long_prompt_is_computed_in_chunks_of_max_rows() -> None:
    loop = Loop(rows=16)
    loop.add(40, limit=1)
    plans = loop.run()
    assert [shape(plan) for plan in plans] == [[("0", 0, 16)], [("0", 16, 16)], [("0", 32, 8)]]
    assert [chunk.draws for plan in plans for chunk in plan.chunks] == [False, False, True]


def test_decode_rows_come_first_and_chunks_of_prompts_share_the_rest() -> None:
    loop = Loop(rows=10)
    loop.add(4, limit=9)
    loop.add(3, limit=9)
    loop.step()
    loop.add(20, limit=1)
    loop.add(6, limit=1)
    assert shape(loop.step()) == [("0", 4, 1), ("1", 3, 1), ("2", 0, 8)]
    assert shape(loop.step()) == [("0", 5, 1), ("1", 4, 1), ("2", 8, 8)]
    assert shape(loop.step()) == [("0", 6, 1), ("1", 5, 1), ("2", 16, 4), ("3", 0, 4)]


def test_a_running_prompt_continues_before_a_waiting_one_is_admitted() -> None:
    loop = Loop(rows=8)
    loop.add(12)
    loop.add(8)
    assert shape(loop.step()) == [("0", 0, 8)]
    assert shape(loop.step()) == [("0", 8, 4), ("1", 0, 4)]


def test_decodes_beyond_max_rows_are_ordered_by_priority_and_arrival() -> None:
    loop = Loop(rows=2, seqs=4)
    loop.add(1, limit=3, priority=1)
    loop.step()
    loop.add(1, limit=2)
    loop.add(1, limit=3, priority=1)
    assert shape(loop.step()) == [("1", 0, 1), ("0", 1, 1)]
    assert shape(loop.step()) == [("1", 1, 1), ("0", 2, 1)]
    assert shape(loop.step()) == [("2", 0, 1)]


def test_only_steps_of_single_drawing_rows_are_decodes() -> None:
    loop = Loop(rows=4)
    loop.add(1, limit=9)
    assert loop.step().decodes, "a prompt of one token is one row that draws"
    loop.add(6, limit=9)
    assert not loop.step().decodes
    loop.add(4, limit=9)
    plan = loop.step()
    assert [(c.count, c.draws) for c in plan.chunks] == [(1, True), (3, True)]
    assert not plan.decodes
    plan = loop.step()
    assert [(c.count, c.draws) for c in plan.chunks] == [(1, True), (1, True), (2, False)]
    assert not plan.decodes


def test_prompt_logprobs_bound_a_chunk_and_use_no_prefix_cache() -> None:
    loop, prompt = Loop(rows=1000), range(LOGPROB_ROWS + 10)
    loop.add(prompt, limit=1)
    loop.run()
    loop.add(prompt, limit=1, prompt_logprobs=0)
    assert shape(loop.step()) == [("1", 0, LOGPROB_ROWS)]
    assert shape(loop.step()) == [("1", LOGPROB_ROWS, 10)]


def test_a_request_at_its_limit_is_not_scheduled_before_its_last_token_is_read() -> None:
    loop = Loop(lag=1)
    loop.add(4, limit=2)
    assert [shape(loop.step()) for _ in range(3)] == [[("0", 0, 4)], [("0", 4, 1)], []]
    loop.run()
    assert [len(s.tokens) for s in loop.finished] == [6]


@pytest.mark.parametrize("waits", [False, True])
def test_a_sequence_that_reads_tokens_draws_in_every_step(waits: bool) -> None:
    loop = Loop(lag=1)
    loop.add(4, limit=3, waits=waits)
    loop.add(4, limit=3)
    found = [shape(loop.step()) for _ in range(4)]
    both = [[("0", i, 1), ("1", i, 1)] for i in (4, 5)]
    assert found == [[("0", 0, 4), ("1", 0, 4)], *both, []]


def test_chunks_end_at_block_boundaries_if_blocks_are_states() -> None:
    loop = Loop(pages(64), states(16), rows=10)
    loop.add(21, limit=4)
    assert [shape(loop.step()) for _ in range(4)] == [
        [("0", 0, 8)],
        [("0", 8, 8)],
        [("0", 16, 4)],
        [("0", 20, 1)],
    ]


def test_a_window_releases_blocks_between_steps() -> None:
    loop = Loop(pages(64), pages(6, window=6), rows=8)
    sequence = loop.add(60, limit=20)
    most = 0
    while loop.live:
        loop.step()
        most = max(most, loop.blocks.groups[1].pool.used)
    assert len(sequence.tokens) == 80 and most <= 5
