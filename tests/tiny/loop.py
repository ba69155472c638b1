"""The engine loop without a model: scheduler, block manager, and a cache of hashes.

`Loop` executes plans like engine, runner and sampler. Instead of keys and values, it writes to each
slot a hash of everything that they depend on. In each step it checks that every row reads the slots
of its own sequence.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ostro.core.adapters.adapter import EMPTY, LoadedAdapter, Mixture, WeightedAdapter
from ostro.core.adapters.pool import MixtureLease, MixtureRow
from ostro.core.adapters.weights import Mixer
from ostro.core.cache import CacheKind, CacheSpec
from ostro.core.engine.blocks import BlockManager, BlockPool, BlockTable, CacheGroup, seed_key
from ostro.core.engine.scheduler import Chunk, Scheduler, StepPlan
from ostro.core.engine.sequence import Sequence as TokenSequence
from ostro.core.messages.prompt import Item
from ostro.core.messages.requests import Sampling, TokenRequest
from ostro.plugins.caches.recurrent.kind import Recurrent

BLOCK = 4
CPU = torch.device("cpu")


class Pages(CacheKind):
    """The pages of self-attention caches, without memory."""

    def bytes(self, blocks: int) -> int:
        return blocks

    def allocate(self, blocks: int) -> None: ...

    def view(self, layer: int, batch: object) -> None: ...

    def fork(self, source: int, target: int) -> None: ...


class Cross(Pages):
    """The pages of cross-attention caches, without memory."""

    @property
    def encoded(self) -> bool:
        return True


def pages(blocks: int, window: int = 0) -> CacheGroup:
    """A cache group of layers with attention to all tokens, or to the last `window`."""
    spec = CacheSpec(heads=1, key_dim=1, value_dim=1, window=window)
    return group(Pages, spec, blocks)


def states(blocks: int) -> CacheGroup:
    """A cache group of recurrent layers."""
    return group(Recurrent, CacheSpec(kind="recurrent", state=((1,),)), blocks)


def cross(blocks: int, length: int = 2 * BLOCK) -> CacheGroup:
    """A cache group of layers with cross attention to media of up to `length` rows."""
    return group(Cross, CacheSpec(heads=1, key_dim=1, value_dim=1, length=length), blocks, 1)


def group(kind: type[CacheKind], spec: CacheSpec, blocks: int, layer: int = 0) -> CacheGroup:
    """A cache group of one layer."""
    made = kind(spec, 1, block=BLOCK, dtype=torch.float32, device=CPU)
    return CacheGroup(made, (layer,), BlockPool(blocks))


def image(
    key: str, first: int, rows: int, *more: tuple[int, int], atomic: bool = False, cost: int = 1
) -> Item:
    """A medium whose features replace `rows` tokens from `first` on, and the spans `more`."""
    spans = ((first, rows), *more)
    return Item(kind="image", key=key.encode(), arrays={}, spans=spans, atomic=atomic, cost=cost)


def view(key: str, since: int, length: int = 2 * BLOCK, cost: int = 1) -> Item:
    """A medium of cross attention, visible from token `since` on."""
    item = Item(kind="image", key=key.encode(), arrays={}, since=since, length=length, cost=cost)
    return item


def lora(name: str, *, scale: float = 1.0, since: int = 0, encodes: bool = False) -> Mixture:
    """A mixture of one LoRA adapter."""
    adapter = LoadedAdapter(generation=name, kind="lora", rank=1, pages=1, encodes=encodes)
    return Mixture((WeightedAdapter(adapter, scale, since),))


def xlora(name: str, held_after: int = 0) -> Mixture:
    """A mixture of one X-LoRA adapter whose scalings are fixed after `held_after` new tokens."""
    mixer = Mixer(scalings=lambda x: x, layers={}, tensors={}, width=1, held_after=held_after)
    adapter = LoadedAdapter(generation=name, kind="xlora", rank=1, pages=0, mixer=mixer)
    return Mixture((WeightedAdapter(adapter, 1.0),))


@dataclass
class Room:
    """Capacity for `rows` mixtures on the device; the part of `AdapterPool` that a scheduler calls.

    `mixtures` are the loaded mixtures by row; `calls` counts `acquire`; `changes` counts changes
    that require captured steps to be captured again.
    """

    rows: int
    mixtures: dict[int, Mixture] = field(default_factory=dict)
    users: dict[int, int] = field(default_factory=dict)
    calls: int = 0
    changes: int = 0

    def acquire(self, mixture: Mixture) -> MixtureLease | None:
        self.calls += 1
        facts = facts_of(mixture)
        known = [row for row, other in self.mixtures.items() if facts_of(other) == facts]
        free = [row for row in range(1, self.rows + 1) if row not in self.mixtures]
        if not known and not free:
            return None
        row = [*known, *free][0]
        self.mixtures[row] = mixture
        self.users[row] = self.users.get(row, 0) + 1
        return MixtureLease([(mixture.starts[0], MixtureRow(row, (), []))])

    def release(self, held: MixtureLease) -> None:
        for _, row in held.rows:
            self.users[row.index] -= 1
            assert self.users[row.index] >= 0, "given back twice"
            if not self.users[row.index]:
                del self.mixtures[row.index]

    @property
    def used(self) -> int:
        return sum(self.users.values())


def facts_of(mixture: Mixture) -> list[tuple[str, float, int]]:
    return [(share.adapter.generation, share.scale, share.since) for share in mixture.shares]


class Features(dict[bytes, None]):
    """The keys of media with features; `trim` keeps the newest `limit` after each step."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def trim(self) -> None:
        for key in list(self)[: max(0, len(self) - self.limit)]:
            del self[key]


