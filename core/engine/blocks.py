"""The block manager: pools of cache blocks, the prefix cache over them, and block tables.

Layers with equal cache specs form a group with its own pool. All groups share one block size, so
one chain of keys identifies the blocks of all groups. Key i hashes key i-1 and the content of block
i, so the chains of all sequences form a tree. A block without users stays cached under its key
until the pool needs it; the least recently used block is evicted first.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle

from ostro.core.cache import CacheKind
from ostro.core.messages.prompt import Item

Key = bytes


def seed_key(*facts: object) -> Key:
    """The parent of a sequence's first key, from everything but tokens that changes K/V.

    The facts are the base weights with their formats, the K/V dtype, the model's name and the
    request's cache salt.
    """
    # repr keeps the facts apart: ("a", "b") and ("ab", "") must give different keys.
    return hashlib.blake2b(repr(facts).encode(), digest_size=16).digest()


def next_key(
    parent: Key,
    tokens: Sequence[int],
    mixture: Iterable[tuple[str, float]] = (),
    media: Iterable[tuple[bytes, int, int]] = (),
) -> Key:
    """The key of a full block: a hash of the parent's key, the tokens, adapters and media.

    `mixture` are the (generation, scale) of the adapters that apply before the block's end. `media`
    are (key, first row of the medium in the block, token of the block at that row).
    """
    # 16 bytes: a collision would serve another user's K/V, so the hash must be cryptographic.
    state = hashlib.blake2b(parent, digest_size=16)
    state.update(array("q", tokens).tobytes())
    # Sorted: the sum of adapters does not depend on their order.
    for generation, scale in sorted(mixture):
        state.update(f"{generation}*{scale!r};".encode())
    for key, row, token in media:
        state.update(b"media" + key + array("q", (row, token)).tobytes())
    return state.digest()


class BlockPool:
    """The blocks of one group. A block is free, in use (counted), or idle: cached without users.

    Free and idle blocks are two ordered sets; a block in use is in neither.
    """

    def __init__(self, blocks: int) -> None:
        self.size = blocks
        self.users = [0] * blocks
        self.key_of: list[Key | None] = [None] * blocks
        self.block_of: dict[Key, int] = {}
        # Ordered dicts as ordered sets: removal from the middle takes constant time, and the
        # order of `idle` is the order of eviction.
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))
        self.idle: OrderedDict[int, None] = OrderedDict()
        self.peak = 0

    @property
    def available(self) -> int:
        return len(self.free) + len(self.idle)

    @property
    def used(self) -> int:
        return self.size - self.available

    def allocate(self, after: int | None = None) -> int:
        """Return a block with one user, if possible the one that follows block `after`.

        Evicts the least recently used idle block if no block is free. Raises KeyError if the pool
        has no available block.
        """
        # Contiguous blocks read faster.
        if after is not None and after + 1 in self.free:
            block = after + 1
            del self.free[block]
        elif self.free:
            block = self.free.popitem(last=False)[0]
        else:
            block = self.idle.popitem(last=False)[0]
            self.evict(block)
        self.users[block] = 1
        self.peak = max(self.peak, self.used)
        return block

    def evict(self, block: int) -> None:
        """Remove a block's key, if it has one, so that no prefix finds it."""
        key, self.key_of[block] = self.key_of[block], None
        if key is not None:
            del self.block_of[key]

    def share(self, block: int) -> None:
        """Add a user to a cached block, which is in use or idle."""
        self.idle.pop(block, None)
        self.users[block] += 1
        self.peak = max(self.peak, self.used)

    def release(self, block: int) -> None:
        """Remove a user. A block without users becomes idle if it has a key, else free."""
        self.users[block] -= 1
        if self.users[block]:
            return
        if self.key_of[block] is None:
            # First: its memory is resident, and may be in the CPU's cache.
            self.free[block] = None
            self.free.move_to_end(block, last=False)
        else:
            # Last: the block released last is evicted last.
            self.idle[block] = None

    def publish(self, block: int, key: Key) -> None:
        """Cache a full block under its key, unless another block has the same key."""
        # Two sequences may compute one prefix at the same time. The first keeps the key; the
        # second's block stays without one and becomes free on release.
        if self.key_of[block] is None and key not in self.block_of:
            self.key_of[block] = key
            self.block_of[key] = block

    def clear(self) -> None:
        """Evict all cached blocks; idle blocks become free."""
        for block in list(self.block_of.values()):
            self.evict(block)
        self.free.update(self.idle)
        self.idle.clear()


