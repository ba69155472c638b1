"""Decode graphs: decode steps of fixed size over inputs at fixed addresses, captured as graphs.

If the layers of a model are split, its segments are captured; see `core/placement/segments.py`.
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
"""A value that no input has: as an index it is out of range, as a length it is negative."""


class DecodeBucket:
    """Decode steps of up to `size` rows over inputs at fixed addresses; idle rows have length 0."""

    def __init__(self, runner: ModelRunner, size: int, *, mixed: bool = False) -> None:
        """`mixed` if its rows may have adapters."""
        self.runner, self.size = runner, size
        device, axes = runner.device, runner.model.axes
        self.tokens = torch.zeros(size, dtype=torch.int64, device=device)
        self.positions = torch.zeros(axes, size, dtype=torch.int64, device=device)
        self.batches = [self.idle(group, runner.context) for group in runner.blocks.groups]
        self.batches += [self.idle(g, g.kind.spec.length) for g in runner.blocks.cross_groups]
        self.step = Step(self.tokens, self.positions, caches=runner.cache_views(self.batches))
        if mixed:
            self.step.mixture = torch.zeros(size, dtype=torch.int32, device=device)
        self.segment_inputs: Sequence[Tensor] = ()
        self.launch = self.record()

    def idle(self, group: CacheGroup, max_length: int) -> AttentionMetadata:
        """Metadata of a group for sequences of up to `max_length` tokens, all of them idle."""
        size, device = self.size, group.kind.device
        # The graph fixes the table's shape and the kernels' grid: both must allow the longest.
        width = -(-max_length // self.runner.blocks.block) + 1
        return AttentionMetadata(
            table=to_device([[0] * width] * size, torch.int32, device),
            starts=to_device(range(size + 1), torch.int32, device),
            lengths=to_device([0] * size, torch.int32, device),
            slots=torch.full((size,), -1, dtype=torch.int64, device=device),
            max_queries=1,
            max_length=max_length,
        )

    @torch.inference_mode()
    def record(self) -> Callable[[], Tensor]:
        """Capture the forward pass, or its segments, and return the function that replays it."""
        capture, segments = self.runner.graphs.capture, self.runner.segments
        if segments is None:
            return capture(self.forward, self.runner.device)
        recorded = segments.record(self.forward, capture)
        self.segment_inputs = recorded.inputs
        return recorded

    def forward(self) -> Tensor:
        model = self.runner.model
        return model.logits(model.hidden(self.step), self.step)

    def run(self, chunks: Sequence[Chunk]) -> Tensor:
        """Logits [n, V] of n decode rows; valid until the next step of any bucket."""
        self.load(chunks)
        out = self.launch()[: len(chunks)]
        # The logits are read after this, by the sampler: only inputs are poisoned.
        if self.runner.poisons:
            self.poison()
        return out

    def load(self, chunks: Sequence[Chunk]) -> None:
        """Write the inputs of a step in place; the remaining rows become idle.

        The writes are queued on the device behind the replay that still reads the old inputs.
        """
        n = len(chunks)
        known = [(c.known or [-1])[0] for c in chunks]
        # A token drawn by the step in flight is not on the host yet: -1 selects the device's copy.
        rows = self.runner.int64([c.sequence.row for c in chunks])
        host = self.runner.int64(known)
        self.tokens.zero_()
        self.tokens[:n] = torch.where(host >= 0, host, self.runner.sampler.last[rows])
        self.positions.zero_()
        axes = len(self.positions)
        positions = [c.sequence.positions(c.start, c.start + 1, axes) for c in chunks]
        flat = [each[axis][0] for axis in range(axes) for each in positions]
        self.positions[:, :n] = self.runner.int64(flat).view(axes, n)
        if self.step.mixture is not None:
            self.step.mixture.zero_()
            mixtures = self.runner.mixture_rows(chunks)
            self.step.mixture[:n] = to_device(mixtures, torch.int32, self.runner.device)
        batches = self.runner.attention_metadata(chunks)
        for batch, fixed in zip(batches, self.batches, strict=True):
            fixed.table.zero_()
            fixed.table[:n, : batch.table.shape[1]] = batch.table
            torch.arange(self.size + 1, out=fixed.starts)
            fixed.lengths.zero_()
            fixed.lengths[:n] = batch.lengths
            fixed.slots.fill_(-1)  # idle rows write nothing to the cache
            fixed.slots[: len(batch.slots)] = batch.slots
            if batch.host is not None:
                idle = self.size - n
                # If the call was not captured, CPU kernels read these lists and not the tensors.
                fixed.host = HostMetadata(
                    list(range(self.size + 1)),
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
