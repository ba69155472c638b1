"""The recurrent cache kind: where states lie, and which of them can be come back to."""

from __future__ import annotations

import torch

from ostro.core.cache import CacheSpec
from ostro.core.engine.blocks import BlockManager, BlockPool, CacheGroup, next_key, seed_key
from ostro.core.ops.attention import AttentionMetadata
from ostro.plugins.caches.recurrent.kind import Recurrent

BLOCK = 4
SPEC = CacheSpec(kind="recurrent", state=((3, 2), (5,)))


def made(layers: int = 2, blocks: int = 6) -> Recurrent:
    kind = Recurrent(SPEC, layers, block=BLOCK, dtype=torch.bfloat16, device=torch.device("cpu"))
    kind.allocate(blocks)
    return kind


def ragged(
    table: list[list[int]],
    queries: list[int],
    lengths: list[int],
    blocks: list[int] | None = None,
) -> AttentionMetadata:
    """`blocks`: that of each row; by default the block of its token, none for idle sequences."""
    starts = torch.tensor([0, *queries]).cumsum(0)
    ints = [torch.tensor(each, dtype=torch.int32) for each in (table, starts.tolist(), lengths)]
    if blocks is None:
        blocks = [
            row[token // BLOCK] if length else -1
            for row, count, length in zip(table, queries, lengths, strict=True)
            for token in range(length - count, length)
        ]
    slots = torch.tensor([block * BLOCK + i % BLOCK for i, block in enumerate(blocks)])
    return AttentionMetadata(*ints, slots, max_queries=max(queries), max_length=max(lengths))


def chain(count: int) -> list[bytes]:
    keys, key = [], seed_key("model")
    for i in range(count):
        key = next_key(key, [i] * BLOCK)
        keys.append(key)
    return keys


def test_every_layer_has_states_of_its_own_in_float32() -> None:
    kind = made(layers=2)
    batch = ragged([[0]], [1], [1])
    first, second = kind.view(0, batch), kind.view(1, batch)
    assert [tuple(t.shape) for t in first.states] == [(6, 3, 2), (6, 5)]
    assert all(t.dtype == torch.float32 for t in first.states)
    first.states[0][2] = 1
    assert not second.states[0].any()
    assert kind.bytes(6) == sum(state.nbytes for state in kind.states)


def test_states_lie_in_the_blocks_of_the_tokens_before_and_of_the_last() -> None:
    table = [[5, 0, 0], [4, 3, 0], [1, 2, 0], [0, 0, 4], [3, 0, 0], [2, 5, 0]]
    queries = [3, 1, 4, 1, 0, 1]
    lengths = [3, 5, 8, 0, 2, 6]  # begins, crosses, fills, is idle, has no rows, goes on inside
    places = made().view(0, ragged(table, queries, lengths)).layout
    assert places.starts.tolist() == [0, 3, 4, 8, 9, 9, 10]
    assert places.before.tolist() == [-1, 4, 1, -1, 3, 5]
    assert places.saved.tolist() == [-1, -1, 5, 3, -1, -1, -1, 2, -1, 5]


def test_rows_of_one_sequence_save_the_last_state_of_each_block() -> None:
    """Of drafts in blocks of their own, each one; of rows without a block, none."""
    batch = ragged([[5, 0], [1, 2]], [4, 5], [6, 8], [5, 3, 4, 0, -1, -1, 2, 2, 2])
    assert made().view(0, batch).layout.saved.tolist() == [5, 3, 4, 0, -1, -1, -1, -1, 2]


def test_places_are_found_once_in_a_step_and_anew_in_the_next() -> None:
    kind, batch = made(layers=3), ragged([[5, 1]], [1], [3])
    views = [kind.view(layer, batch) for layer in range(3)]
    found = views[0].layout
    assert views[1].layout is found and views[2].layout is found
    batch.lengths.fill_(6)
    assert views[0].layout.before.tolist() == [1]
    assert views[2].layout is views[0].found and views[0].found is not found
    other = kind.view(1, ragged([[2, 3]], [1], [1]))
    assert other.layout.saved.tolist() == [2], "another batch has other places"


def test_the_longest_prefix_with_a_snapshot_is_resumed() -> None:
    kind = made()
    assert kind.hit([False, True, False]) == 2
    assert kind.hit([True, True, False, True]) == 4
    assert kind.hit([False, False]) == kind.hit([]) == 0


def test_a_step_ends_at_the_end_of_a_block_or_inside_one() -> None:
    blocks = BlockManager([CacheGroup(made(), (0, 1), BlockPool(6))], BLOCK)
    for start in range(9):
        for count in range(1, 14):
            end = start + blocks.align(start, count)
            assert start < end <= start + count
            inside = end <= start - start % BLOCK + BLOCK
            assert inside or (start % BLOCK == end % BLOCK == 0), f"{start = } {count = }"


def test_a_sequence_keeps_its_state_and_leaves_snapshots() -> None:
    """A prompt of 11 tokens and 6 that follow, in blocks of 4: it works on two or three."""
    pool = BlockPool(6)
    blocks, keys = BlockManager([CacheGroup(made(), (0, 1), pool)], BLOCK), chain(4)
    tables, length, published = blocks.new_tables(), 0, 0
    while length < 17:
        count = blocks.align(length, 11 - length) if length < 11 else 1
        before = tables[0].blocks[(length - 1) // BLOCK] if length else 0
        assert before >= 0, f"the state of token {length - 1} is gone"
        assert blocks.grow(tables, length + count)
        length += count
        assert tables[0].blocks[(length - 1) // BLOCK] >= 0
        blocks.publish(tables, keys[: length // BLOCK], published)
        published = length // BLOCK
        blocks.trim(tables, length)
        assert pool.used <= 2 and pool.peak <= 3
    assert [key in pool.block_of for key in keys] == [False, True, True, True]
    blocks.release(tables)
    assert pool.used == 0 and pool.available == 6 and blocks.match_prefix(keys) == 4


def test_a_snapshot_is_shared_and_not_written_again() -> None:
    pool = BlockPool(6)
    blocks, keys = BlockManager([CacheGroup(made(), (0, 1), pool)], BLOCK), chain(2)
    mine = blocks.new_tables()
    assert blocks.grow(mine, 8)
    blocks.publish(mine, keys, 0)
    snapshot = mine[0].blocks[1]
    others = [blocks.new_tables() for _ in range(2)]
    for tables in others:
        blocks.reuse_prefix(tables, keys)
        assert tables[0].blocks == [-1, snapshot]
        assert blocks.grow(tables, 9)
        assert tables[0].blocks[2] not in (-1, snapshot)
    assert pool.users[snapshot] == 3
    for tables in (mine, *others):
        blocks.release(tables)
    assert pool.used == 0


def test_a_sequence_keeps_the_block_before_its_last() -> None:
    kind = made()
    assert [kind.first(length) for length in range(1, 4 * BLOCK + 1)] == [
        *[0] * (2 * BLOCK),
        *[1] * BLOCK,
        *[2] * BLOCK,
    ]
