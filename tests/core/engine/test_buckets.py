"""Buckets: fixed input addresses, idle rows, poison, and the choice of a bucket."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny.loop import BLOCK, Room, cross, lora
from tiny.sums import VOCAB, SumModel, runner_of, sum_pages

from ostro.core.adapters.pool import NOTHING
from ostro.core.engine.blocks import BlockTable
from ostro.core.engine.buckets import POISON, Bucket, DecodeBucket, PromptBucket
from ostro.core.engine.runner import ModelRunner
from ostro.core.engine.scheduler import Chunk, StepPlan
from ostro.core.engine.sequence import Sequence as TokenSequence
from ostro.core.engine.startup import build
from ostro.core.engine.startup.build import captured_prompts
from ostro.core.engine.startup.warm_up import make_ready
from ostro.core.messages.requests import TokenRequest
from ostro.core.settings import Settings
from ostro.core.step import Features
from ostro.plugins.conformance.parity import Subject

CONTEXT = 20


def runner(replay: bool = False, captured: int = 4, room: Room | None = None) -> ModelRunner:
    made = runner_of(
        SumModel(), sum_pages(16), context=CONTEXT, captured=captured, replay=replay, room=room
    )
    made.capture()
    return made


def prompt_runner(replay: bool = True, rows: int = 40, room: Room | None = None) -> ModelRunner:
    """A runner of up to 4 sequences with buckets of 16, 32 and 64 rows."""
    options: dict[str, Any] = {"captured": 4, "captured_prompts": rows, "replay": replay}
    made = runner_of(SumModel(), sum_pages(16), context=CONTEXT, room=room, **options)
    made.capture()
    return made


def prompt(row: int, tokens: list[int], *blocks: int, start: int = 0) -> Chunk:
    """The rows of a prompt from `start` on, the last of which draws."""
    chunk = decode(row, tokens, *blocks)
    chunk.sequence.prompt = len(tokens)
    return Chunk(chunk.sequence, start, len(tokens) - start, draws=True)


def decode_bucket(made: ModelRunner, chunks: list[Chunk]) -> DecodeBucket | None:
    """The bucket of decode steps in which a step of these chunks runs."""
    return made.decode_bucket(StepPlan(chunks), made.inputs(chunks))


def prompt_bucket(made: ModelRunner, *chunks: Chunk) -> PromptBucket | None:
    """The bucket of prompts in which a step of these chunks runs."""
    return made.prompt_bucket(made.build_step(chunks)[0], made.attention_metadata(chunks))


def decode(row: int, tokens: list[int], *blocks: int, unread: bool = False) -> Chunk:
    """The newest row of a sequence; with `unread`, its token is on the device only."""
    request = TokenRequest(id=str(row), tokens=tokens)
    sequence = TokenSequence(
        request, 0, arrival=0, seed=0, root=b"", limit=9, tokens=list(tokens), prompt=1
    )
    sequence.row, sequence.pending = row, int(unread)
    sequence.tables = [BlockTable(list(blocks))]
    return Chunk(sequence, sequence.length - 1, 1, draws=True)


def load(bucket: Bucket, *chunks: Chunk) -> None:
    made = bucket.runner
    bucket.load(made.inputs(chunks), made.attention_metadata(chunks))


def run(bucket: Bucket, *chunks: Chunk) -> torch.Tensor:
    """The last results of a step: the logits of decode steps, the hidden states of others."""
    made = bucket.runner
    return bucket.run(made.inputs(chunks), made.attention_metadata(chunks))[-1]


def tensors_of(bucket: Bucket) -> list[torch.Tensor]:
    """All inputs of a model with one group of layers."""
    [batch] = bucket.batches
    layout = [batch.table, batch.starts, batch.lengths, batch.slots]
    return [bucket.tokens, bucket.positions, *layout]


def test_rows_that_a_step_does_not_fill_are_idle() -> None:
    bucket = DecodeBucket(runner(), 4)
    load(bucket, decode(2, [5, 6, 7, 8, 9], 11, 3), decode(0, [4], 7))
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
    load(bucket, *[decode(i, [9] * 5, 8 + i, 12 + i) for i in range(4)])
    load(bucket, decode(1, [3], 2))
    [batch] = bucket.batches
    assert bucket.tokens.tolist() == [3, 0, 0, 0] and batch.lengths.tolist() == [1, 0, 0, 0]
    assert batch.slots.tolist() == [8, -1, -1, -1] and int(batch.table.sum()) == 2
    assert not bucket.positions.any()


def test_a_pending_token_comes_from_its_sampler_row() -> None:
    made = runner()
    made.sampler.last = torch.tensor([50, 51, 52, 53])
    bucket = DecodeBucket(made, 4)
    unread = [decode(2, [5, 6], 1, unread=True), decode(3, [5], 3, unread=True)]
    load(bucket, unread[0], decode(1, [5, 6], 2), unread[1])
    assert bucket.tokens.tolist() == [52, 6, 53, 0]
    assert bucket.positions[0].tolist() == [2, 1, 1, 0]


def test_inputs_keep_their_addresses() -> None:
    """A graph reads them at the addresses of its capture."""
    bucket = DecodeBucket(runner(), 4)
    before = [(tensor.data_ptr(), tensor.shape) for tensor in tensors_of(bucket)]
    load(bucket, decode(1, [3], 2))
    assert [(tensor.data_ptr(), tensor.shape) for tensor in tensors_of(bucket)] == before
    assert bucket.step.tokens is bucket.tokens and bucket.step.positions is bucket.positions
    assert bucket.step.caches[0][1] is bucket.batches[0]


def test_replay_poisons_all_inputs_after_a_step() -> None:
    bucket = DecodeBucket(runner(replay=True), 4)
    assert run(bucket, decode(1, [3], 2)).shape == (1, VOCAB)
    assert all((tensor == POISON).all() for tensor in tensors_of(bucket))
    assert bucket.batches[0].host is None
    bucket = DecodeBucket(runner(replay=False), 4)
    run(bucket, decode(1, [3], 2))
    assert not any((tensor == POISON).any() for tensor in tensors_of(bucket))


def test_a_model_that_cannot_be_captured_has_buckets_in_replay_mode_only() -> None:
    """This one reads numbers on the host."""
    assert not runner(replay=False).decode_buckets.plain and sorted(
        runner(replay=True).decode_buckets.plain
    ) == [1, 2, 4]


def test_a_bucket_of_mixed_steps_has_rows_of_the_mixture_table() -> None:
    pool = Room(2)
    made = runner(room=pool)
    bucket = DecodeBucket(made, 4, mixed=True)
    first, second = decode(1, [3], 2), decode(0, [4], 5)
    second.sequence.lease = pool.acquire(lora("x")) or NOTHING
    load(bucket, first, second)
    assert bucket.step.mixture is not None and bucket.step.mixture.tolist() == [0, 1, 0, 0]
    load(bucket, first)
    assert bucket.step.mixture.tolist() == [0, 0, 0, 0]
    assert DecodeBucket(made, 4).step.mixture is None


@pytest.mark.parametrize(
    ("captured", "sizes"),
    [(0, []), (1, [1]), (2, [1, 2]), (3, [1, 2, 4]), (40, [1, 2, 4, 8, 16, 32, 64])],
)
def test_bucket_sizes_double_up_to_the_first_that_fits_all_rows(
    captured: int, sizes: list[int]
) -> None:
    assert runner_of(SumModel(), captured=captured).decode_buckets.sizes == sizes


def test_the_smallest_bucket_that_fits_runs_a_decode_step() -> None:
    made = runner(replay=True, captured=4)
    chunks = [decode(i, [3], 2 + i) for i in range(4)]
    found = [decode_bucket(made, chunks[:n]) for n in (1, 2, 3, 4)]
    assert [bucket.size for bucket in found if bucket] == [1, 2, 4, 4]
    chunks = [decode(0, [3], 2)] * 5
    assert decode_bucket(made, chunks) is None


def test_a_step_with_a_prompt_or_prompt_logprobs_runs_in_no_bucket() -> None:
    made = runner(replay=True)
    row = decode(0, [3], 2)
    longer = decode(1, [3, 4, 5], 2)
    prompt = Chunk(longer.sequence, 0, 3, draws=True)
    undrawn = Chunk(longer.sequence, 0, 1, draws=False)
    assert decode_bucket(made, [row]) is not None
    assert decode_bucket(made, [row, prompt]) is None
    assert decode_bucket(made, [row, undrawn]) is None
    row.sequence.prompt_logprobs = [None]
    assert decode_bucket(made, [row]) is None


def test_mixed_buckets_are_captured_at_the_first_mixed_step_and_after_a_change() -> None:
    room = Room(2)
    made = runner(replay=True, room=room)
    row = decode(0, [3], 2)
    assert decode_bucket(made, [row]) is made.decode_buckets.plain[1]
    assert not made.decode_buckets.mixed
    row.sequence.lease = room.acquire(lora("x")) or NOTHING
    first = decode_bucket(made, [row])
    assert first is not None
    assert first is made.decode_buckets.mixed[1] is decode_bucket(made, [row])
    room.changes += 1
    assert decode_bucket(made, [row]) is not first


def test_mixed_buckets_are_captured_one_by_one() -> None:
    """A request with an adapter must not wait for the captures of all sizes."""
    room = Room(4)
    made, rows = runner(replay=True, room=room), [decode(row, [3], 2) for row in range(3)]
    for row in rows:
        row.sequence.lease = room.acquire(lora("x")) or NOTHING
    first = decode_bucket(made, rows[:1])
    assert made.decode_buckets.mixed == {1: first} and made.decode_buckets.mixed_uncaptured == {
        2,
        4,
    }
    decode_bucket(made, rows)
    assert [*made.decode_buckets.mixed] == [1, 4] and made.decode_buckets.mixed_uncaptured == {2}
    made.capture()
    assert decode_bucket(made, rows[:1]) is not first
    assert [*made.decode_buckets.mixed] == [1]


def test_lazy_buckets_are_captured_at_the_first_step_of_their_size() -> None:
    made = runner(replay=True)
    made.capture(lazily=True)
    rows = [decode(row, [3], 2) for row in range(4)]
    assert not made.decode_buckets.plain and made.decode_buckets.uncaptured == {1, 2, 4}
    largest = decode_bucket(made, rows)
    assert largest is made.decode_buckets.plain[4] and made.decode_buckets.uncaptured == {1, 2}
    assert decode_bucket(made, rows[:1]) is made.decode_buckets.plain[1] is not largest
    assert decode_bucket(made, rows[:3]) is largest
    assert made.decode_buckets.uncaptured == {2}


def test_a_lazy_bucket_that_cannot_be_captured_is_tried_once() -> None:
    made = runner()
    made.capture(lazily=True)
    row = decode(0, [3], 2)
    assert decode_bucket(made, [row]) is None is decode_bucket(made, [row])
    assert made.decode_buckets.uncaptured == {2, 4} and "numbers" in made.graphs.refused


def test_tables_are_as_wide_as_the_context_and_the_longest_medium() -> None:
    made = runner_of(SumModel(), sum_pages(16), cross(8, length=10), context=CONTEXT)
    widths = [batch.table.shape[1] for batch in DecodeBucket(made, 2).batches]
    assert widths == [CONTEXT // BLOCK + 1, 4]


def test_idle_rows_of_prompts_belong_to_one_idle_sequence() -> None:
    bucket = PromptBucket(prompt_runner(), 16)
    load(bucket, prompt(2, [5, 6, 7, 8, 9, 4], 11, 3, start=1), decode(0, [4], 7))
    [batch] = bucket.batches
    assert bucket.tokens.tolist() == [6, 7, 8, 9, 4, 4, *[0] * 10]
    assert bucket.positions.tolist() == [[1, 2, 3, 4, 5, *[0] * 11]] * 2
    assert batch.lengths.tolist() == [6, 1, 0, 0, 0]
    assert batch.starts.tolist() == [0, 5, 6, 16, 16, 16]
    assert batch.slots.tolist() == [45, 46, 47, 12, 13, 28, *[-1] * 10]
    assert batch.table[:2, :2].tolist() == [[11, 3], [7, 0]] and int(batch.table.sum()) == 21
    assert (batch.max_queries, batch.max_length) == (16, CONTEXT)
    assert batch.host is not None and batch.host.starts == batch.starts.tolist()
    assert batch.host.lengths == batch.lengths.tolist()
    assert batch.host.blocks == [[11, 3], [7], [], [], []]


def test_a_smaller_step_with_prompts_has_no_inputs_of_the_previous_one() -> None:
    bucket = PromptBucket(prompt_runner(), 16)
    load(bucket, *[prompt(i, [9] * 4, 8 + i) for i in range(4)])
    load(bucket, prompt(1, [3, 4], 2))
    [batch] = bucket.batches
    assert bucket.tokens.tolist() == [3, 4, *[0] * 14]
    assert batch.starts.tolist() == [0, 2, *[16] * 4] and batch.lengths.tolist() == [2, 0, 0, 0, 0]
    assert batch.slots.tolist() == [8, 9, *[-1] * 14] and int(batch.table.sum()) == 2


def test_the_smallest_bucket_that_fits_runs_a_step_with_prompts() -> None:
    made = prompt_runner()
    assert made.prompt_buckets.sizes == [16, 32, 64]
    assert [*made.prompt_buckets.plain] == [64, 32, 16], "the largest is captured first"
    for rows, size in (1, 16), (16, 16), (17, 32), (64, 64), (65, None):
        bucket = prompt_bucket(made, prompt(0, [3] * rows, *range(17)))
        assert (bucket and bucket.size) == size, rows
    rows = [decode(i, [3], 2 + i) for i in range(3)]
    assert prompt_bucket(made, *rows, prompt(3, [4, 5], 9)) is made.prompt_buckets.plain[16]
    assert prompt_bucket(made, *rows, *rows[:1], prompt(3, [4, 5], 9)) is None, "five sequences"


def test_a_step_with_media_runs_in_no_bucket_of_prompts() -> None:
    made, chunk = prompt_runner(), prompt(0, [3] * 9, 1, 2, 3)
    batches = made.attention_metadata([chunk])
    step, _ = made.build_step([chunk])
    assert made.prompt_bucket(step, batches) is not None
    full = [replace(batches[0], full=torch.tensor([1]))]
    assert made.prompt_bucket(step, full) is None
    features = Features(torch.zeros(1, 1), torch.tensor([0]))
    assert made.prompt_bucket(replace(step, features=features), batches) is None


def test_steps_with_prompts_and_adapters_have_buckets_of_their_own() -> None:
    room = Room(2)
    made = prompt_runner(room=room)
    chunk = prompt(0, [3, 4, 5], 2)
    plain = prompt_bucket(made, chunk)
    chunk.sequence.lease = room.acquire(lora("x")) or NOTHING
    mixed = prompt_bucket(made, chunk)
    assert mixed is made.prompt_buckets.mixed[16] is not plain
    assert mixed is not None
    load(mixed, chunk)
    assert mixed.step.mixture is not None
    assert mixed.step.mixture.tolist() == [1, 1, 1, *[0] * 13]


def test_prompts_run_eagerly_if_the_model_cannot_be_captured() -> None:
    made = prompt_runner(replay=False)
    assert not made.prompt_buckets.plain and "numbers" in made.prompt_buckets.refused
    assert prompt_bucket(made, prompt(0, [3, 4, 5], 2)) is None


def test_models_with_cross_attention_have_no_buckets_of_prompts() -> None:
    groups = sum_pages(16), cross(8, length=10)
    made = runner_of(SumModel(), *groups, captured=4, captured_prompts=40)
    assert made.prompt_buckets.sizes == [] and made.decode_buckets.sizes == [1, 2, 4]


def test_split_models_have_no_buckets_of_prompts() -> None:
    segments: Any = SimpleNamespace(captured=[object()])
    made = runner_of(SumModel(), captured=4, captured_prompts=40, segments=segments)
    assert made.prompt_buckets.sizes == [] and made.decode_buckets.sizes == [1, 2, 4]


@pytest.mark.parametrize("captured", [0, 64])
def test_the_loader_explains_why_prompts_are_not_captured(
    llama: Subject, captured: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention on the CPU reads the lengths of prompts in Python."""
    monkeypatch.setattr(build, "captured_prompts", lambda *arguments: captured)
    loaded = llama.load()
    make_ready(llama.engine(loaded, rows=64), loaded)
    lines = [line for line in loaded.explain if "not captured" in line]
    reason = "prompts: not captured: it reads numbers on the host (tolist)"
    assert lines == [reason] * bool(captured)


@pytest.mark.parametrize(
    ("device", "settings", "rows", "largest"),
    [
        ("cuda", {}, 4096, 512),
        ("cuda", {}, 100, 100),
        ("cuda", {"deterministic": True}, 4096, 0),
        ("cpu", {}, 512, 0),
        ("cpu", {"replay": True}, 512, 64),
    ],
)
def test_steps_with_prompts_are_captured_on_gpus(
    device: str, settings: dict[str, bool], rows: int, largest: int
) -> None:
    assert captured_prompts(Settings(**settings), torch.device(device), rows) == largest
