"""Decode buckets: fixed input addresses, idle rows, poison, and the choice of a bucket."""

from __future__ import annotations

import pytest
import torch
from tiny.loop import BLOCK, Room, cross, lora
from tiny.sums import VOCAB, SumModel, runner_of, sum_pages

from ostro.core.adapters.pool import NOTHING
from ostro.core.engine.blocks import BlockTable
from ostro.core.engine.decode_graphs import POISON, DecodeBucket
from ostro.core.engine.runner import ModelRunner
from ostro.core.engine.scheduler import Chunk, StepPlan
from ostro.core.engine.sequence import Sequence as TokenSequence
from ostro.core.messages.requests import TokenRequest

CONTEXT = 20


def runner(replay: bool = False, captured: int = 4, room: Room | None = None) -> ModelRunner:
    made = runner_of(
        SumModel(), sum_pages(16), context=CONTEXT, captured=captured, replay=replay, room=room
    )
    made.capture()
    return made


def decode(row: int, tokens: list[int], *blocks: int, unread: bool = False) -> Chunk:
    """The newest row of a sequence; with `unread`, its token is on the device only."""
    request = TokenRequest(id=str(row), tokens=tokens)
    sequence = TokenSequence(
        request, 0, arrival=0, seed=0, root=b"", limit=9, tokens=list(tokens), prompt=1
    )
    sequence.row, sequence.pending = row, int(unread)
    sequence.tables = [BlockTable(list(blocks))]
    return Chunk(sequence, sequence.length - 1, 1, draws=True)


def tensors_of(bucket: DecodeBucket) -> list[torch.Tensor]:
    """All inputs of a model with one group of layers."""
    [batch] = bucket.batches
    layout = [batch.table, batch.starts, batch.lengths, batch.slots]
    return [bucket.tokens, bucket.positions, *layout]


def test_rows_that_a_step_does_not_fill_are_idle() -> None:
    bucket = DecodeBucket(runner(), 4)
    bucket.load([decode(2, [5, 6, 7, 8, 9], 11, 3), decode(0, [4], 7)])
    [batch] = bucket.batches
    assert bucket.tokens.tolist() == [9, 4, 0, 0]
    assert bucket.positions.tolist() == [[4, 0, 0, 0]] * 2
    assert batch.lengths.tolist() == [5, 1, 0, 0] and batch.starts.tolist() == [0, 1, 2, 3, 4]
    assert batch.slots.tolist() == [12, 28, -1, -1]
    assert batch.table.tolist() == [[11, 3, 0, 0, 0, 0], [7] + [0] * 5, [0] * 6, [0] * 6]
    assert (batch.max_queries, batch.max_length) == (1, CONTEXT)
    assert batch.host is not None
    assert (batch.host.starts, batch.host.lengths) == ([0, 1, 2, 3, 4], [5, 1, 0, 0])
    assert batch.host.blocks == [[11, 3], [7], [], []]


def test_a_smaller_step_has_no_inputs_of_the_previous_one() -> None:
    bucket = DecodeBucket(runner(), 4)
    bucket.load([decode(i, [9] * 5, 8 + i, 12 + i) for i in range(4)])
    bucket.load([decode(1, [3], 2)])
    [batch] = bucket.batches
    assert bucket.tokens.tolist() == [3, 0, 0, 0] and batch.lengths.tolist() == [1, 0, 0, 0]
    assert batch.slots.tolist() == [8, -1, -1, -1] and int(batch.table.sum()) == 2
    assert not bucket.positions.any()


def test_a_pending_token_comes_from_its_sampler_row() -> None:
    made = runner()
    made.sampler.last = torch.tensor([50, 51, 52, 53])
    bucket = DecodeBucket(made, 4)
    unread = [decode(2, [5, 6], 1, unread=True), decode(3, [5], 3, unread=True)]
    bucket.load([unread[0], decode(1, [5, 6], 2), unread[1]])
    assert bucket.tokens.tolist() == [52, 6, 53, 0]
    assert bucket.positions[0].tolist() == [2, 1, 1, 0]


def test_inputs_keep_their_addresses() -> None:
    """A graph reads them at the addresses of its capture."""
    bucket = DecodeBucket(runner(), 4)
    before = [(tensor.data_ptr(), tensor.shape) for tensor in tensors_of(bucket)]
    bucket.load([decode(1, [3], 2)])
    assert [(tensor.data_ptr(), tensor.shape) for tensor in tensors_of(bucket)] == before
    assert bucket.step.tokens is bucket.tokens and bucket.step.positions is bucket.positions
    assert bucket.step.caches[0][1] is bucket.batches[0]


def test_replay_poisons_all_inputs_after_a_step() -> None:
    bucket = DecodeBucket(runner(replay=True), 4)
    assert bucket.run([decode(1, [3], 2)]).shape == (1, VOCAB)
    assert all((tensor == POISON).all() for tensor in tensors_of(bucket))
    assert bucket.batches[0].host is None
    bucket = DecodeBucket(runner(replay=False), 4)
    bucket.run([decode(1, [3], 2)])
    assert not any((tensor == POISON).any() for tensor in tensors_of(bucket))


