"""The block manager: reference counts, eviction, prefix matching and releases."""

from __future__ import annotations

import random

import pytest
import torch

from ostro.core.cache import CacheKind, CacheSpec
from ostro.core.engine.blocks import (
    BlockManager,
    BlockPool,
    BlockTable,
    CacheGroup,
    next_key,
    seed_key,
)
from ostro.core.ops.attention import AttentionMetadata
from ostro.plugins.caches.recurrent.kind import Recurrent


class EmptyKind(CacheKind):
    """A cache kind without memory."""

    def bytes(self, blocks: int) -> int:
        return blocks

    def allocate(self, blocks: int) -> None: ...

    def view(self, layer: int, batch: AttentionMetadata) -> None: ...


class AlignedKind(EmptyKind):
    """A kind whose blocks are states."""

    @property
    def aligned(self) -> bool:
        return True


def group(blocks: int, window: int = 0) -> CacheGroup:
    spec = CacheSpec(heads=1, key_dim=1, value_dim=1, window=window)
    kind = EmptyKind(spec, 1, block=4, dtype=torch.float32, device=torch.device("cpu"))
    return CacheGroup(kind, (0,), BlockPool(blocks))


def keys(*tokens: int) -> list[bytes]:
    chain, key = [], seed_key("model", "salt")
    for i in range(0, len(tokens) - 3, 4):
        key = next_key(key, tokens[i : i + 4])
        chain.append(key)
    return chain


def test_a_key_depends_on_the_rows_of_media() -> None:
    root = seed_key("model")
    media = [(b"a", 0, 0)], [(b"b", 0, 0)], [(b"a", 1, 0)], [(b"a", 0, 1)]
    assert len({next_key(root, [1], media=each) for each in media}) == len(media)


def test_keys_depend_on_all_tokens_before_them() -> None:
    assert keys(1, 2, 3, 4, 5, 6, 7, 8)[1] != keys(1, 2, 3, 9, 5, 6, 7, 8)[1]
    assert seed_key("a", "b") != seed_key("ab", "")
    root = seed_key("x")
    assert next_key(root, [1], [("a", 1.0)]) != next_key(root, [1], [("a", 0.5)])
    assert next_key(root, [1], [("a", 1.0), ("b", 1.0)]) == next_key(
        root, [1], [("b", 1.0), ("a", 1.0)]
    )


def test_a_window_resumes_from_its_last_blocks() -> None:
    kind = group(8, window=6).kind
    assert kind.hit([False, False, True, True]) == 4
    assert kind.hit([True, False, False, True]) == 1
    assert kind.hit([False, False, False]) == 0
    assert group(8).kind.hit([True, True, False, True]) == 2


def test_a_prefix_must_be_cached_in_all_groups() -> None:
    full, sliding = group(8), group(8, window=4)
    blocks, chain = BlockManager([full, sliding], 4), keys(*range(16))
    first = blocks.new_tables()
    assert blocks.grow(first, 16)
    blocks.publish(first, chain, 0)
    assert blocks.match_prefix(chain) == 4
    full.pool.evict(first[0].blocks[2])
    assert blocks.match_prefix(chain) == 2


def test_idle_blocks_are_evicted_in_the_order_of_their_release() -> None:
    pool = BlockPool(3)
    blocks = [pool.allocate() for _ in range(3)]
    for block, key in zip(blocks, keys(*range(12)), strict=True):
        pool.publish(block, key)
    for block in (blocks[1], blocks[0], blocks[2]):
        pool.release(block)
    pool.share(blocks[1])
    pool.release(blocks[1])  # used again: now the most recently used
    assert [pool.allocate() for _ in range(3)] == [blocks[0], blocks[2], blocks[1]]
    assert not pool.block_of, "evicted blocks have no key"


def test_publish_skips_the_blocks_before_start() -> None:
    blocks, chain = BlockManager([group(4)], 4), keys(*range(12))
    tables = blocks.new_tables()
    assert blocks.grow(tables, 12)
    blocks.publish(tables, chain, 1)
    assert [key in blocks.groups[0].pool.block_of for key in chain] == [False, True, True]
    assert blocks.match_prefix(chain) == 0


def test_a_shared_prefix_is_released_with_its_last_user() -> None:
    blocks, chain = BlockManager([group(4)], 4), keys(*range(16))
    pool = blocks.groups[0].pool
    first, second = blocks.new_tables(), blocks.new_tables()
    assert blocks.grow(first, 16)
    blocks.publish(first, chain, 0)
    blocks.reuse_prefix(second, chain[:2])
    shared = list(second[0].blocks)
    blocks.release(first)
    assert [pool.users[block] for block in shared] == [1, 1] and len(pool.idle) == 2
    blocks.release(second)
    assert pool.used == 0 and len(pool.idle) == 4 and not pool.free


def test_the_end_of_a_released_sequence_is_evicted_first() -> None:
    blocks, chain = BlockManager([group(4)], 4), keys(*range(16))
    tables, others = blocks.new_tables(), blocks.new_tables()
    assert blocks.grow(tables, 16)
    blocks.publish(tables, chain, 0)
    blocks.release(tables)
    assert blocks.grow(others, 4)
    assert blocks.match_prefix(chain) == 3


@pytest.mark.parametrize(
    ("start", "count", "allowed"),
    [(0, 3, 3), (0, 4, 4), (0, 10, 8), (4, 10, 8), (2, 1, 1), (2, 2, 2), (2, 10, 2), (3, 5, 1)],
)
def test_a_step_over_states_ends_at_a_block(start: int, count: int, allowed: int) -> None:
    spec = CacheSpec(state=((1,),))
    kind = AlignedKind(spec, 1, block=4, dtype=torch.float32, device=torch.device("cpu"))
    blocks = BlockManager([CacheGroup(kind, (0,), BlockPool(4))], 4)
    assert blocks.align(start, count) == allowed
    assert BlockManager([group(4)], 4).align(start, count) == count, "pages set no limit"


