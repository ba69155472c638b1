"""The scheduler: chooses the rows that the next step computes.

Every step mixes decode rows with chunks of prompts within one budget of rows. Decodes come first,
then running prompts, then waiting ones. If blocks run out, the last sequence in the order of
priority is preempted: it releases its blocks and is computed again later. The scheduler handles
numbers only, never a tensor.
"""

from __future__ import annotations

import logging
from bisect import insort
from collections.abc import Container
from dataclasses import dataclass, field, replace
from time import monotonic

from ostro.core.adapters.pool import NOTHING, AdapterPool
from ostro.core.engine.blocks import BlockManager, BlockPool, EncoderBlocks
from ostro.core.engine.draft_length import MAX_ROWS
from ostro.core.engine.sequence import Failure, Sequence
from ostro.core.engine.speculation import Speculation, may_speculate
from ostro.core.messages.prompt import Item

log = logging.getLogger(__name__)

MIN_ROWS = 32
"""Rows of a step that is not made smaller if it runs out of memory, but tried once more."""
RECOVERY = 1 / 64
"""Rows by which steps may grow again with each step after one has run out of memory."""
APPENDING = 4
"""The most running sequences that get tokens without a draw: docs/performance.md has the speed."""
LOGPROB_ROWS = 64
"""The most rows of a chunk with prompt logprobs: each needs its logits [V] in memory."""


@dataclass(frozen=True)
class Chunk:
    """Rows start..start+count of a sequence; `draws` if a token is sampled after the last row.

    `draft` is the proposed token of the only row, None for tokens of the sequence.
    """

    sequence: Sequence
    start: int
    count: int
    draws: bool
    draft: int | None = None

    @property
    def known(self) -> list[int]:
        """The tokens of the rows that are known on the host."""
        if self.draft is not None:
            return [self.draft]
        return self.sequence.tokens[self.start : self.start + self.count]

    @property
    def with_scalings(self) -> Chunk:
        """The chunk cut to the rows for which the X-LoRA classifier predicts scalings."""
        scaling_end = self.sequence.scaling_end
        if scaling_end is None:
            return self
        return replace(self, count=min(max(scaling_end - self.start, 0), self.count))


@dataclass
class StepPlan:
    """One step: its chunks in row order, and the sequences that start with it.

    Each sequence in `started` has a new sampler row. Before the rows run, the media of `encodes`
    are encoded and those of `encoder_blocks` are written to the cross cache. `mixture_rows` has the
    row of the mixture table for each of these media whose sequence has adapters, by the medium's
    key. `encode_cost` is the cost of encoding, in encoder rows. `failed` are sequences that cannot
    run.
    """

    chunks: list[Chunk] = field(default_factory=list)
    started: list[Sequence] = field(default_factory=list)
    encodes: dict[bytes, Item] = field(default_factory=dict)
    encoder_blocks: list[EncoderBlocks] = field(default_factory=list)
    mixture_rows: dict[bytes, int] = field(default_factory=dict)
    encode_cost: int = 0
    failed: list[Failure] = field(default_factory=list)

    def drop(self, sequence: Sequence) -> None:
        """Remove a sequence from the step, with the media that only it needs."""
        self.chunks = [chunk for chunk in self.chunks if chunk.sequence is not sequence]
        self.started = [each for each in self.started if each is not sequence]
        self.encoder_blocks = [b for b in self.encoder_blocks if b not in sequence.encoder_blocks]
        # The removed sequence may have planned a medium for others too. Keep the media that chunks
        # still use, under a mixture row of these: that of the removed sequence may be reused.
        sequences = [chunk.sequence for chunk in self.chunks]
        users = {item.key: (item, s.lease) for s in sequences for item in s.request.items}
        self.encodes = {key: item for key, item in self.encodes.items() if key in users}
        self.mixture_rows = {
            key: lease.row_index(item.first)
            for key, (item, lease) in users.items()
            if key in self.mixture_rows
        }

    @property
    def rows(self) -> int:
        return sum(chunk.count for chunk in self.chunks)

    @property
    def decodes(self) -> bool:
        """Whether every chunk is one row that draws, the only shape that graphs capture."""
        return bool(self.chunks) and all(c.count == 1 and c.draws for c in self.chunks)


