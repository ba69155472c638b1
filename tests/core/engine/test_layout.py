"""The layout of a step: which slots its rows are written to, and which tokens each row sees."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from tiny.loop import BLOCK, CPU, Loop, Pages, cross, group, image, pages, states, view

from ostro.core.cache import CacheSpec
from ostro.core.engine.layout import cross_metadata, encoder_write_metadata, paged_metadata
from ostro.core.engine.scheduler import Chunk
from ostro.core.engine.sequence import Sequence as TokenSequence
from ostro.core.messages.prompt import Item
from ostro.core.ops.attention import AttentionMetadata


def sequence_of(
    prompt: int, *blocks: int, first: int = 0, items: Sequence[Item] = ()
) -> TokenSequence:
    """A sequence with these blocks."""
    sequence = Loop().add(prompt, items=items)
    sequence.tables[0].blocks, sequence.tables[0].first = list(blocks), first
    return sequence


def pages_of(*chunks: Chunk) -> AttentionMetadata:
    return paged_metadata(pages(8), 0, chunks, BLOCK, CPU)


def seen(batch: AttentionMetadata) -> list[list[int]]:
    """The slots that each row sees, by the definition of `AttentionMetadata`."""
    found = list[list[int]]()
    spans, lengths = pairwise(batch.starts.tolist()), batch.lengths.tolist()
    full = [0] * len(lengths) if batch.full is None else batch.full.tolist()
    for i, (length, (start, stop)) in enumerate(zip(lengths, spans, strict=True)):
        table = batch.table[i].tolist()
        slots = [table[p // BLOCK] * BLOCK + p % BLOCK for p in range(length)]
        for row in range(start, stop):
            found.append(slots if full[i] else slots[: length - (stop - row) + 1])
    return found


def test_prompt_chunks_and_decode_rows_are_consecutive() -> None:
    prompt, decode = sequence_of(20, 5, 2, 7), sequence_of(3, 4)
    batch = pages_of(Chunk(prompt, 6, 4, False), Chunk(decode, 3, 1, True))
    assert batch.starts.tolist() == [0, 4, 5] and batch.lengths.tolist() == [10, 4]
    assert batch.table.tolist() == [[5, 2, 7], [4, 0, 0]], "short tables end with block 0"
    assert batch.slots.tolist() == [10, 11, 28, 29, 19]
    assert (batch.max_queries, batch.max_length, batch.full) == (4, 10, None)


def test_integers_have_the_types_that_kernels_read() -> None:
    batch = pages_of(Chunk(sequence_of(3, 4), 0, 3, True))
    types = [x.dtype for x in (batch.table, batch.starts, batch.lengths, batch.slots)]
    assert types == [torch.int32, torch.int32, torch.int32, torch.int64]


def test_host_lists_equal_the_tensors() -> None:
    items = [image("a", 2, 4, atomic=True)]
    chunks = [
        Chunk(sequence_of(9, 5, 2, 7, items=items), 0, 9, True),
        Chunk(sequence_of(3, 4), 3, 1, True),
    ]
    batch = pages_of(*chunks)
    assert batch.host is not None and batch.full is not None
    assert batch.host.starts == batch.starts.tolist() == [0, 2, 6, 9, 10]
    assert batch.host.lengths == batch.lengths.tolist() == [2, 6, 9, 4]
    assert batch.host.full == [False, True, False, False] and batch.full.tolist() == [0, 1, 0, 0]
    assert batch.host.blocks == [[5, 2, 7]] * 3 + [[4]]


def test_host_lists_exist_for_the_cpu_only() -> None:
    chunk = Chunk(sequence_of(3, 4), 0, 3, True)
    assert paged_metadata(pages(8), 0, [chunk], BLOCK, torch.device("meta")).host is None


def test_blocks_that_a_window_released_become_block_0_and_are_not_read() -> None:
    batch = pages_of(Chunk(sequence_of(20, -1, -1, 3, 6, first=2), 12, 3, False))
    assert batch.table.tolist() == [[0, 0, 3, 6]]
    assert batch.slots.tolist() == [24, 25, 26]


def test_rows_of_an_atomic_span_see_its_end_and_others_only_what_precedes_them() -> None:
    items = [image("a", 3, 4, (9, 2), atomic=True)]
    batch = pages_of(Chunk(sequence_of(16, 1, 2, 3, 4, items=items), 0, 12, False))
    lengths = [len(slots) for slots in seen(batch)]
    assert lengths == [1, 2, 3, 7, 7, 7, 7, 8, 9, 11, 11, 12]


def test_a_group_without_spans_is_causal_within_an_atomic_span() -> None:
    items = [image("a", 3, 4, (9, 2), atomic=True)]
    causal = group(Pages, CacheSpec(heads=1, key_dim=1, value_dim=1, spans=False), 8)
    chunk = Chunk(sequence_of(16, 1, 2, 3, 4, items=items), 0, 12, False)
    batch = paged_metadata(causal, 0, [chunk], BLOCK, CPU)
    assert batch.full is None and batch.starts.tolist() == [0, 12]
    assert [len(slots) for slots in seen(batch)] == [*range(1, 13)]


def test_an_inline_medium_that_is_not_atomic_is_causal() -> None:
    chunk = Chunk(sequence_of(16, 1, 2, 3, 4, items=[image("a", 3, 4)]), 0, 12, False)
    batch = pages_of(chunk)
    assert batch.full is None and batch.starts.tolist() == [0, 12]


def test_rows_after_the_prompt_are_one_segment() -> None:
    items = [image("a", 0, 4, atomic=True)]
    batch = pages_of(Chunk(sequence_of(4, 1, 2, items=items), 4, 3, True))
    assert batch.starts.tolist() == [0, 3] and batch.full is None


def test_states_have_one_segment_and_block_0_without_a_kept_state() -> None:
    items = [image("a", 2, 4, atomic=True)]
    chunk = Chunk(sequence_of(16, -1, -1, 6, items=items), 0, 12, False)
    batch = paged_metadata(states(8), 0, [chunk], BLOCK, CPU)
    assert batch.starts.tolist() == [0, 12] and batch.table.tolist() == [[0, 0, 6]]
    assert (batch.slots // BLOCK).tolist() == [-1] * 8 + [6] * 4


def test_drafts_are_rows_of_their_sequence_with_blocks_of_their_own() -> None:
    sequence, other = sequence_of(6, -1, 2), sequence_of(3, 4)
    sequence.tables[0].drafts = [7, 1, 5]
    drafts = [Chunk(sequence, 6 + i, 1, True, 99) for i in range(3)]
    chunks = [Chunk(sequence, 5, 1, True), *drafts, Chunk(other, 2, 1, True)]
    batch = paged_metadata(states(8), 0, chunks, BLOCK, CPU)
    assert batch.starts.tolist() == [0, 4, 5] and batch.lengths.tolist() == [9, 3]
    assert (batch.slots // BLOCK).tolist() == [2, 7, 1, 5, 4] and batch.max_queries == 4
    assert batch.table.tolist() == [[0, 2], [4, 0]]


def test_a_draft_continues_from_the_draft_before_it() -> None:
    """Of a draft model, which computes them in steps of their own."""
    for count in (6, 8):  # the first draft is in the last block, or in the next one
        sequence = sequence_of(count, *[3, 2][: -(-count // BLOCK)])
        sequence.tables[0].drafts = [7, 1]
        chunk = Chunk(sequence, count + 1, 1, True, 99)
        batch = paged_metadata(states(8), 0, [chunk], BLOCK, CPU)
        before = batch.table[0, count // BLOCK]
        assert before == 7 and batch.slots.tolist() == [BLOCK] and batch.lengths == count + 2


@pytest.mark.parametrize("seed", range(20))
def test_every_row_sees_its_own_past_and_is_written_to_its_own_slot(seed: int) -> None:
    """Random chunks of random sequences, some with atomic spans."""
    rng = random.Random(seed)
    free, chunks = list(range(60)), list[Chunk]()
    rng.shuffle(free)
    for _ in range(rng.randrange(1, 6)):
        length = rng.randrange(1, 40)
        first, size = rng.randrange(length), rng.randrange(1, 9)
        atomic = [image("a", first, min(size, length - first), atomic=True)]
        items = atomic if rng.random() < 0.5 else []
        sequence = sequence_of(
            length, *[free.pop() for _ in range(-(-length // BLOCK))], items=items
        )
        start = sequence.snap_to_atom(-1, rng.randrange(length))
        stop = sequence.snap_to_atom(start, rng.randrange(start + 1, length + 1))
        chunks.append(Chunk(sequence, start, stop - start, stop == length))
    batch = pages_of(*chunks)
    rows = [(chunk.sequence, chunk.start + i) for chunk in chunks for i in range(chunk.count)]
    for (sequence, at), slot, slots in zip(rows, batch.slots.tolist(), seen(batch), strict=True):
        own = [b * BLOCK + i for b in sequence.tables[0].blocks for i in range(BLOCK)]
        end = next((b for a, b in sequence.atoms if a <= at < b), at + 1)
        assert slot == own[at] and slots == own[:end]
    assert batch.max_length == max(batch.lengths) and batch.max_queries == max(batch.starts.diff())


# Cross attention


def viewed(prompt: int, *items: Item) -> TokenSequence:
    """A running sequence that has blocks for its media."""
    loop = Loop(pages(64), cross(16), rows=100)
    sequence = loop.add(prompt, items=items)
    loop.step()
    return sequence


def test_rows_attend_to_the_last_medium_before_them() -> None:
    sequence = viewed(12, view("a", 3, length=8), view("b", 7, length=5))
    batch = cross_metadata(0, [Chunk(sequence, 0, 12, True)], CPU)
    assert batch.starts.tolist() == [0, 3, 7, 12]
    assert batch.lengths.tolist() == [0, 8, 5], "rows before the first medium see nothing"
    first, second = (memory.blocks[0] for memory in sequence.encoder_blocks)
    assert batch.table.tolist() == [[0, 0], first, second]
    assert batch.full is not None and batch.full.tolist() == [1, 1, 1]
    assert batch.slots.tolist() == [-1] * 12, "rows of the decoder are not written there"


@pytest.mark.parametrize(
    ("start", "count", "starts", "lengths"),
    [
        (0, 3, [0, 3], [0]),
        (2, 2, [0, 1, 2], [0, 8]),
        (3, 4, [0, 4], [8]),
        (5, 2, [0, 2], [8]),
        (6, 3, [0, 1, 3], [8, 5]),
        (7, 5, [0, 5], [5]),
        (12, 1, [0, 1], [5]),
    ],
)
def test_a_chunk_is_split_where_another_medium_begins(
    start: int, count: int, starts: list[int], lengths: list[int]
) -> None:
    sequence = viewed(12, view("a", 3, length=8), view("b", 7, length=5))
    batch = cross_metadata(0, [Chunk(sequence, start, count, False)], CPU)
    assert (batch.starts.tolist(), batch.lengths.tolist()) == (starts, lengths)


def test_of_two_media_at_one_token_the_second_counts() -> None:
    sequence = viewed(12, view("a", 3, length=8), view("b", 3, length=5))
    batch = cross_metadata(0, [Chunk(sequence, 0, 12, True)], CPU)
    assert batch.lengths.tolist() == [0, 5]


def test_requests_without_media_attend_to_nothing_in_a_cross_cache() -> None:
    with_medium, without = viewed(6, view("a", 0, length=8)), viewed(4)
    chunks = [Chunk(without, 0, 4, True), Chunk(with_medium, 6, 1, True)]
    batch = cross_metadata(0, chunks, CPU)
    assert batch.lengths.tolist() == [0, 8] and batch.starts.tolist() == [0, 4, 5]


def test_media_are_written_to_the_slots_of_their_blocks() -> None:
    sequence = viewed(12, view("a", 3, length=6), view("b", 7, length=5))
    batch = encoder_write_metadata(0, sequence.encoder_blocks, BLOCK, CPU)
    slots = [
        b * BLOCK + i for m in sequence.encoder_blocks for b in m.blocks[0] for i in range(BLOCK)
    ]
    assert batch.slots.tolist() == slots[:6] + slots[8:13]
    assert batch.starts.tolist() == [0, 6, 11] and batch.lengths.tolist() == [6, 5]
    assert batch.full is not None and batch.full.tolist() == [1, 1]
