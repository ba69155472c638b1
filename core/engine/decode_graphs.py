"""Buckets: decode steps of fixed size over inputs that stay in place, captured as graphs.

Of a model whose layers are split, its segments are captured; see `core/placement/segments.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ostro.core.device import to_device
from ostro.core.engine.blocks import CacheGroup
from ostro.core.engine.scheduler import Chunk
from ostro.core.ops.attention import AttentionMetadata, HostMetadata
from ostro.core.step import Step

if TYPE_CHECKING:
    from ostro.core.engine.runner import ModelRunner

POISON = -7_777_777


class DecodeBucket:
    """Decode steps of up to `size` rows over inputs in fixed places; idle rows have length 0."""

    def __init__(self, runner: ModelRunner, size: int, *, mixed: bool = False) -> None:
        """`mixed`: its rows may have adapters."""
        self.runner, self.size = runner, size
        device, axes = runner.device, runner.model.axes
        self.tokens = torch.zeros(size, dtype=torch.int64, device=device)
        self.positions = torch.zeros(axes, size, dtype=torch.int64, device=device)
        self.batches = [self.idle(group, runner.context) for group in runner.blocks.groups]
        self.batches += [self.idle(g, g.kind.spec.length) for g in runner.blocks.cross_groups]
        self.step = Step(self.tokens, self.positions, caches=runner.views(self.batches))
        if mixed:
            self.step.mixture = torch.zeros(size, dtype=torch.int32, device=device)
        self.between: Sequence[Tensor] = ()
        self.launch = self.record()

    def idle(self, group: CacheGroup, longest: int) -> AttentionMetadata:
        """The batch of a group, sequences of up to `longest` tokens, all of them idle."""
        size, device = self.size, group.kind.device
        width = -(-longest // self.runner.blocks.block) + 1
        return AttentionMetadata(
            table=to_device([[0] * width] * size, torch.int32, device),
            starts=to_device(range(size + 1), torch.int32, device),
            lengths=to_device([0] * size, torch.int32, device),
            slots=torch.full((size,), -1, dtype=torch.int64, device=device),
            max_queries=1,
            max_length=longest,
        )

    @torch.inference_mode()
    def record(self) -> Callable[[], Tensor]:
        """The forward pass captured, as far as it can be; `between` are inputs of its segments."""
        capture, segments = self.runner.graphs.capture, self.runner.segments
        if segments is None:
            return capture(self.forward, self.runner.device)
        recorded = segments.record(self.forward, capture)
        self.between = recorded.inputs
        return recorded

    def forward(self) -> Tensor:
        model = self.runner.model
        return model.logits(model.hidden(self.step), self.step)

    def run(self, chunks: Sequence[Chunk]) -> Tensor:
        """Logits [n, V] of n decode rows."""
        self.load(chunks)
        out = self.launch()[: len(chunks)]
        if self.runner.poisons:
            self.poison()
        return out

    def load(self, chunks: Sequence[Chunk]) -> None:
        """Write a step's inputs in place; everything that is not a row of it becomes idle."""
        n = len(chunks)
        known = [
            c.sequence.tokens[c.start] if c.start < len(c.sequence.tokens) else -1 for c in chunks
        ]
        rows = self.runner.int64([c.sequence.row for c in chunks])
        host = self.runner.int64(known)
        self.tokens.zero_()
        self.tokens[:n] = torch.where(host >= 0, host, self.runner.sampler.last[rows])
        self.positions.zero_()
        axes = len(self.positions)
        places = [c.sequence.positions(c.start, c.start + 1, axes) for c in chunks]
        flat = [place[axis][0] for axis in range(axes) for place in places]
        self.positions[:, :n] = self.runner.int64(flat).view(axes, n)
        if self.step.mixture is not None:
            self.step.mixture.zero_()
            self.step.mixture[:n] = self.runner.int32(self.runner.mixtures(chunks))
        for batch, mine in zip(self.runner.batches(chunks), self.batches, strict=True):
            mine.table.zero_()
            mine.table[:n, : batch.table.shape[1]] = batch.table
            torch.arange(self.size + 1, out=mine.starts)
            mine.lengths.zero_()
            mine.lengths[:n] = batch.lengths
            mine.slots.fill_(-1)
            mine.slots[: len(batch.slots)] = batch.slots
            if batch.host is not None:
                idle = self.size - n
                mine.host = HostMetadata(
                    list(range(self.size + 1)),
                    batch.host.lengths + [0] * idle,
                    batch.host.blocks + [[] for _ in range(idle)],
                    memo={},
                )

    def poison(self) -> None:
        """Spoil every input, so that a step that reads a stale one cannot pass for right."""
        self.tokens.fill_(POISON)
        self.positions.fill_(POISON)
        if self.step.mixture is not None:
            self.step.mixture.fill_(POISON)
        for tensor in self.between:
            tensor.fill_(POISON)
        for batch in self.batches:
            for tensor in (batch.table, batch.starts, batch.lengths, batch.slots):
                tensor.fill_(POISON)
            batch.host = None
