"""Blocks: pools of cache blocks, the prefix tree over them, and every sequence's block tables.

Layers with equal cache specs form a group with a pool of its own. All groups share one block size,
so one chain of keys names the blocks of all: key i hashes key i-1 and what block i holds, which
makes the chains of all sequences a tree. A block that no sequence uses stays findable by its key
until its room is needed; the least recently used goes first.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle

from ostro.core.cache import CacheKind
from ostro.core.media import Item

Key = bytes


def seed_key(*facts: object) -> Key:
    """The root of a sequence's keys: whatever changes K/V before the first token is read.

    Base weights with their formats, K/V type, encoder inputs, and the request's cache salt.
    """
    return hashlib.blake2b(repr(facts).encode(), digest_size=16).digest()


def next_key(
    parent: Key,
    tokens: Sequence[int],
    mixture: Iterable[tuple[str, float]] = (),
    media: Iterable[tuple[bytes, int, int]] = (),
) -> Key:
    """The key of a full block: its parent, its tokens, the adapters in force up to its end, and
    the media it holds rows of, each with the first of these rows and the token that has it.
    """
    state = hashlib.blake2b(parent, digest_size=16)
    state.update(array("q", tokens).tobytes())
    for generation, scale in sorted(mixture):
        state.update(f"{generation}*{scale!r};".encode())
    for key, row, token in media:
        state.update(b"media" + key + array("q", (row, token)).tobytes())
    return state.digest()


class BlockPool:
    """The blocks of one group: free, in use (counted), or idle under a key."""

    def __init__(self, blocks: int) -> None:
        self.size = blocks
        self.users = [0] * blocks
        self.key_of: list[Key | None] = [None] * blocks
        self.block_of: dict[Key, int] = {}
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))
        self.idle: OrderedDict[int, None] = OrderedDict()
        self.peak = 0

    @property
    def available(self) -> int:
        return len(self.free) + len(self.idle)

    @property
    def used(self) -> int:
        return self.size - self.available

    def take(self, after: int | None = None) -> int:
        """A block for one user, the one behind `after` where it is free: runs read faster."""
        if after is not None and after + 1 in self.free:
            block = after + 1
            del self.free[block]
        elif self.free:
            block = self.free.popitem(last=False)[0]
        else:
            block = self.idle.popitem(last=False)[0]
            self.forget(block)
        self.users[block] = 1
        self.peak = max(self.peak, self.used)
        return block

    def forget(self, block: int) -> None:
        key, self.key_of[block] = self.key_of[block], None
        if key is not None:
            del self.block_of[key]

    def share(self, block: int) -> None:
        """One more user of a block that is in use or idle."""
        self.idle.pop(block, None)
        self.users[block] += 1
        self.peak = max(self.peak, self.used)

    def release(self, block: int) -> None:
        """One user less; without users a keyed block idles, any other is free."""
        self.users[block] -= 1
        if self.users[block]:
            return
        target = self.free if self.key_of[block] is None else self.idle
        target[block] = None

    def publish(self, block: int, key: Key) -> None:
        """Make a full block findable, unless another already holds the same."""
        if self.key_of[block] is None and key not in self.block_of:
            self.key_of[block] = key
            self.block_of[key] = block

    def clear(self) -> None:
        """Forget all keys; idle blocks become free."""
        for block in list(self.block_of.values()):
            self.forget(block)
        self.free.update(self.idle)
        self.idle.clear()


@dataclass
class BlockTable:
    """The blocks of one sequence in one group, in order; -1 where it keeps none."""

    blocks: list[int] = field(default_factory=list)
    first: int = 0  # blocks before it are given back


@dataclass(eq=False)
class EncoderBlocks:
    """What one medium has in the cross groups: the blocks of each, and whether they are written."""

    item: Item
    keys: list[Key]
    blocks: list[list[int]]
    written: bool


@dataclass
class CacheGroup:
    """Layers with equal specs: their cache kind, and the pool its blocks come from."""

    kind: CacheKind
    layers: tuple[int, ...]
    pool: BlockPool


class BlockManager:
    """All groups of one model: find, share, grow, trim, publish and release as one.

    `groups` hold a sequence's own tokens, `cross_groups` the encoder states of its media. A
    sequence has a table in each group, in their order; a sequence computed in two passes (X-LoRA)
    has twice as many.
    """

    def __init__(self, groups: Sequence[CacheGroup], block: int) -> None:
        self.groups = tuple(group for group in groups if not group.kind.encoded)
        self.cross_groups = tuple(group for group in groups if group.kind.encoded)
        self.block = block
        self.aligned = any(group.kind.aligned for group in groups)

    @property
    def all(self) -> tuple[CacheGroup, ...]:
        return self.groups + self.cross_groups

    def tables(self, passes: int = 1) -> list[BlockTable]:
        return [BlockTable() for _ in range(passes) for _ in self.groups]

    def pairs(self, tables: Sequence[BlockTable]) -> Iterator[tuple[CacheGroup, BlockTable]]:
        """Each table with its group."""
        return zip(cycle(self.groups), tables, strict=False)

    def find(self, keys: Sequence[Key]) -> int:
        """The longest prefix, in blocks, that every group can resume."""
        length = len(keys)
        known = [[key in group.pool.block_of for key in keys] for group in self.groups]
        while True:
            shortest = min(
                (g.kind.hit(k[:length]) for g, k in zip(self.groups, known, strict=True)),
                default=0,
            )
            if shortest == length or not length:
                return shortest
            length = shortest

    def adopt(self, tables: Sequence[BlockTable], keys: Sequence[Key]) -> None:
        """Fill empty tables with the cached blocks of these keys, shared."""
        length = len(keys) * self.block
        for group, table in self.pairs(tables):
            table.first = group.kind.first(length)
            table.blocks = [-1] * table.first
            for i, key in enumerate(keys[table.first :], table.first):
                block = group.pool.block_of[key] if group.kind.keeps(i, length) else -1
                if block >= 0:
                    group.pool.share(block)
                table.blocks.append(block)

    def align(self, start: int, count: int) -> int:
        """How many of `count` rows from `start` a step may take where blocks are states."""
        if not self.aligned:
            return count
        inside = -start % self.block or self.block
        if count <= inside or start % self.block:
            return min(count, inside)
        return count - (start + count) % self.block

    def room(self, tables: Sequence[BlockTable], length: int, rows: int | None = None) -> bool:
        """Whether every group has the blocks to hold `length` tokens, at once or computed in steps
        of `rows` rows: layers with a window then give blocks back on the way.
        """
        need = [0] * len(self.groups)
        for i, (group, table) in enumerate(self.pairs(tables)):
            missing = sum(self.missing(group, table, length))
            if rows is not None:
                missing = min(missing, group.kind.blocks_of(length, rows))
            need[i % len(need)] += missing
        return all(n <= group.pool.available for n, group in zip(need, self.groups, strict=True))

    def longest(self, context: int, rows: int, passes: int = 1) -> int:
        """The most tokens, up to `context`, of a sequence alone that is computed in `passes` passes
        by steps of up to `rows` rows.
        """
        short = [
            group.pool.size // passes * self.block
            for group in self.groups
            if group.pool.size < passes * group.kind.blocks_of(context, rows)
        ]
        return min([context, *short])

    def missing(self, group: CacheGroup, table: BlockTable, length: int) -> list[bool]:
        """For each index that a table lacks to reach `length` tokens, whether it takes a block."""
        indices = range(len(table.blocks), -(-length // self.block))
        return [group.kind.keeps(i, length) for i in indices]

    def grow(self, tables: Sequence[BlockTable], length: int) -> bool:
        """Take the blocks for `length` tokens, or none at all where there is no room."""
        if not self.room(tables, length):
            return False
        for group, table in self.pairs(tables):
            for taken in self.missing(group, table, length):
                last = table.blocks[-1] if table.blocks else -1
                after = last if last >= 0 else None
                table.blocks.append(group.pool.take(after) if taken else -1)
        return True

    def trim(self, tables: Sequence[BlockTable], length: int) -> None:
        """Give back what a sequence of `length` tokens no longer reads."""
        for group, table in self.pairs(tables):
            first = min(group.kind.first(length), len(table.blocks))
            for i in range(table.first, first):
                if table.blocks[i] >= 0:
                    group.pool.release(table.blocks[i])
                table.blocks[i] = -1
            table.first = max(table.first, first)

    def publish(self, tables: Sequence[BlockTable], keys: Sequence[Key], start: int) -> None:
        """Make the full blocks start..len(keys) findable."""
        for group, table in self.pairs(tables):
            for i in range(max(start, table.first), min(len(keys), len(table.blocks))):
                if table.blocks[i] >= 0:
                    group.pool.publish(table.blocks[i], keys[i])

    def release(self, tables: Sequence[BlockTable]) -> None:
        """Give all blocks back, the last first, so that a shared beginning outlives the ends."""
        for group, table in self.pairs(tables):
            for block in reversed(table.blocks[table.first :]):
                if block >= 0:
                    group.pool.release(block)
            table.blocks, table.first = [], 0

    def holds(self, items: Iterable[Item]) -> bool:
        """Whether the cross groups are large enough for all these media at once."""
        need = sum(-(-item.length // self.block) for item in items if item.since is not None)
        return all(need <= group.pool.size for group in self.cross_groups)

    def hold(self, item: Item, mixture: Iterable[tuple[str, float]] = ()) -> EncoderBlocks | None:
        """Blocks for a medium in all cross groups, those that hold it already where they do.

        None where there is no room.
        """
        count = -(-item.length // self.block)
        keys = [next_key(item.key, [i], mixture) for i in range(count)]
        if all(key in group.pool.block_of for group in self.cross_groups for key in keys):
            found = [[group.pool.block_of[key] for key in keys] for group in self.cross_groups]
            for group, blocks in zip(self.cross_groups, found, strict=True):
                for block in blocks:
                    group.pool.share(block)
            return EncoderBlocks(item, keys, found, written=True)
        if any(group.pool.available < count for group in self.cross_groups):
            return None
        taken = [[group.pool.take() for _ in keys] for group in self.cross_groups]
        return EncoderBlocks(item, keys, taken, written=False)

    def written(self, memory: EncoderBlocks) -> None:
        """A launched step writes a medium's blocks: others may find them."""
        memory.written = True
        for group, blocks in zip(self.cross_groups, memory.blocks, strict=True):
            for block, key in zip(blocks, memory.keys, strict=True):
                group.pool.publish(block, key)

    def let_go(self, memory: EncoderBlocks) -> None:
        """One user of a medium less."""
        for group, blocks in zip(self.cross_groups, memory.blocks, strict=True):
            for block in blocks:
                group.pool.release(block)

    @property
    def used_bytes(self) -> int:
        return sum(group.kind.bytes(group.pool.used) for group in self.all)

    @property
    def peak_bytes(self) -> int:
        return sum(group.kind.bytes(group.pool.peak) for group in self.all)
