"""The scheduler: which rows the next step computes.

Every step mixes decode rows with chunks of prompts under one budget of rows. Decodes come first,
then prompts under way, then waiting ones. Where blocks run out, the last in line gives its own back
and is computed again later. Pure Python on integers; it never looks at a tensor.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Container
from dataclasses import dataclass, field, replace

from ostro.core.adapters.pool import NOTHING, AdapterPool
from ostro.core.engine.blocks import BlockManager, EncoderBlocks
from ostro.core.engine.sequence import Failure, Sequence
from ostro.core.media import Item

LOGPROB_ROWS = 64  # rows of one chunk whose logits are all wanted: they are wide


@dataclass(frozen=True)
class Chunk:
    """Rows start..start+count of a sequence; `draws` says that a token follows the last of them."""

    sequence: Sequence
    start: int
    count: int
    draws: bool

    @property
    def own(self) -> Chunk:
        """Those of its rows that have X-LoRA scalings of their own."""
        scaling_end = self.sequence.scaling_end
        if scaling_end is None:
            return self
        return replace(self, count=min(max(scaling_end - self.start, 0), self.count))


@dataclass
class StepPlan:
    """One step: its chunks in row order, and who got a row of the sampler for it.

    Before its rows run, the media of `encodes` are encoded and those of `memories` are written to
    the cross cache, under the row of the mixture table that `mixed` has for their keys; `cost` is
    what that takes, in rows of encoders. `failed` sequences turn out not to be able to run.
    """

    chunks: list[Chunk] = field(default_factory=list)
    started: list[Sequence] = field(default_factory=list)
    encodes: dict[bytes, Item] = field(default_factory=dict)
    memories: list[EncoderBlocks] = field(default_factory=list)
    mixed: dict[bytes, int] = field(default_factory=dict)
    cost: int = 0
    failed: list[Failure] = field(default_factory=list)

    def drop(self, sequence: Sequence) -> None:
        """Leave a sequence out of the step."""
        self.chunks = [chunk for chunk in self.chunks if chunk.sequence is not sequence]
        self.started = [each for each in self.started if each is not sequence]
        self.memories = [memory for memory in self.memories if memory not in sequence.memories]
        # Of media encode those alone whose sequences have rows, under adapters of these.
        users = {i.key: (i, c.sequence.held) for c in self.chunks for i in c.sequence.request.items}
        self.encodes = {key: item for key, item in self.encodes.items() if key in users}
        self.mixed = {
            key: held.row(item.first) for key, (item, held) in users.items() if key in self.mixed
        }

    @property
    def rows(self) -> int:
        return sum(chunk.count for chunk in self.chunks)

    @property
    def decodes(self) -> bool:
        """Whether every chunk is one row that draws: the shape that is captured."""
        return all(chunk.count == 1 and chunk.draws for chunk in self.chunks)


class Scheduler:
    """Running and waiting sequences, and the rule by which they share steps and blocks."""

    def __init__(
        self,
        blocks: BlockManager,
        features: Container[bytes] = (),
        *,
        max_rows: int,
        max_seqs: int,
        adapter_pool: AdapterPool | None = None,
    ) -> None:
        """`features` says of which inline media the runner has the features; `adapter_pool` bring
        adapters to the device.
        """
        self.blocks, self.features, self.adapter_pool = blocks, features, adapter_pool
        self.max_rows, self.max_seqs = max_rows, max_seqs
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.rows = list(range(max_seqs - 1, -1, -1))
        self.preemptions = 0

    def add(self, sequence: Sequence) -> None:
        sequence.tables = self.blocks.tables(sequence.passes)
        insort(self.waiting, sequence, key=lambda s: s.order)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence and free what it holds; unknown ones are ignored."""
        if sequence in self.running:
            self.running.remove(sequence)
            self.give_back(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def give_back(self, sequence: Sequence) -> None:
        self.blocks.release(sequence.tables)
        for memory in sequence.memories:
            self.blocks.let_go(memory)
        sequence.memories = []
        self.let_go(sequence)
        self.rows.append(sequence.row)
        sequence.row, sequence.computed, sequence.published = -1, 0, 0

    def plan(self) -> StepPlan:
        """The next step; a plan without chunks where nothing can run."""
        plan, budget = StepPlan(), self.max_rows
        # Priorities first: a preempted sequence must not have rows in this plan.
        self.make_way(plan)
        # Decodes before prompts: one row each keeps every stream going, and a long prompt takes
        # what is left of the budget. Prompts under way go on in the order of their start.
        decoding = [s for s in self.running if s.length - s.computed == 1]
        filling = [s for s in self.running if s.length - s.computed > 1]
        for sequence in sorted(decoding, key=lambda s: s.order) + filling:
            if budget > 0 and sequence.ready and sequence in self.running:
                budget -= self.continue_(sequence, plan, budget)
        while budget > 0 and self.waiting:
            taken = self.admit(plan, budget)
            if not taken:
                break
            budget -= taken
        return plan

    def continue_(self, sequence: Sequence, plan: StepPlan, budget: int) -> int:
        """Plan a running sequence's next rows; the last in line may have to give up its blocks."""
        count = self.share(sequence, plan, budget)
        while not self.blocks.grow(sequence.tables, sequence.computed + count):
            # The last in line gives its blocks back, so that the first always makes progress: two
            # sequences that take blocks from each other in turn would both stand still.
            victim = max(self.running, key=lambda s: s.order)
            self.preempt(victim, plan)
            if victim is sequence:
                return 0
        if count:
            self.append(plan, sequence, count)
        return count

    def admit(self, plan: StepPlan, budget: int) -> int:
        """Start the first waiting sequence that can; rows planned for it, 0 where none can."""
        sequence = self.next(plan) if self.rows else None
        if sequence is None or not self.start(sequence, plan):
            return 0
        plan.started.append(sequence)
        count = self.share(sequence, plan, budget)
        if not count or not self.blocks.grow(sequence.tables, sequence.computed + count):
            return 0  # it waits for a medium, or a long span in layers with a window lacks blocks
        self.append(plan, sequence, count)
        return count

    def next(self, plan: StepPlan) -> Sequence | None:
        """Who is to be started: the first in line. While there is no room on the device for the
        adapters of somebody, those without any pass.
        """
        full = False
        for sequence in list(self.waiting):
            if not sequence.startable or (full and sequence.mixture.shares):
                continue
            if self.hold_adapters(sequence, plan):
                return sequence
            full = True
        return None

    def make_way(self, plan: StepPlan) -> None:
        """Start waiting sequences of a better priority in the place of the last in line."""
        for sequence in [s for s in self.waiting if s.startable]:
            while self.running and sequence in self.waiting:
                victim = max(self.running, key=lambda s: s.order)
                if victim.request.priority <= sequence.request.priority:
                    return
                if self.start(sequence, plan):
                    plan.started.append(sequence)
                elif sequence in self.waiting:
                    self.preempt(victim, plan)

    def start(self, sequence: Sequence, plan: StepPlan) -> bool:
        """Give it a row and what the prefix tree has of it, if all its tokens have room.

        At least one token is left to compute: its logits are what the sequence came for.
        """
        if not self.rows or not self.hold_adapters(sequence, plan):
            self.let_go(sequence)
            return False
        found = self.adopt(sequence) if sequence.reads_prefix else 0
        length = min(sequence.length + 1, sequence.room)
        room = self.blocks.room(sequence.tables, length, self.max_rows)
        if not room or not self.hold_media(sequence):
            self.blocks.release(sequence.tables)
            self.let_go(sequence)
            return False
        sequence.computed, sequence.published = found * self.blocks.block, found
        if not sequence.drawn:
            sequence.cached = sequence.computed
        sequence.row = self.rows.pop()
        self.waiting.remove(sequence)
        self.running.append(sequence)
        return True

    def hold_adapters(self, sequence: Sequence, plan: StepPlan) -> bool:
        """Bring its adapters to the device, or False where there is no room. A sequence whose
        adapters raise an error leaves the queue and is among the plan's `failed`.
        """
        if not sequence.mixture.shares or sequence.held is not NOTHING:
            return True
        assert self.adapter_pool is not None, f"{sequence.request.id = } has adapters"
        try:
            held = self.adapter_pool.hold(sequence.mixture)
        except Exception as error:
            error.add_note("bringing adapters to the device")
            plan.failed.append(([sequence], error))
            self.waiting.remove(sequence)
            return False
        sequence.held = held or NOTHING
        return held is not None

    def let_go(self, sequence: Sequence) -> None:
        """Its adapters may leave the device."""
        if self.adapter_pool is not None and sequence.held is not NOTHING:
            self.adapter_pool.let_go(sequence.held)
            sequence.held = NOTHING

    def adopt(self, sequence: Sequence) -> int:
        """Share the blocks of the longest cached prefix that does not end within an atom, and that
        is there for each of its passes; gives how many blocks.
        """
        block, groups = self.blocks.block, len(self.blocks.groups)
        chains = sequence.chains(block, sequence.length - 1)
        length = len(chains[0])
        while True:
            found = min(self.blocks.find(keys[:length]) for keys in chains)
            whole = sequence.whole(-1, found * block) // block
            if whole == length:
                break
            length = whole
        for way, keys in enumerate(chains):
            tables = sequence.tables[way * groups : (way + 1) * groups]
            self.blocks.adopt(tables, keys[:length])
        return length

    def hold_media(self, sequence: Sequence) -> bool:
        """Blocks of the cross groups for all of its media, or none and False."""
        for item in sequence.request.items:
            if item.since is None:
                continue
            memory = self.blocks.hold(item, sequence.mixture.pairs(sequence.prompt))
            if memory is None:
                for held in sequence.memories:
                    self.blocks.let_go(held)
                sequence.memories = []
                return False
            sequence.memories.append(memory)
        return True

    def share(self, sequence: Sequence, plan: StepPlan, budget: int) -> int:
        """How many of its rows fit the budget; 0 where it waits for a medium to be encoded."""
        if sequence.request.sampling.prompt_logprobs is not None:
            budget = min(budget, LOGPROB_ROWS)
        count = min(sequence.length - sequence.computed, budget)
        scaling_end = sequence.scaling_end
        if scaling_end is not None and sequence.computed < scaling_end:
            count = min(
                count, scaling_end - sequence.computed
            )  # rows behind it are computed one way
        if sequence.request.items:
            count = self.encode(sequence, plan, count)
        return self.blocks.align(sequence.computed, count) if count else 0

    def encode(self, sequence: Sequence, plan: StepPlan, count: int) -> int:
        """How many of `count` rows have their media encoded by the time they run.

        What is not encoded yet is planned, as far as the step's budget goes; rows never end within
        an atom.
        """
        start = sequence.computed
        stop = sequence.whole(start, start + count)
        memories = iter(sequence.memories)
        for item in sequence.request.items:
            memory = None if item.since is None else next(memories)
            if item.first >= stop or (item.since is None and sum(item.spans[-1]) <= start):
                continue
            done = item.key in self.features if memory is None else memory.written
            if not done and not self.plan_encoding(plan, item, memory):
                return max(0, item.first - start)
            if not done and sequence.held is not NOTHING:
                plan.mixed[item.key] = sequence.held.row(item.first)
        return stop - start

    def plan_encoding(self, plan: StepPlan, item: Item, memory: EncoderBlocks | None) -> bool:
        """Encode an item in this step; the first that is asked for always can be."""
        if memory in plan.memories or (memory is None and item.key in plan.encodes):
            return True
        if plan.cost and plan.cost + item.cost > self.max_rows:
            return False
        plan.cost += item.cost
        if memory is None:
            plan.encodes[item.key] = item
        else:
            plan.memories.append(memory)
        return True

    def append(self, plan: StepPlan, sequence: Sequence, count: int) -> None:
        draws = sequence.computed + count == sequence.length
        plan.chunks.append(Chunk(sequence, sequence.computed, count, draws))

    def preempt(self, victim: Sequence, plan: StepPlan) -> None:
        """Take a running sequence's blocks; it waits to be computed again."""
        plan.drop(victim)
        self.running.remove(victim)
        self.give_back(victim)
        victim.tables = self.blocks.tables(victim.passes)
        insort(self.waiting, victim, key=lambda s: s.order)
        self.preemptions += 1

    def launched(self, plan: StepPlan) -> None:
        """The step is on its way: its rows count as computed, its draws as pending."""
        for memory in plan.memories:
            self.blocks.written(memory)
        for chunk in plan.chunks:
            chunk.sequence.computed += chunk.count
            chunk.sequence.pending += chunk.draws
            self.publish(chunk.sequence)
            self.blocks.trim(chunk.sequence.tables, chunk.sequence.computed)

    def publish(self, sequence: Sequence) -> None:
        """Make the blocks findable whose tokens are known and computed."""
        if not sequence.request.cache:
            return
        groups, upto = len(self.blocks.groups), min(sequence.computed, len(sequence.tokens))
        if sequence.scaling_end is not None:
            upto = min(upto, sequence.scaling_end)
        chains = sequence.chains(self.blocks.block, upto)
        for way, keys in enumerate(chains):
            tables = sequence.tables[way * groups : (way + 1) * groups]
            self.blocks.publish(tables, keys, sequence.published)
        sequence.published = len(chains[0])
