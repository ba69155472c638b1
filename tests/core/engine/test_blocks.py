"""Pools and the prefix tree: nothing is lost, nothing is shared that should not be."""

from __future__ import annotations

import random

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


class Nothing(CacheKind):
    """A kind without memory."""

    def bytes(self, blocks: int) -> int:
        return blocks

    def allocate(self, blocks: int) -> None: ...

    def view(self, layer: int, batch: AttentionMetadata) -> None: ...


def group(blocks: int, window: int = 0) -> CacheGroup:
    spec = CacheSpec(heads=1, key_dim=1, value_dim=1, window=window)
    kind = Nothing(spec, 1, block=4, dtype=torch.float32, device=torch.device("cpu"))
    return CacheGroup(kind, (0,), BlockPool(blocks))


def keys(*tokens: int) -> list[bytes]:
    chain, key = [], seed_key("model", "salt")
    for i in range(0, len(tokens) - 3, 4):
        key = next_key(key, tokens[i : i + 4])
        chain.append(key)
    return chain


def test_keys_know_all_that_came_before() -> None:
    assert keys(1, 2, 3, 4, 5, 6, 7, 8)[1] != keys(1, 2, 3, 9, 5, 6, 7, 8)[1]
    assert seed_key("a", "b") != seed_key("ab", "")
    root = seed_key("x")
    assert next_key(root, [1], [("a", 1.0)]) != next_key(root, [1], [("a", 0.5)])
    assert next_key(root, [1], [("a", 1.0), ("b", 1.0)]) == next_key(
        root, [1], [("b", 1.0), ("a", 1.0)]
    )


def test_a_window_resumes_from_its_last_blocks_alone() -> None:
    kind = group(8, window=6).kind
    assert kind.hit([False, False, True, True]) == 4
    assert kind.hit([True, False, False, True]) == 1
    assert kind.hit([False, False, False]) == 0
    assert group(8).kind.hit([True, True, False, True]) == 2


def test_all_groups_must_agree_on_a_prefix() -> None:
    full, sliding = group(8), group(8, window=4)
    blocks, chain = BlockManager([full, sliding], 4), keys(*range(16))
    first = blocks.new_tables()
    assert blocks.grow(first, 16)
    blocks.publish(first, chain, 0)
    assert blocks.match_prefix(chain) == 4
    full.pool.evict(first[0].blocks[2])
    assert blocks.match_prefix(chain) == 2


def test_a_thousand_random_lives_lose_no_block() -> None:
    rng, chain = random.Random(0), keys(*range(40))
    blocks = BlockManager([group(24), group(24, window=6)], 4)
    alive: list[tuple[list[BlockTable], int]] = []
    for _ in range(1000):
        if alive and rng.random() < 0.5:
            tables, length = alive.pop(rng.randrange(len(alive)))
            if rng.random() < 0.7 and length < 40 and blocks.grow(tables, length + 3):
                blocks.trim(tables, length + 3)
                blocks.publish(tables, chain[: (length + 3) // 4], 0)
                alive.append((tables, length + 3))
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
    """Users are counted exactly, and free, idle and used blocks are three separate sets."""
    for i, g in enumerate(blocks.groups):
        counted = [0] * g.pool.size
        for tables in alive:
            for block in tables[i].blocks[tables[i].first :]:
                counted[block] += 1
        assert counted == g.pool.users
        used = {block for block, users in enumerate(counted) if users}
        assert not used & g.pool.free.keys() and not used & g.pool.idle.keys()
        assert len(used) + len(g.pool.free) + len(g.pool.idle) == g.pool.size
        assert all(g.pool.key_of[b] == k for k, b in g.pool.block_of.items())