def test_blocks_that_were_released_last_are_used_first() -> None:
    """In their order: consecutive blocks read faster, and no other memory is touched."""
    blocks = BlockManager([group(8)], 4)
    for length in (12, 12, 5):
        tables = blocks.new_tables()
        assert blocks.grow(tables, length)
        assert tables[0].blocks == list(range(-(-length // 4)))
        blocks.release(tables)


def test_trim_moves_first_forward_only() -> None:
    blocks = BlockManager([group(8, window=4)], 4)
    tables = blocks.new_tables()
    assert blocks.grow(tables, 16)
    blocks.trim(tables, 12)
    assert tables[0].first == 2 and tables[0].blocks[:2] == [-1, -1]
    blocks.trim(tables, 4)
    assert tables[0].first == 2, "the blocks before it are released"
    blocks.trim(tables, 16)
    assert tables[0].first == 3 and blocks.groups[0].pool.used == 1


def states(blocks: int) -> CacheGroup:
    """A group of recurrent layers."""
    spec = CacheSpec(kind="recurrent", state=((1,),))
    kind = Recurrent(spec, 1, block=4, dtype=torch.float32, device=torch.device("cpu"))
    return CacheGroup(kind, (0,), BlockPool(blocks))


def test_the_state_after_the_last_accepted_draft_stays() -> None:
    blocks = BlockManager([group(8), states(8)], 4)
    tables = blocks.new_tables()
    pages, recurrent = tables
    assert blocks.grow(tables, 3) and blocks.grow_drafts(tables, 3, 4)
    assert len(pages.blocks) == 2 and len(recurrent.blocks) == 1
    drafts = list(recurrent.drafts)
    for position, length in ((3, 1), (4, 2), (5, 2)):
        blocks.accept_draft(tables, position)
        assert len(recurrent.blocks) == length
    # Token 3 ends the first block, token 5 is the newest.
    assert recurrent.blocks == [drafts[0], drafts[2]] and recurrent.drafts == [drafts[3]]
    blocks.release_drafts(tables)
    assert not recurrent.drafts and blocks.groups[1].pool.used == 2
    blocks.release(tables)
    assert all(g.pool.used == 0 for g in blocks.groups)


@pytest.mark.parametrize("full", [0, 1])
def test_drafts_need_room_in_every_group(full: int) -> None:
    blocks = BlockManager([group(8), states(8)], 4)
    tables = blocks.new_tables()
    assert blocks.grow(tables, 4)
    pool = blocks.groups[full].pool
    for _ in range(7 if full == 0 else 5):
        pool.allocate()
    used = [g.pool.used for g in blocks.groups]
    assert not blocks.grow_drafts(tables, 4, 3)
    assert [g.pool.used for g in blocks.groups] == used and not tables[1].drafts
    assert blocks.grow_drafts(tables, 4, 2) == (full == 1)


def test_pages_grow_without_states_and_only_with_room() -> None:
    blocks = BlockManager([group(3), group(2), states(8)], 4)
    tables = blocks.new_tables()
    assert blocks.grow(tables, 4)
    used = [g.pool.used for g in blocks.groups]
    assert not blocks.grow_pages(tables, 9)
    assert [g.pool.used for g in blocks.groups] == used
    assert blocks.grow_pages(tables, 8) and blocks.grow_pages(tables, 8)
    assert [g.pool.used for g in blocks.groups] == [2, 2, used[2]]


def test_random_sequences_lose_no_block() -> None:
    rng, chain = random.Random(0), keys(*range(40))
    blocks = BlockManager([group(24), group(24, window=6), states(24)], 4)
    alive: list[tuple[list[BlockTable], int]] = []
    for _ in range(1000):
        if alive and rng.random() < 0.5:
            tables, length = alive.pop(rng.randrange(len(alive)))
            if rng.random() < 0.7 and length < 40 and blocks.grow(tables, length + 1):
                length += 1
                if blocks.grow_drafts(tables, length, 3):
                    for position in range(length, length + rng.randrange(4)):
                        blocks.accept_draft(tables, position)
                        length += 1
                    blocks.release_drafts(tables)
                blocks.trim(tables, length)
                blocks.publish(tables, chain[: length // 4], 0)
                alive.append((tables, length))
            else:
                blocks.release(tables)
        else:
            tables = blocks.new_tables()
            found = chain[: blocks.match_prefix(chain[: rng.randrange(10)])]
            blocks.reuse_prefix(tables, found)
            alive.append((tables, len(found) * 4))
        check(blocks, [tables for tables, _ in alive])
    for tables, _ in alive:
        blocks.release(tables)
    assert all(g.pool.used == 0 and g.pool.available == 24 for g in blocks.groups)


def check(blocks: BlockManager, alive: list[list[BlockTable]]) -> None:
    """Assert exact user counts, and that free, idle and used blocks are disjoint sets."""
    for i, g in enumerate(blocks.groups):
        counted = [0] * g.pool.size
        for tables in alive:
            for block in tables[i].blocks[tables[i].first :]:
                counted[block] += block >= 0
        assert counted == g.pool.users
        used = {block for block, users in enumerate(counted) if users}
        assert not used & g.pool.free.keys() and not used & g.pool.idle.keys()
        assert len(used) + len(g.pool.free) + len(g.pool.idle) == g.pool.size
        assert all(g.pool.key_of[b] == k for k, b in g.pool.block_of.items())