@dataclass
class BlockTable:
    """The blocks of one sequence in one group, in order; -1 for an index without a block.

    All blocks before index `first` are released. `drafts` are the blocks of a group of states for
    the proposed tokens of the step in flight, one for the state after each of them.
    """

    blocks: list[int] = field(default_factory=list)
    first: int = 0
    drafts: list[int] = field(default_factory=list)


@dataclass(eq=False)
class EncoderBlocks:
    """The blocks of one medium in each cross group; `written` once a launched step fills them."""

    item: Item
    keys: list[Key]
    blocks: list[list[int]]
    written: bool


@dataclass
class CacheGroup:
    """Layers with equal specs, their cache kind, and the pool of its blocks."""

    kind: CacheKind
    layers: tuple[int, ...]
    pool: BlockPool


class BlockManager:
    """Allocates, shares, caches and releases the blocks of all groups of one model.

    `groups` hold the K/V of a sequence's tokens, `cross_groups` the encoder states of its media. A
    sequence has one table per group, in the order of `groups`. A sequence computed in two passes
    (X-LoRA) has the tables of both passes, one after the other. While `awaited`, a pooling batch
    waits for blocks or adapters, and the scheduler starts no sequences.
    """

    def __init__(self, groups: Sequence[CacheGroup], block: int) -> None:
        self.groups = tuple(group for group in groups if not group.kind.encoded)
        self.cross_groups = tuple(group for group in groups if group.kind.encoded)
        self.block = block
        self.aligned = any(group.kind.aligned for group in groups)
        self.awaited = False

    @property
    def all(self) -> tuple[CacheGroup, ...]:
        return self.groups + self.cross_groups

    def new_tables(self, passes: int = 1) -> list[BlockTable]:
        """Empty tables for a sequence that is computed in `passes` passes."""
        return [BlockTable() for _ in range(passes) for _ in self.groups]

    def pairs(self, tables: Sequence[BlockTable]) -> Iterator[tuple[CacheGroup, BlockTable]]:
        """Each table with its group; `cycle` repeats the groups for each pass."""
        return zip(cycle(self.groups), tables, strict=False)

    def match_prefix(self, keys: Sequence[Key]) -> int:
        """The length, in blocks, of the longest cached prefix that every group can resume."""
        length = len(keys)
        known = [[key in group.pool.block_of for key in keys] for group in self.groups]
        # A shorter prefix may need other blocks of a group with a window. All groups are therefore
        # checked again with the shortest length, until they agree on one.
        while True:
            shortest = min(
                (g.kind.hit(k[:length]) for g, k in zip(self.groups, known, strict=True)),
                default=0,
            )
            if shortest == length or not length:
                return shortest
            length = shortest

    def reuse_prefix(self, tables: Sequence[BlockTable], keys: Sequence[Key]) -> None:
        """Add the cached blocks of these keys to empty tables. Every key must be cached."""
        length = len(keys) * self.block
        for group, table in self.pairs(tables):
            table.first = group.kind.first(length)
            table.blocks = [-1] * table.first
            for i, key in enumerate(keys[table.first :], table.first):
                block = group.pool.block_of[key] if group.kind.needs_block(i, length) else -1
                if block >= 0:
                    group.pool.share(block)
                table.blocks.append(block)

    def align(self, start: int, count: int) -> int:
        """How many of `count` rows from `start` a step may compute, so that states get cached.

        A group of states caches what a sequence is at the end of a block. A step must end there or
        inside the block where it started. Groups of pages set no limit.
        """
        if not self.aligned:
            return count
        inside = -start % self.block or self.block  # rows up to the end of the current block
        if count <= inside or start % self.block:
            return min(count, inside)
        return count - (start + count) % self.block

    def has_room(self, tables: Sequence[BlockTable], length: int, rows: int | None = None) -> bool:
        """Whether every group has the blocks for `length` tokens.

        With `rows` the tokens are computed in steps of so many rows, and layers with a window
        release blocks between the steps; without, all blocks are needed at once.
        """
        # Tables of several passes take their blocks from the same pool: their needs add up.
        need = [0] * len(self.groups)
        for i, (group, table) in enumerate(self.pairs(tables)):
            missing = sum(self.missing(group, table, length))
            if rows is not None:
                missing = min(missing, group.kind.blocks_of(length, rows))
            need[i % len(need)] += missing
        return all(n <= group.pool.available for n, group in zip(need, self.groups, strict=True))

    def max_length(self, context: int, rows: int, passes: int = 1) -> int:
        """The most tokens, at most `context`, of a sequence that has all pools for itself.

        The sequence is computed in `passes` passes and in steps of up to `rows` rows.
        """
        short = [
            group.pool.size // passes * self.block
            for group in self.groups
            if group.pool.size < passes * group.kind.blocks_of(context, rows)
        ]
        return min([context, *short])

    def missing(self, group: CacheGroup, table: BlockTable, length: int) -> list[bool]:
        """For each index that a table lacks for `length` tokens, whether it needs a block."""
        indices = range(len(table.blocks), -(-length // self.block))
        return [group.kind.needs_block(i, length) for i in indices]

    def grow(self, tables: Sequence[BlockTable], length: int) -> bool:
        """Allocate the blocks for `length` tokens; False, without any change, if they do not fit.

        `first` and existing entries stay as they are.
        """
        # Check all groups first: a partial allocation would have to be undone on failure.
        if not self.has_room(tables, length):
            return False
        for group, table in self.pairs(tables):
            self.extend(group, table, length)
        return True

    def extend(self, group: CacheGroup, table: BlockTable, length: int) -> None:
        """Allocate the blocks for `length` tokens in one group, which has them."""
        for needed in self.missing(group, table, length):
            last = table.blocks[-1] if table.blocks else -1
            after = last if last >= 0 else None
            table.blocks.append(group.pool.allocate(after) if needed else -1)

    def grow_pages(self, tables: Sequence[BlockTable], length: int) -> bool:
        """Allocate the blocks for `length` tokens in the groups of pages, not in those of states.

        False, without any change, if they do not fit.
        """
        pairs = [(group, table) for group, table in self.pairs(tables) if not group.kind.aligned]
        if any(sum(self.missing(g, table, length)) > g.pool.available for g, table in pairs):
            return False
        for group, table in pairs:
            self.extend(group, table, length)
        return True

    def grow_drafts(self, tables: Sequence[BlockTable], length: int, count: int) -> bool:
        """Allocate the blocks for `count` proposed tokens after `length` tokens.

        False, without any change, if they do not fit.
        """
        for group, table in self.pairs(tables):
            pages = sum(self.missing(group, table, length + count))
            if (count if group.kind.aligned else pages) > group.pool.available:
                return False
        for group, table in self.pairs(tables):
            if group.kind.aligned:
                table.drafts += [group.pool.allocate() for _ in range(count)]
            else:
                self.extend(group, table, length + count)
        return True

    def accept_draft(self, tables: Sequence[BlockTable], position: int) -> None:
        """The state after the next proposed token, that at `position`, is now the newest."""
        for group, table in self.pairs(tables):
            if group.kind.aligned:
                # The token is in the block of the one before it, or in the next block.
                if len(table.blocks) > position // self.block:
                    group.pool.release(table.blocks.pop())
                table.blocks.append(table.drafts.pop(0))

    def release_drafts(self, tables: Sequence[BlockTable]) -> None:
        """Release the blocks of the proposed tokens that were not accepted."""
        for group, table in self.pairs(tables):
            for block in table.drafts:
                group.pool.release(block)
            table.drafts = []

    def trim(self, tables: Sequence[BlockTable], length: int) -> None:
        """Release the blocks that a sequence of `length` tokens no longer reads."""
        for group, table in self.pairs(tables):
            first = min(group.kind.first(length), len(table.blocks))
            for i in range(table.first, first):
                if table.blocks[i] >= 0:
                    group.pool.release(table.blocks[i])
                table.blocks[i] = -1
            # Never backwards: the entries before `first` are -1 and must not be read again.
            table.first = max(table.first, first)

    def publish(self, tables: Sequence[BlockTable], keys: Sequence[Key], start: int) -> None:
        """Cache the full blocks start..len(keys) under their keys.

        Blocks before `start` are published already; those before `first` are released.
        """
        for group, table in self.pairs(tables):
            for i in range(max(start, table.first), min(len(keys), len(table.blocks))):
                if table.blocks[i] >= 0:
                    group.pool.publish(table.blocks[i], keys[i])

    def release(self, tables: Sequence[BlockTable]) -> None:
        """Release all blocks of a sequence and empty its tables."""
        self.release_drafts(tables)
        # The last block first: idle blocks are evicted in the order of their release, and a block
        # is found only if all blocks before it are cached.
        for group, table in self.pairs(tables):
            for block in reversed(table.blocks[table.first :]):
                if block >= 0:
                    group.pool.release(block)
            table.blocks, table.first = [], 0

    def fits(self, items: Iterable[Item]) -> bool:
        """Whether the cross groups, if empty, have the blocks for all these media at once."""
        need = sum(-(-item.length // self.block) for item in items if item.since is not None)
        return all(need <= group.pool.size for group in self.cross_groups)

    def acquire(
        self, item: Item, mixture: Iterable[tuple[str, float]] = ()
    ) -> EncoderBlocks | None:
        """Return blocks for a medium in all cross groups: the cached ones, or else new ones.

        None if a pool has too few available blocks.
        """
        count = -(-item.length // self.block)
        keys = [next_key(item.key, [i], mixture) for i in range(count)]
        # All blocks or none: a partly evicted medium is encoded again as a whole.
        if all(key in group.pool.block_of for group in self.cross_groups for key in keys):
            found = [[group.pool.block_of[key] for key in keys] for group in self.cross_groups]
            for group, blocks in zip(self.cross_groups, found, strict=True):
                for block in blocks:
                    group.pool.share(block)
            return EncoderBlocks(item, keys, found, written=True)
        if any(group.pool.available < count for group in self.cross_groups):
            return None
        new = [[group.pool.allocate() for _ in keys] for group in self.cross_groups]
        # Without keys until a step writes them: other sequences must not read empty blocks.
        return EncoderBlocks(item, keys, new, written=False)

    def publish_encoder(self, encoder_blocks: EncoderBlocks) -> None:
        """Cache a medium's blocks under their keys, once a launched step writes them."""
        encoder_blocks.written = True
        for group, blocks in zip(self.cross_groups, encoder_blocks.blocks, strict=True):
            for block, key in zip(blocks, encoder_blocks.keys, strict=True):
                group.pool.publish(block, key)

    def release_encoder(self, encoder_blocks: EncoderBlocks) -> None:
        """Remove one user from each block of a medium."""
        for group, blocks in zip(self.cross_groups, encoder_blocks.blocks, strict=True):
            for block in blocks:
                group.pool.release(block)

    @property
    def used_bytes(self) -> int:
        return sum(group.kind.bytes(group.pool.used) for group in self.all)

    @property
    def peak_bytes(self) -> int:
        return sum(group.kind.bytes(group.pool.peak) for group in self.all)
