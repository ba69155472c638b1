"""Buckets: steps of fixed size over inputs at fixed addresses, captured as graphs.

A `DecodeBucket` runs steps in which every sequence has one row, a `PromptBucket` steps with rows of
prompts. A step runs in the smallest bucket that holds its rows; the remaining rows are idle. If the
layers of a model are split, the segments of decode steps are captured, see
`core/placement/segments.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
from torch import Tensor

from ostro.core.device import to_device
from ostro.core.engine.blocks import CacheGroup
from ostro.core.engine.model_outputs import hidden_of, logits_of
from ostro.core.ops.attention import AttentionMetadata, HostMetadata
from ostro.core.step import Step

if TYPE_CHECKING:
    from ostro.core.engine.runner import ModelRunner

DECODE_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Rows of captured decode steps: powers of two, so that a step computes at most twice its rows."""

PROMPT_ROWS = (16, 32, 64, 128, 256, 384, 512)
"""Rows of captured steps with prompts. Larger ones take the device longer than the host."""

Tensors = tuple[Tensor, ...]

POISON = -7_777_777
"""A value that no input has: as an index it is out of range, as a length it is negative."""


class Bucket(ABC):
    """Steps of up to `size` rows; the rows and the sequences that a step does not fill are idle.

    An idle sequence has length 0: its rows attend to nothing and write nothing to the cache.
    """

    def __init__(
        self, runner: ModelRunner, size: int, sequences: int, queries: int, *, mixed: bool = False
    ) -> None:
        """For up to `sequences` sequences of up to `queries` rows each; `mixed` if its rows may
        have adapters.
        """
        self.runner, self.size, self.queries = runner, size, queries
        device, axes = runner.device, runner.model.axes
        # The first idle sequences have all the rows that they may have, the last ones have none.
        self.idle_starts = [min(i * queries, size) for i in range(sequences + 1)]
        self.tokens = torch.zeros(size, dtype=torch.int64, device=device)
        self.positions = torch.zeros(axes, size, dtype=torch.int64, device=device)
        self.batches = [self.idle(group, runner.context) for group in runner.blocks.groups]
        self.batches += [self.idle(g, g.kind.spec.length) for g in runner.blocks.cross_groups]
        self.starts = [batch.starts.clone() for batch in self.batches]
        self.step = Step(self.tokens, self.positions, caches=runner.cache_views(self.batches))
        if mixed:
            self.step.mixture = torch.zeros(size, dtype=torch.int32, device=device)
        self.segment_inputs: Sequence[Tensor] = ()
        self.launch = self.record()

    def idle(self, group: CacheGroup, max_length: int) -> AttentionMetadata:
        """Metadata of a group for sequences of up to `max_length` tokens, all of them idle."""
        sequences, device = len(self.idle_starts) - 1, group.kind.device
        # The graph fixes the table's shape and the kernels' grid: both must allow the longest.
        width = -(-max_length // self.runner.blocks.block) + 1
        return AttentionMetadata(
            table=torch.zeros(sequences, width, dtype=torch.int32, device=device),
            starts=to_device(self.idle_starts, torch.int32, device),
            lengths=torch.zeros(sequences, dtype=torch.int32, device=device),
            slots=torch.full((self.size,), -1, dtype=torch.int64, device=device),
            max_queries=self.queries,
            max_length=max_length,
        )

    @torch.inference_mode()
    def record(self) -> Callable[[], Tensors]:
        """Capture the forward pass, or its segments, and return the function that replays it."""
        capture, segments = self.runner.graphs.capture, self.runner.segments
        if segments is None:
            return capture(self.forward, self.runner.device)
        recorded = segments.record(self.forward, capture)
        self.segment_inputs = recorded.inputs
        return recorded

    @abstractmethod
    def forward(self) -> Tensors:
        """The part of the forward pass that is captured: its results [size, n], the hidden states
        first.
        """

    def run(self, step: Step, batches: Sequence[AttentionMetadata]) -> Tensors:
        """The results [T, n] of the T rows of a step with these metadata, of which tokens,
        positions and mixture are read. They are valid until the next step of any bucket.
        """
        self.load(step, batches)
        out = tuple(results[: len(step.tokens)] for results in self.launch())
        # The results are read after this: only inputs are poisoned.
        if self.runner.poisons:
            self.poison()
        return out

    def load(self, step: Step, batches: Sequence[AttentionMetadata]) -> None:
        """Write the inputs of a step in place; the remaining rows and sequences become idle.

        The writes are queued on the device behind the replay that still reads the old inputs.
        """
        rows = len(step.tokens)
        self.tokens.zero_()
        self.tokens[:rows] = step.tokens
        self.positions.zero_()
        self.positions[:, :rows] = step.positions
        if self.step.mixture is not None:
            self.step.mixture.zero_()
            if step.mixture is not None:
                self.step.mixture[:rows] = step.mixture
        for batch, fixed, starts in zip(batches, self.batches, self.starts, strict=True):
            n = len(batch.lengths)
            # In a group of states, drafts are rows of their sequence. Fewer sequences than rows
            # then fill the step, and the idle ones begin after its rows.
            idle_start = rows if batch.max_queries > self.queries else 0
            fixed.table.zero_()
            fixed.table[:n, : batch.table.shape[1]] = batch.table
            fixed.starts.copy_(starts)
            if idle_start:
                fixed.starts.clamp_(min=idle_start)
            fixed.starts[: n + 1] = batch.starts
            fixed.lengths.zero_()
            fixed.lengths[:n] = batch.lengths
            fixed.slots.fill_(-1)  # idle rows write nothing to the cache
            fixed.slots[:rows] = batch.slots
            if batch.host is not None:
                idle = len(fixed.lengths) - n
                # If the call was not captured, CPU kernels read these lists and not the tensors.
                fixed.host = HostMetadata(
                    batch.host.starts + [max(i, idle_start) for i in self.idle_starts[n + 1 :]],
                    batch.host.lengths + [0] * idle,
                    batch.host.blocks + [[] for _ in range(idle)],
                    memo={},
                )

    def poison(self) -> None:
        """Overwrite all inputs, so that a step that reads a stale input fails."""
        self.tokens.fill_(POISON)
        self.positions.fill_(POISON)
        if self.step.mixture is not None:
            self.step.mixture.fill_(POISON)
        for tensor in self.segment_inputs:
            tensor.fill_(POISON)
        for batch in self.batches:
            for tensor in (batch.table, batch.starts, batch.lengths, batch.slots):
                tensor.fill_(POISON)
            batch.host = None


class DecodeBucket(Bucket):
    """Steps of one row of each sequence, which draws; captures the logits as well."""

    def __init__(self, runner: ModelRunner, size: int, *, mixed: bool = False) -> None:
        super().__init__(runner, size, size, 1, mixed=mixed)

    def forward(self) -> Tensors:
        model, vocab = self.runner.model, self.runner.sampler.vocab
        hidden = hidden_of(model, self.step)
        return hidden, logits_of(model, hidden, self.step, vocab)


class PromptBucket(Bucket):
    """Steps of any rows of text; captures the hidden states, since few rows need logits."""

    def __init__(self, runner: ModelRunner, size: int, *, mixed: bool = False) -> None:
        # One more sequence than may run: the idle rows belong to it.
        super().__init__(runner, size, runner.max_sequences + 1, size, mixed=mixed)

    def forward(self) -> Tensors:
        return (hidden_of(self.runner.model, self.step),)


B = TypeVar("B", bound=Bucket)


class Buckets(Generic[B]):
    """The buckets of one kind by size: `plain` ones, and `mixed` ones for rows with adapters.

    `refused`: why the last size that was tried was not captured; empty if it was.
    """

    def __init__(self, kind: Callable[..., B], sizes: Sequence[int]) -> None:
        """`kind` is the class of the buckets: (runner, size, *, mixed) -> bucket."""
        self.kind, self.sizes, self.refused = kind, sizes, ""
        self.plain: dict[int, B] = {}
        self.mixed: dict[int, B] = {}
        # Sizes that are captured at their first step, without and with adapters.
        self.uncaptured, self.mixed_uncaptured = set[int](), set[int]()
        self.captured_changes = -1  # `AdapterPool.changes` of `mixed`

    def capture(self, runner: ModelRunner, *, lazily: bool = False) -> None:
        """Capture the plain buckets; with `lazily` each one at its first step.

        Mixed ones always are: many servers never need them.
        """
        self.uncaptured = set(self.sizes) if lazily else set()
        self.plain = {} if lazily else self.capture_sizes(runner, self.sizes)
        self.captured_changes = -1

    def capture_sizes(
        self, runner: ModelRunner, sizes: Sequence[int], *, mixed: bool = False
    ) -> dict[int, B]:
        """Capture buckets of these sizes; one that cannot be captured is absent and runs eagerly.

        The largest comes first, so that the smaller ones fit into its memory.
        """
        buckets: dict[int, B] = {}
        for size in reversed(sizes):
            bucket = self.kind(runner, size, mixed=mixed)
            self.refused = runner.graphs.refused
            if runner.poisons or not self.refused:
                buckets[size] = bucket
        # A first capture may show that no segment of the model can be captured.
        return buckets if runner.can_capture else {}

    def close(self) -> None:
        """Drop the buckets: they refer to their runner, and would keep its memory."""
        self.plain, self.mixed = {}, {}

    def of(self, runner: ModelRunner, mixed: bool) -> tuple[dict[int, B], set[int]]:
        """The buckets with adapters if `mixed`, else those without, and the sizes to capture.

        All those with adapters are dropped if an adapter added a table, a gain or a whole weight to
        a module since.
        """
        pool = runner.adapter_pool
        if not mixed or pool is None:
            return self.plain, self.uncaptured
        if self.captured_changes != pool.changes:
            self.mixed, self.mixed_uncaptured = {}, set(self.sizes)
            self.captured_changes = pool.changes
        return self.mixed, self.mixed_uncaptured

    def find(self, runner: ModelRunner, rows: int, *, mixed: bool) -> B | None:
        """The smallest bucket for `rows` rows; None without one. May capture it."""
        buckets, uncaptured = self.of(runner, mixed)
        size = next((size for size in self.sizes if size >= rows), 0)
        if size in uncaptured:
            uncaptured.remove(size)
            buckets |= self.capture_sizes(runner, [size], mixed=mixed)
        return buckets[min(fits)] if (fits := [n for n in buckets if n >= rows]) else None


def sizes_up_to(rows: int, sizes: Sequence[int]) -> list[int]:
    """The first of the ascending `sizes` up to the one that holds `rows`; none for 0 rows."""
    return [n for i, n in enumerate(sizes) if rows and (not i or sizes[i - 1] < rows)]