def test_a_model_that_cannot_be_captured_has_buckets_in_replay_mode_only() -> None:
    """This one reads numbers on the host."""
    assert not runner(replay=False).buckets and sorted(runner(replay=True).buckets) == [1, 2, 4]


def test_a_bucket_of_mixed_steps_has_rows_of_the_mixture_table() -> None:
    pool = Room(2)
    made = runner(room=pool)
    bucket = DecodeBucket(made, 4, mixed=True)
    first, second = decode(1, [3], 2), decode(0, [4], 5)
    second.sequence.lease = pool.acquire(lora("x")) or NOTHING
    bucket.load([first, second])
    assert bucket.step.mixture is not None and bucket.step.mixture.tolist() == [0, 1, 0, 0]
    bucket.load([first])
    assert bucket.step.mixture.tolist() == [0, 0, 0, 0]
    assert DecodeBucket(made, 4).step.mixture is None


@pytest.mark.parametrize(
    ("captured", "sizes"),
    [(0, []), (1, [1]), (2, [1, 2]), (3, [1, 2, 4]), (40, [1, 2, 4, 8, 16, 32, 64])],
)
def test_bucket_sizes_double_up_to_the_first_that_fits_all_rows(
    captured: int, sizes: list[int]
) -> None:
    assert runner_of(SumModel(), captured=captured).sizes == sizes


def test_the_smallest_bucket_that_fits_runs_a_decode_step() -> None:
    made = runner(replay=True, captured=4)
    chunks = [decode(i, [3], 2 + i) for i in range(4)]
    found = [made.bucket(StepPlan(chunks[:n])) for n in (1, 2, 3, 4)]
    assert [bucket.size for bucket in found if bucket] == [1, 2, 4, 4]
    chunks = [decode(0, [3], 2)] * 5
    assert made.bucket(StepPlan(chunks)) is None


def test_a_step_with_a_prompt_or_prompt_logprobs_runs_in_no_bucket() -> None:
    made = runner(replay=True)
    row = decode(0, [3], 2)
    longer = decode(1, [3, 4, 5], 2)
    prompt = Chunk(longer.sequence, 0, 3, draws=True)
    undrawn = Chunk(longer.sequence, 0, 1, draws=False)
    assert made.bucket(StepPlan([row])) is not None
    assert made.bucket(StepPlan([row, prompt])) is None
    assert made.bucket(StepPlan([row, undrawn])) is None
    row.sequence.prompt_logprobs = [None]
    assert made.bucket(StepPlan([row])) is None


def test_mixed_buckets_are_captured_at_the_first_mixed_step_and_after_a_change() -> None:
    room = Room(2)
    made = runner(replay=True, room=room)
    row = decode(0, [3], 2)
    assert made.bucket(StepPlan([row])) is made.buckets[1] and not made.mixed_buckets
    row.sequence.lease = room.acquire(lora("x")) or NOTHING
    first = made.bucket(StepPlan([row]))
    assert first is not None and first is made.mixed_buckets[1] is made.bucket(StepPlan([row]))
    room.changes += 1
    assert made.bucket(StepPlan([row])) is not first


def test_mixed_buckets_are_captured_one_by_one() -> None:
    """A request with an adapter must not wait for the captures of all sizes."""
    room = Room(4)
    made, rows = runner(replay=True, room=room), [decode(row, [3], 2) for row in range(3)]
    for row in rows:
        row.sequence.lease = room.acquire(lora("x")) or NOTHING
    first = made.bucket(StepPlan(rows[:1]))
    assert made.mixed_buckets == {1: first} and made.mixed_uncaptured == {2, 4}
    made.bucket(StepPlan(rows))
    assert [*made.mixed_buckets] == [1, 4] and made.mixed_uncaptured == {2}
    made.capture()
    assert made.bucket(StepPlan(rows[:1])) is not first and [*made.mixed_buckets] == [1]


def test_lazy_buckets_are_captured_at_the_first_step_of_their_size() -> None:
    made = runner(replay=True)
    made.capture(lazily=True)
    rows = [decode(row, [3], 2) for row in range(4)]
    assert not made.buckets and made.uncaptured == {1, 2, 4}
    largest = made.bucket(StepPlan(rows))
    assert largest is made.buckets[4] and made.uncaptured == {1, 2}
    assert made.bucket(StepPlan(rows[:1])) is made.buckets[1] is not largest
    assert made.bucket(StepPlan(rows[:3])) is largest and made.uncaptured == {2}


def test_a_lazy_bucket_that_cannot_be_captured_is_tried_once() -> None:
    made = runner()
    made.capture(lazily=True)
    row = decode(0, [3], 2)
    assert made.bucket(StepPlan([row])) is None is made.bucket(StepPlan([row]))
    assert made.uncaptured == {2, 4} and "numbers" in made.graphs.refused


def test_tables_are_as_wide_as_the_context_and_the_longest_medium() -> None:
    made = runner_of(SumModel(), sum_pages(16), cross(8, length=10), context=CONTEXT)
    widths = [batch.table.shape[1] for batch in DecodeBucket(made, 2).batches]
    assert widths == [CONTEXT // BLOCK + 1, 4]