class Scheduler:
    """Shares steps, sampler rows and cache blocks among running and waiting sequences."""

    def __init__(
        self,
        blocks: BlockManager,
        features: Container[bytes] = (),
        *,
        max_rows: int,
        max_seqs: int,
        adapter_pool: AdapterPool | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        """`features` contains the keys of the inline media that the runner has encoded;
        `adapter_pool` loads adapters to the device, `speculation` proposes tokens.
        """
        self.speculation = speculation
        self.blocks, self.features, self.adapter_pool = blocks, features, adapter_pool
        self.max_rows, self.max_seqs = max_rows, max_seqs
        self.step_rows = float(max_rows)  # less after a step has run out of memory
        self.retried = False  # the last step was small, ran out of memory and is tried again
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.rows = list(range(max_seqs - 1, -1, -1))  # free rows of the sampler; the end is next
        self.preemptions = 0

    def add(self, sequence: Sequence) -> None:
        """Add a new or preempted sequence to the queue, in the order of priority and arrival."""
        sequence.tables = self.blocks.new_tables(sequence.passes)
        insort(self.waiting, sequence, key=lambda s: s.order)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence and release its resources; unknown sequences are ignored."""
        if sequence in self.running:
            self.running.remove(sequence)
            self.release(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def release(self, sequence: Sequence) -> None:
        """Release the blocks, the adapters and the sampler row of a running sequence.

        A step in flight may still write to these blocks. The device runs steps in their order, so
        a later user of a block writes it after that step.
        """
        if self.speculation is not None:
            # First: a multi-token head may write to its blocks.
            self.speculation.release(sequence.row)
        self.blocks.release(sequence.tables)
        for encoder_blocks in sequence.encoder_blocks:
            self.blocks.release_encoder(encoder_blocks)
        sequence.encoder_blocks = []
        self.release_adapters(sequence)
        self.rows.append(sequence.row)
        sequence.row, sequence.computed, sequence.published = -1, 0, 0

    def reset(self) -> None:
        """Remove all sequences; release all rows, adapters and blocks, cached ones included."""
        for sequence in self.running + self.waiting:
            self.release_adapters(sequence)
            row, sequence.row = sequence.row, -1
            if self.speculation is not None:
                self.speculation.release(row)
        self.running, self.waiting, self.rows = [], [], list(range(self.max_seqs - 1, -1, -1))
        for group in self.blocks.all:
            group.pool = BlockPool(group.pool.size)

    def plan(self) -> StepPlan:
        """Return the next step; it has no chunks if nothing can run."""
        plan, budget = StepPlan(), int(self.step_rows)
        # Priorities first: a preempted sequence must not have rows in this plan.
        self.preempt_for_priority(plan)
        # Decodes before prompts: one row each keeps every stream going, and a long prompt gets the
        # rest of the budget. Running prompts continue in the order of their start: the first
        # finishes early, instead of all late.
        decoding = [s for s in self.running if s.length - s.computed == 1]
        filling = [s for s in self.running if s.length - s.computed > 1]
        for sequence in sorted(decoding, key=lambda s: s.order) + filling:
            # An earlier sequence of this loop may have preempted this one.
            if budget > 0 and sequence.ready and sequence in self.running:
                budget -= self.continue_(sequence, plan, budget)
        while budget > 0 and self.waiting and not self.blocks.awaited:
            count = self.admit(plan, budget)
            if not count:
                break
            budget -= count
        if self.speculation is not None:
            self.add_drafts(plan, self.speculation, min(budget, MAX_ROWS - plan.rows))
        return plan

    def add_drafts(self, plan: StepPlan, speculation: Speculation, budget: int) -> None:
        """Add rows for proposed tokens to a plan, as far as rows and blocks are left."""
        decoding = [c.sequence for c in plan.chunks if c.count == 1 and c.draws]
        sequences = [sequence for sequence in decoding if may_speculate(sequence)]
        drafts = speculation.drafts(sequences, plan.rows, budget)
        tokens_of = dict(zip(sequences, drafts, strict=True))
        planned, plan.chunks = plan.chunks, []
        for chunk in planned:
            sequence, length = chunk.sequence, chunk.start + chunk.count
            tokens = tokens_of.get(sequence, [])
            while tokens and not self.blocks.grow_drafts(sequence.tables, length, len(tokens)):
                tokens = tokens[:-1]
            sequence.drafts = tokens
            # The rows of a sequence are adjacent: recurrent layers compute them one by one.
            plan.chunks += [
                chunk,
                *(Chunk(sequence, length + i, 1, True, token) for i, token in enumerate(tokens)),
            ]

    def may_append(self, sequence: Sequence) -> bool:
        """Whether tokens may be appended to a sequence without being drawn.

        The next step computes them as it computes a prompt: in few rows that pays, in more than
        that the step is bound by computation. Log probabilities need the logits of each token.
        """
        rules = sequence.request.sampling
        return (
            sequence.row >= 0
            and len(self.running) <= APPENDING
            and bool(rules.processors)
            and rules.logprobs is None
            and may_speculate(sequence)
        )

    def continue_(self, sequence: Sequence, plan: StepPlan, budget: int) -> int:
        """Plan the next rows of a running sequence and return how many.

        Preempts the last sequences in order, possibly this one, until the blocks suffice.
        """
        count = self.count_rows(sequence, plan, budget)
        while not self.blocks.grow(sequence.tables, sequence.computed + count):
            # Always the last in order, so that the first makes progress: two sequences that took
            # blocks from each other in turn would both never finish.
            victim = max(self.running, key=lambda s: s.order)
            self.preempt(victim, plan)
            if victim is sequence:
                return 0
        if count:
            self.append(plan, sequence, count)
        return count

    def admit(self, plan: StepPlan, budget: int) -> int:
        """Start the first waiting sequence that can start; return its number of planned rows."""
        sequence = self.next_startable(plan) if self.rows else None
        if sequence is None or not self.start(sequence, plan):
            return 0
        plan.started.append(sequence)
        count = self.count_rows(sequence, plan, budget)
        # Without rows the sequence stays started: it waits for a medium, or for the blocks of a
        # long span in layers with a window.
        if not count or not self.blocks.grow(sequence.tables, sequence.computed + count):
            return 0
        self.append(plan, sequence, count)
        return count

    def next_startable(self, plan: StepPlan) -> Sequence | None:
        """Return the first waiting sequence that can start, with its adapters on the device.

        If the adapters of a sequence do not fit now, only sequences without adapters may overtake
        it. Others with adapters could otherwise keep it waiting forever.
        """
        full = False
        for sequence in list(self.waiting):
            if not sequence.startable or (full and sequence.mixture.shares):
                continue
            if self.acquire_adapters(sequence, plan):
                return sequence
            full = True
        return None

    def preempt_for_priority(self, plan: StepPlan) -> None:
        """Start waiting sequences of a better priority; preempt the last in order for them."""
        for sequence in [s for s in self.waiting if s.startable]:
            while self.running and sequence in self.waiting:
                victim = max(self.running, key=lambda s: s.order)
                if victim.request.priority <= sequence.request.priority:
                    return
                if self.start(sequence, plan):
                    plan.started.append(sequence)
                elif sequence in self.waiting:  # not if its adapters failed
                    self.preempt(victim, plan)

    def start(self, sequence: Sequence, plan: StepPlan) -> bool:
        """Move a sequence from `waiting` to `running`; False if it cannot run now.

        The sequence gets a sampler row, its adapters, its cached prefix and the blocks of its
        media. All of its known tokens and one more must fit into the cache.
        """
        if not self.rows or not self.acquire_adapters(sequence, plan):
            self.release_adapters(sequence)
            return False
        # The prefix first: its blocks get a user, so they do not count as available below.
        found = self.reuse_prefix(sequence) if sequence.reads_prefix else 0
        # One token more: a sequence that starts and cannot grow would be preempted at once.
        length = min(sequence.length + 1, sequence.max_length)
        has_room = self.blocks.has_room(sequence.tables, length, self.max_rows)
        if not has_room or not self.acquire_encoder_blocks(sequence):
            self.blocks.release(sequence.tables)
            self.release_adapters(sequence)
            return False
        sequence.computed, sequence.published = found * self.blocks.block, found
        # Not after a preemption: then the sequence finds the blocks that it published itself, and
        # `cached` counts what other sequences computed.
        if not sequence.drawn:
            sequence.cached = sequence.computed
        sequence.row = self.rows.pop()
        self.waiting.remove(sequence)
        self.running.append(sequence)
        sequence.started = sequence.started or monotonic()
        return True

    def acquire_adapters(self, sequence: Sequence, plan: StepPlan) -> bool:
        """Load a sequence's adapters to the device; False if they do not fit now.

        An error removes the sequence from the queue and adds it to the plan's `failed`.
        """
        if not sequence.mixture.shares or sequence.lease is not NOTHING:
            return True
        assert self.adapter_pool is not None, f"{sequence.request.id = } has adapters"
        try:
            lease = self.adapter_pool.acquire(sequence.mixture)
        except Exception as error:
            error.add_note("loading adapters to the device")
            plan.failed.append(([sequence], error))
            self.waiting.remove(sequence)
            return False
        sequence.lease = lease or NOTHING
        return lease is not None

    def release_adapters(self, sequence: Sequence) -> None:
        """Remove a user from the sequence's adapters, so that the pool may evict them."""
        if self.adapter_pool is not None and sequence.lease is not NOTHING:
            self.adapter_pool.release(sequence.lease)
            sequence.lease = NOTHING

    def reuse_prefix(self, sequence: Sequence) -> int:
        """Add the longest usable cached prefix to a sequence's tables; return its blocks.

        The prefix is cached for every pass of the sequence and does not end within an atom.
        """
        block, groups = self.blocks.block, len(self.blocks.groups)
        # Without the last token: at least one row must run, since sampling needs its logits.
        upto = sequence.length - 1
        if sequence.scaling_end is not None:
            # After a preemption: see `publish`.
            upto = min(upto, sequence.scaling_end)
        chains = sequence.chains(block, upto)
        length = len(chains[0])
        # A shorter prefix needs other blocks of a group with a window, and may end within another
        # atom: repeat until neither shortens it.
        while True:
            found = min(self.blocks.match_prefix(keys[:length]) for keys in chains)
            snapped = sequence.snap_to_atom(-1, found * block) // block
            if snapped == length:
                break
            length = snapped
        for index, keys in enumerate(chains):
            tables = sequence.tables[index * groups : (index + 1) * groups]
            self.blocks.reuse_prefix(tables, keys[:length])
        return length

    def acquire_encoder_blocks(self, sequence: Sequence) -> bool:
        """Acquire blocks of the cross groups for all media of a sequence, or none and return False.

        All at once: sequences that each hold some blocks and wait for more would deadlock.
        """
        for item in sequence.request.items:
            if item.since is None:
                continue
            acquired = self.blocks.acquire(item, sequence.mixture.pairs(sequence.prompt))
            if acquired is None:
                for encoder_blocks in sequence.encoder_blocks:
                    self.blocks.release_encoder(encoder_blocks)
                sequence.encoder_blocks = []
                return False
            sequence.encoder_blocks.append(acquired)
        return True

    def count_rows(self, sequence: Sequence, plan: StepPlan, budget: int) -> int:
        """Return how many rows of a sequence fit the budget; 0 if it waits for an encoder."""
        if sequence.request.sampling.prompt_logprobs is not None:
            budget = min(budget, LOGPROB_ROWS)
        count = min(sequence.length - sequence.computed, budget)
        scaling_end = sequence.scaling_end
        if scaling_end is not None and sequence.computed < scaling_end:
            # Rows after it keep the last row's scalings, which this step computes.
            count = min(count, scaling_end - sequence.computed)
        if sequence.request.items:
            count = self.count_encoded(sequence, plan, count)
        # Last, since every other limit can move the end into the middle of a block.
        return self.blocks.align(sequence.computed, count) if count else 0

    def count_encoded(self, sequence: Sequence, plan: StepPlan, count: int) -> int:
        """Return how many of `count` rows have their media encoded when they run.

        Plans the encoding of missing media within the step's budget. The rows do not end within an
        atom.
        """
        start = sequence.computed
        stop = sequence.snap_to_atom(start, start + count)
        encoder_blocks = iter(sequence.encoder_blocks)
        for item in sequence.request.items:
            # Always advance: `encoder_blocks` has one entry per medium that layers attend to.
            blocks = None if item.since is None else next(encoder_blocks)
            if item.first >= stop or (item.since is None and sum(item.spans[-1]) <= start):
                continue
            done = item.key in self.features if blocks is None else blocks.written
            if not done and not self.plan_encoding(plan, item, blocks):
                return max(0, item.first - start)
            if not done and sequence.lease is not NOTHING:
                plan.mixture_rows[item.key] = sequence.lease.row_index(item.first)
        return stop - start

    def plan_encoding(self, plan: StepPlan, item: Item, blocks: EncoderBlocks | None) -> bool:
        """Plan the encoding of an item in this step; False if the step's budget does not allow it.

        `blocks` are its blocks in the cross groups, None for inline media.
        """
        if blocks in plan.encoder_blocks or (blocks is None and item.key in plan.encodes):
            return True
        # The first item of a step always fits: an item larger than the budget must run some time.
        if plan.encode_cost and plan.encode_cost + item.cost > self.max_rows:
            return False
        plan.encode_cost += item.cost
        if blocks is None:
            plan.encodes[item.key] = item
        else:
            plan.encoder_blocks.append(blocks)
        return True

    def append(self, plan: StepPlan, sequence: Sequence, count: int) -> None:
        """Add the next `count` rows of a sequence to the plan."""
        draws = sequence.computed + count == sequence.length
        plan.chunks.append(Chunk(sequence, sequence.computed, count, draws))

    def preempt(self, victim: Sequence, plan: StepPlan) -> None:
        """Move a running sequence back to the queue; all its tokens are computed again later."""
        plan.drop(victim)
        self.running.remove(victim)
        self.release(victim)
        self.add(victim)
        self.preemptions += 1

    def may_retry(self, plan: StepPlan) -> bool:
        """Whether the rows of a plan that ran out of memory may be planned again.

        Halves the rows of later steps. A plan of few rows is tried once more as it is.
        """
        rows = min(plan.rows, int(self.step_rows))
        if rows > MIN_ROWS:
            self.step_rows = rows / 2
        elif self.retried:
            return False
        self.retried = rows <= MIN_ROWS
        log.warning("a step of %d rows ran out of memory; its requests run again", rows)
        return True

    def mark_launched(self, plan: StepPlan) -> None:
        """Count the rows of a launched step as computed.

        The device may not have run it yet. Later steps run after it in stream order, so they may
        already reuse the blocks that it writes.
        """
        self.step_rows, self.retried = min(self.max_rows, self.step_rows + RECOVERY), False
        for encoder_blocks in plan.encoder_blocks:
            self.blocks.publish_encoder(encoder_blocks)
        for chunk in plan.chunks:
            if chunk.draft is not None:
                continue  # it counts once the draft is accepted
            chunk.sequence.computed += chunk.count
            # Publish before trim: a block that left the window stays cached under its key.
            self.publish(chunk.sequence)
            self.blocks.trim(chunk.sequence.tables, chunk.sequence.computed)

    def publish(self, sequence: Sequence) -> None:
        """Cache the full blocks of a sequence's tokens that are computed and known on the host."""
        if not sequence.request.cache:
            return
        # A pending token is on the device only: without its id its block has no key yet.
        groups, upto = len(self.blocks.groups), min(sequence.computed, len(sequence.tokens))
        # K/V after scaling_end depend on the prompt's length, which keys do not contain.
        if sequence.scaling_end is not None:
            upto = min(upto, sequence.scaling_end)
        chains = sequence.chains(self.blocks.block, upto)
        for index, keys in enumerate(chains):
            tables = sequence.tables[index * groups : (index + 1) * groups]
            self.blocks.publish(tables, keys, sequence.published)
        sequence.published = len(chains[0])


def accept(chunk: Chunk, blocks: BlockManager) -> bool:
    """Whether the token drawn after a chunk counts; the row of an accepted draft is then computed.

    A draft is accepted if it is the token that was drawn for its place.
    """
    if chunk.draft is None:
        return True
    sequence = chunk.sequence
    if len(sequence.tokens) != chunk.start + 1 or sequence.tokens[-1] != chunk.draft:
        return False
    sequence.computed = chunk.start + 1
    blocks.accept_draft(sequence.tables, chunk.start)
    return True
