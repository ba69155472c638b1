"""The scheduler: which rows the next step computes.

Every step mixes decode rows with chunks of prompts under one budget of rows. Decodes come first,
then prompts under way, then waiting ones. Where blocks run out, the last in line gives its own back
and is computed again later. Pure Python on integers; it never looks at a tensor.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from ostro.core.engine.blocks import Blocks, Key
from ostro.core.engine.sequence import Sequence

LOGPROB_ROWS = 64  # rows of one chunk whose logits are all wanted: they are wide


@dataclass(frozen=True)
class Chunk:
    """Rows start..start+count of a sequence; `draws` says that a token follows the last of them."""

    sequence: Sequence
    start: int
    count: int
    draws: bool


@dataclass
class Plan:
    """One step: its chunks in row order, and who got a row of the sampler for it."""

    chunks: list[Chunk] = field(default_factory=list)
    started: list[Sequence] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(chunk.count for chunk in self.chunks)

    @property
    def decodes(self) -> bool:
        """Whether every chunk is one row that draws: the shape that is captured."""
        return all(chunk.count == 1 and chunk.draws for chunk in self.chunks)


class Scheduler:
    """Running and waiting sequences, and the rule by which they share steps and blocks."""

    def __init__(self, blocks: Blocks, *, max_rows: int, max_seqs: int) -> None:
        self.blocks = blocks
        self.max_rows, self.max_seqs = max_rows, max_seqs
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.rows = list(range(max_seqs - 1, -1, -1))
        self.preemptions = 0

    def add(self, sequence: Sequence) -> None:
        sequence.tables = self.blocks.tables()
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
        self.rows.append(sequence.row)
        sequence.row, sequence.computed, sequence.published = -1, 0, 0

    def plan(self) -> Plan:
        """The next step; a plan without chunks where nothing can run."""
        plan, budget = Plan(), self.max_rows
        self.make_way(plan)
        decoding = [s for s in self.running if s.length - s.computed == 1]
        filling = [s for s in self.running if s.length - s.computed > 1]
        for sequence in sorted(decoding, key=lambda s: s.order) + filling:
            if budget and sequence.ready and sequence in self.running:
                budget -= self.continue_(sequence, plan, budget)
        while budget and self.waiting:
            taken = self.admit(plan, budget)
            if not taken:
                break
            budget -= taken
        return plan

    def continue_(self, sequence: Sequence, plan: Plan, budget: int) -> int:
        """Plan a running sequence's next rows; the last in line may have to give up its blocks."""
        count = self.share(sequence, budget)
        while not self.blocks.grow(sequence.tables, sequence.computed + count):
            victim = max(self.running, key=lambda s: s.order)
            self.preempt(victim, plan)
            if victim is sequence:
                return 0
        self.append(plan, sequence, count)
        return count

    def admit(self, plan: Plan, budget: int) -> int:
        """Start the first waiting sequence that can; rows planned for it, 0 where none can."""
        sequence = next((s for s in self.waiting if s.startable), None)
        if sequence is None:
            return 0
        if not self.start(sequence):
            return 0
        plan.started.append(sequence)
        count = self.share(sequence, budget)
        self.blocks.grow(sequence.tables, sequence.computed + count)
        self.append(plan, sequence, count)
        return count

    def make_way(self, plan: Plan) -> None:
        """Start waiting sequences of a better priority in the place of the last in line."""
        for sequence in [s for s in self.waiting if s.startable]:
            while self.running:
                victim = max(self.running, key=lambda s: s.order)
                if victim.request.priority <= sequence.request.priority:
                    return
                if self.start(sequence):
                    plan.started.append(sequence)
                    break
                self.preempt(victim, plan)

    def start(self, sequence: Sequence) -> bool:
        """Give it a row and what the prefix tree has of it, if all its tokens have room.

        At least one token is left to compute: its logits are what the sequence came for.
        """
        if not self.rows:
            return False
        keys: list[Key] = []
        if sequence.reads_prefix:
            keys = sequence.chain(self.blocks.block, sequence.length - 1)
            keys = keys[: self.blocks.find(keys)]
            self.blocks.adopt(sequence.tables, keys)
        if not self.blocks.room(sequence.tables, min(sequence.length + 1, sequence.room)):
            self.blocks.release(sequence.tables)
            return False
        sequence.computed, sequence.published = len(keys) * self.blocks.block, len(keys)
        if not sequence.drawn:
            sequence.cached = sequence.computed
        sequence.row = self.rows.pop()
        self.waiting.remove(sequence)
        self.running.append(sequence)
        return True

    def share(self, sequence: Sequence, budget: int) -> int:
        """How many of its rows fit the budget."""
        if sequence.request.sampling.prompt_logprobs is not None:
            budget = min(budget, LOGPROB_ROWS)
        count = min(sequence.length - sequence.computed, budget)
        return self.blocks.align(sequence.computed, count)

    def append(self, plan: Plan, sequence: Sequence, count: int) -> None:
        draws = sequence.computed + count == sequence.length
        plan.chunks.append(Chunk(sequence, sequence.computed, count, draws))

    def preempt(self, victim: Sequence, plan: Plan) -> None:
        """Take a running sequence's blocks; it waits to be computed again."""
        plan.chunks = [chunk for chunk in plan.chunks if chunk.sequence is not victim]
        plan.started = [sequence for sequence in plan.started if sequence is not victim]
        self.running.remove(victim)
        self.give_back(victim)
        victim.tables = self.blocks.tables()
        insort(self.waiting, victim, key=lambda s: s.order)
        self.preemptions += 1

    def launched(self, plan: Plan) -> None:
        """The step is on its way: its rows count as computed, its draws as pending."""
        for chunk in plan.chunks:
            chunk.sequence.computed += chunk.count
            chunk.sequence.pending += chunk.draws
            self.publish(chunk.sequence)
            self.blocks.trim(chunk.sequence.tables, chunk.sequence.computed)

    def publish(self, sequence: Sequence) -> None:
        """Make the blocks findable whose tokens are known and computed."""
        if not sequence.request.cache:
            return
        keys = sequence.chain(self.blocks.block, min(sequence.computed, len(sequence.tokens)))
        self.blocks.publish(sequence.tables, keys, sequence.published)
        sequence.published = len(keys)
