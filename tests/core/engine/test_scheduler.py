"""The scheduler on integers: admission, chunks, preemption, sharing, media, adapters, abort."""

from __future__ import annotations

import random

import pytest
from tiny.loop import (
    BLOCK,
    Loop,
    Room,
    cross,
    image,
    lora,
    pages,
    states,
    view,
    xlora,
)

from ostro.core.engine.request import Dry
from ostro.core.engine.scheduler import LOGPROB_ROWS, StepPlan
from ostro.core.engine.sequence import Sequence


def shape(plan: StepPlan) -> list[tuple[str, int, int]]:
    """(request, start, count) of each chunk."""
    return [(c.sequence.request.id, c.start, c.count) for c in plan.chunks]


def ids(sequences: list[Sequence]) -> list[str]:
    return [sequence.request.id for sequence in sequences]


# Admission


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


# Chunks


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


@pytest.mark.parametrize(
    "rules", [{"dry": Dry(multiplier=1.0)}, {"waits": True}], ids=["dry", "host processor"]
)
def test_a_rule_that_needs_host_tokens_waits_for_each(rules: dict[str, object]) -> None:
    loop = Loop(lag=1)
    loop.add(4, limit=3, **rules)
    loop.add(4, limit=3)
    found = [shape(loop.step()) for _ in range(4)]
    assert found == [[("0", 0, 4), ("1", 0, 4)], [("1", 4, 1)], [("0", 4, 1), ("1", 5, 1)], []]


def test_dry_without_a_multiplier_does_not_wait() -> None:
    loop = Loop(lag=1)
    loop.add(4, limit=3, dry=Dry(multiplier=0.0))
    loop.step()
    assert shape(loop.step()) == [("0", 4, 1)]


# Prefix cache


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


# Preemption


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


# Choices


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


# Media


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


# Adapters


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


# X-LoRA


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


# Cache kinds


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


# Abort


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


# Random requests


SETTINGS = {
    "pages": lambda: [pages(24)],
    "window": lambda: [pages(24), pages(16, window=6)],
    "states": lambda: [states(14), pages(24)],
    "cross": lambda: [pages(24), cross(6)],
}


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("kinds", SETTINGS)
@pytest.mark.parametrize("seed", range(12))
def test_random_requests_finish_and_release_all_blocks(seed: int, kinds: str, lag: int) -> None:
    """The loop checks rows, slots, users and adapters in every step."""
    rng = random.Random(seed)
    loop = Loop(
        *SETTINGS[kinds](),
        rows=rng.choice([3, 7, 16]),
        seqs=rng.choice([1, 3, 6]),
        lag=lag,
        room=Room(rng.choice([1, 2, 4])),
        features=rng.choice([0, 2, 100]),
    )
    aborted, added = set[Sequence](), list[Sequence]()
    for _ in range(60):
        if rng.random() < 0.5:
            added += random_request(loop, rng, kinds)
        if loop.live and rng.random() < 0.1:
            sequence = rng.choice(loop.live)
            loop.abort(sequence)
            aborted.add(sequence)
        loop.step()
    loop.run()
    assert [s.finish for s in added if s not in aborted] == ["length"] * len(loop.finished)
    assert all(len(s.tokens) == s.prompt + s.limit for s in loop.finished)
    pools = [group.pool for group in loop.blocks.all]
    assert all(pool.used == 0 and pool.available == pool.size for pool in pools)
    assert sorted(loop.scheduler.rows) == list(range(loop.scheduler.max_seqs))


def random_request(loop: Loop, rng: random.Random, kinds: str) -> list[Sequence]:
    """A prompt with a common prefix; sometimes with media, adapters, choices and priorities."""
    length = rng.choice([1, 5, BLOCK, 2 * BLOCK, 18, 30])
    prompt = [*range(rng.randrange(length + 1))]
    prompt += [rng.randrange(3) for _ in range(length - len(prompt))]
    mixtures = [lora("x"), lora("x", scale=0.5), lora("y", since=3)]
    if kinds != "cross":
        mixtures += [xlora("m"), xlora("m", held_after=2)]
    mixture = {"mixture": rng.choice(mixtures)} if rng.random() < 0.3 else {}
    items = []
    if length >= 18 and rng.random() < 0.5 and not mixture:
        key, first = rng.choice("abc"), rng.randrange(8)
        if kinds == "cross":
            items = [view(key, first, length=rng.choice([4, 8]), cost=5)]
        elif kinds != "states":
            items = [image(key, first, 6, (first + 7, 3), atomic=rng.random() < 0.5, cost=5)]
    return loop.choices(
        prompt,
        n=rng.choice([1, 1, 1, 3]),
        limit=rng.choice([1, 3, 12]),
        priority=rng.choice([0, 0, 1]),
        salt=rng.choice(["", "", "other"]),
        cache=rng.random() < 0.9,
        items=items,
        waits=rng.random() < 0.1,
        **mixture,
    )