class Loop:
    """A scheduler over `groups` in a loop; the results of a step are read `lag` steps late."""

    def __init__(
        self,
        *groups: CacheGroup,
        rows: int = 16,
        seqs: int = 4,
        lag: int = 0,
        room: Room | None = None,
        features: int = 1000,
    ) -> None:
        self.blocks = BlockManager(groups or (pages(64),), BLOCK)
        self.features, self.room, self.lag = Features(features), room, lag
        self.scheduler = Scheduler(
            self.blocks,
            self.features,
            max_rows=rows,
            max_seqs=seqs,
            adapter_pool=room,  # type: ignore[arg-type]
        )
        self.live: list[TokenSequence] = []
        self.tokens: dict[TokenSequence, list[int]] = {}
        self.pasts: dict[tuple[TokenSequence, int], list[int]] = {}
        self.placed: dict[int, TokenSequence] = {}
        self.cache: dict[tuple[int, int], object] = {}
        self.flight: deque[StepPlan] = deque()
        self.finished: list[TokenSequence] = []
        self.arrivals = 0

    def add(self, prompt: int | Sequence[int], **fields: Any) -> TokenSequence:
        """Add a request of one choice; see `choices`."""
        [sequence] = self.choices(prompt, **fields)
        return sequence

    def choices(
        self,
        prompt: int | Sequence[int],
        *,
        n: int = 1,
        limit: int = 4,
        priority: int = 0,
        salt: str = "",
        cache: bool = True,
        items: Sequence[Item] = (),
        mixture: Mixture = EMPTY,
        waits: bool = False,
        **rules: Any,
    ) -> list[TokenSequence]:
        """Add a request of `n` choices of `limit` tokens each. An integer prompt means that many
        tokens that no other prompt contains.
        """
        number = self.arrivals
        self.arrivals += 1
        tokens = prompt
        if isinstance(tokens, int):
            tokens = range(1000 * (number + 1), 1000 * (number + 1) + tokens)
        request = TokenRequest(
            id=str(number),
            tokens=list(tokens),
            sampling=Sampling(n=n, **rules),
            priority=priority,
            salt=salt,
            cache=cache,
            items=list(items),
        )
        made = list[TokenSequence]()
        for index in range(n):
            sequence = TokenSequence(
                request,
                index,
                arrival=number,
                seed=index,
                root=seed_key(salt),
                limit=limit,
                tokens=list(tokens),
                prompt=len(tokens),
                leader=made[0] if made else None,
                mixture=mixture,
                reads_tokens=waits,
            )
            made.append(sequence)
            self.tokens[sequence] = list(tokens)
            for number in range(sequence.passes):
                self.pasts[sequence, number] = []
            self.scheduler.add(sequence)
        self.live += made
        return made

    def abort(self, sequence: TokenSequence) -> None:
        sequence.finish = "abort"
        self.scheduler.remove(sequence)
        if sequence in self.live:
            self.live.remove(sequence)

    def run(self, steps: int = 10_000) -> list[StepPlan]:
        """Run until all sequences have finished, and return the plans. Fails if none can run."""
        plans = list[StepPlan]()
        while self.live or self.flight:
            before = len(self.flight)
            plan = self.step()
            plans.append(plan)
            assert plan.chunks or before, f"{len(self.live)} sequences are stuck"
            assert len(plans) < steps, f"{len(self.live)} sequences do not finish"
        return plans

    def step(self) -> StepPlan:
        """Run one iteration: plan, compute, and read the oldest step if it is due."""
        plan = self.scheduler.plan()
        self.check(plan)
        if plan.chunks:
            self.compute(plan)
            self.scheduler.mark_launched(plan)
            drawing = [chunk.sequence for chunk in plan.chunks if chunk.draws]
            while self.flight and any(sequence.reads_tokens for sequence in drawing):
                self.read(self.flight.popleft())
            for sequence in drawing:
                sequence.pending += sequence.finish is None
            self.flight.append(plan)
        self.count()
        if self.flight and (len(self.flight) > self.lag or not plan.chunks):
            self.read(self.flight.popleft())
        self.count()
        return plan

    def read(self, plan: StepPlan) -> None:
        """Process the sampled tokens of a step on the host."""
        for sequence in [chunk.sequence for chunk in plan.chunks if chunk.draws]:
            sequence.pending = max(0, sequence.pending - 1)
            if sequence.finish is not None:
                continue
            sequence.reported = True
            sequence.tokens.append(self.tokens[sequence][len(sequence.tokens)])
            self.scheduler.publish(sequence)
            if len(sequence.tokens) - sequence.prompt >= sequence.limit:
                sequence.finish = "length"
                self.scheduler.remove(sequence)
                self.live.remove(sequence)
                self.finished.append(sequence)

    def check(self, plan: StepPlan) -> None:
        """Assert the invariants of every plan."""
        scheduler = self.scheduler
        sequences = [chunk.sequence for chunk in plan.chunks]
        assert len(set(map(id, sequences))) == len(sequences)
        assert len(scheduler.running) <= scheduler.max_seqs
        rows = [sequence.row for sequence in scheduler.running]
        assert len({*rows, *scheduler.rows}) == len(rows) + len(scheduler.rows)
        assert scheduler.waiting == sorted(scheduler.waiting, key=lambda s: s.order)
        for chunk in plan.chunks:
            sequence, stop = chunk.sequence, chunk.start + chunk.count
            assert sequence in scheduler.running and sequence.finish is None
            assert chunk.count > 0 and chunk.start == sequence.computed
            assert chunk.draws == (stop == sequence.length)
            inside = [a for a, b in sequence.atoms for edge in (chunk.start, stop) if a < edge < b]
            assert not inside, f"rows {chunk.start}..{stop} cut the span from {inside[0]}"
        assert plan.rows <= scheduler.max_rows or overhang(plan) > plan.rows - scheduler.max_rows
        media = len(plan.encodes) + len(plan.encoder_blocks)
        assert plan.encode_cost <= scheduler.max_rows or media == 1

    def compute(self, plan: StepPlan) -> None:
        """Write and read the cache like a model."""
        for sequence in plan.started:
            self.placed[sequence.row] = sequence
        for key in plan.encodes:
            self.features[key] = None
            row = plan.mixture_rows.get(key, 0)
            mixture = self.room.mixtures[row] if self.room and row else EMPTY
            owners = [c.sequence for c in plan.chunks if has(c.sequence, key)]
            assert owners, f"{key!r} is encoded for no row of this step"
            assert any(facts_of(owner.mixture) == facts_of(mixture) for owner in owners)
        for memory in plan.encoder_blocks:
            for g, mine in enumerate(memory.blocks, len(self.blocks.groups)):
                for i, block in enumerate(mine):
                    self.cache[g, block * BLOCK] = memory.item.key, i
        for chunk in plan.chunks:
            assert self.placed[chunk.sequence.row] is chunk.sequence, "it has another's rules"
            self.see_media(chunk)
            for number in range(chunk.sequence.passes):
                if number == 0 or chunk.with_scalings.count:
                    self.compute_rows(chunk.with_scalings if number else chunk, number)
            if chunk.draws:
                past = self.pasts[chunk.sequence, 0][-1]
                self.tokens[chunk.sequence].append(digest(past, chunk.sequence.seed) % 97)
        self.features.trim()

    def see_media(self, chunk: Chunk) -> None:
        """Assert that the features and cross-attention blocks of all rows are available."""
        sequence, stop = chunk.sequence, chunk.start + chunk.count
        memories = iter(sequence.encoder_blocks)
        for item in sequence.request.items:
            if item.since is None:
                if any(a < stop and a + n > chunk.start for a, n in item.spans):
                    assert item.key in self.features, f"{item.key!r} is not encoded"
                continue
            memory = next(memories)
            assert memory.item.key == item.key
            for g, mine in enumerate(memory.blocks, len(self.blocks.groups)):
                if item.since < stop:
                    found = [self.cache.get((g, block * BLOCK)) for block in mine]
                    assert found == [(item.key, i) for i in range(len(mine))]

    def compute_rows(self, chunk: Chunk, number: int) -> None:
        sequence, count = chunk.sequence, len(self.blocks.groups)
        start, stop = chunk.start, chunk.start + chunk.count
        self.extend(sequence, number, stop)
        for g, group in enumerate(self.blocks.groups):
            table = sequence.tables[number * count + g]
            if group.kind.aligned:
                self.compute_state(g, group, table, self.pasts[sequence, number], start, stop)
            else:
                self.compute_pages(g, group, table, self.pasts[sequence, number], start, stop)

    def extend(self, sequence: TokenSequence, number: int, stop: int) -> None:
        """Extend the hashes of `sequence` to `stop` tokens. Each covers all facts that the keys and
        values of the tokens so far depend on.
        """
        past, tokens = self.pasts[sequence, number], self.tokens[sequence]
        while len(past) < stop:
            at, before = len(past), past[-1] if past else digest(sequence.root)
            shares = [each for each in facts_of(sequence.mixture) if each[2] == at and number == 0]
            media = [each for item in sequence.request.items for each in rows_at(item, at)]
            frozen = sequence.scaling_end if number == 0 and at == sequence.scaling_end else None
            past.append(digest(before, tokens[at], *shares, *media, frozen))

    def compute_pages(
        self, g: int, group: CacheGroup, table: BlockTable, past: list[int], start: int, stop: int
    ) -> None:
        def slot(at: int) -> int:
            block = table.blocks[at // BLOCK]
            assert block >= 0, f"token {at} has no block"
            return block * BLOCK + at % BLOCK

        for at in range(start, stop):
            assert group.pool.users[slot(at) // BLOCK] == 1, "rows are written to a shared block"
            self.cache[g, slot(at)] = past[at]
        window = group.kind.spec.window
        for at in range(max(0, start + 1 - window) if window else 0, stop):
            assert self.cache[g, slot(at)] == past[at], f"slot of token {at} holds another's"

    def compute_state(
        self, g: int, group: CacheGroup, table: BlockTable, past: list[int], start: int, stop: int
    ) -> None:
        if start:
            block = table.blocks[(start - 1) // BLOCK]
            assert block >= 0 and self.cache[g, block * BLOCK] == past[start - 1]
        block = table.blocks[(stop - 1) // BLOCK]
        assert block >= 0 and group.pool.users[block] == 1
        self.cache[g, block * BLOCK] = past[stop - 1]

    def count(self) -> None:
        """Assert the block counts: each block is either free, idle or used; none is lost."""
        groups, running = self.blocks.groups, self.scheduler.running
        for g, group in enumerate(groups):
            tables = [table for s in running for table in s.tables[g :: len(groups)]]
            used = [block for table in tables for block in table.blocks[table.first :]]
            self.count_users(group, used)
        for g, group in enumerate(self.blocks.cross_groups):
            self.count_users(
                group, [b for s in running for m in s.encoder_blocks for b in m.blocks[g]]
            )
        held = [s for s in (*running, *self.scheduler.waiting) if s.lease.rows]
        assert all(sequence in running for sequence in held)
        assert self.room is None or self.room.used == len(held)

    def count_users(self, group: CacheGroup, used: Iterable[int]) -> None:
        users = [0] * group.pool.size
        for block in used:
            if block >= 0:
                users[block] += 1
        assert users == group.pool.users
        taken = {block for block, count in enumerate(users) if count}
        apart = [taken, set(group.pool.free), set(group.pool.idle)]
        assert sum(map(len, apart)) == len(set().union(*apart)) == group.pool.size


def digest(*facts: object) -> int:
    """A hash that is equal in all processes, unlike `hash`."""
    return zlib.crc32(repr(facts).encode())


def overhang(plan: StepPlan) -> int:
    """The number of rows of an atomic span at the end of the last chunk."""
    last = plan.chunks[-1]
    stop = last.start + last.count
    return next((b - a for a, b in last.sequence.atoms if b == stop), 0)


def has(sequence: TokenSequence, key: bytes) -> bool:
    return any(item.key == key for item in sequence.request.items)


def rows_at(item: Item, at: int) -> Iterator[object]:
    """The facts about a medium that enter the hash of the token at a position."""
    if item.since == at:
        yield item.key
    done = 0
    for first, count in item.spans:
        if first <= at < first + count:
            yield item.key, done + at - first
        done += count
