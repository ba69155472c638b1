"""The recurrent cache: states of a sequence, each in the block of its newest token.

A step reads the state in the block of the token before its first row, and writes the state in the
block of its last row. A full block thus holds a snapshot at the block's end. The prefix tree finds
snapshots by block key and shares them; no step writes a full block again. Each proposed token of
speculative decoding has a block of its own, so that the state after any of them can be kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from ostro import CacheKind
from ostro.ops import AttentionMetadata, StateLayout


@dataclass(slots=True)
class States:
    """The view of one recurrent layer, see `RecurrentView`.

    `first` is the view of the group's first layer, which computes the layout for all layers.
    """

    states: tuple[Tensor, ...]
    batch: AttentionMetadata
    block: int
    first: States | None = None
    found: StateLayout | None = None

    @property
    def layout(self) -> StateLayout:
        """The layout of the batch; the first layer computes it once per step or captured graph."""
        if self.first is not None and self.first.found is not None:
            return self.first.found
        self.found = self.compute_layout()
        return self.found

    def compute_layout(self) -> StateLayout:
        starts, lengths = self.batch.starts.long(), self.batch.lengths.long()
        table = self.batch.table
        last = lengths - starts.diff() - 1  # the last token before the first row
        index = (last // self.block).clamp(0, table.shape[1] - 1)
        before = table.gather(1, index[:, None])[:, 0].long()
        blocks = self.batch.slots // self.block
        # The last row in a block: the rows before it would write the same block.
        is_last = torch.cat((blocks[1:] != blocks[:-1], blocks.new_ones(1, dtype=torch.bool)))
        return StateLayout(
            starts, torch.where(last >= 0, before, -1), torch.where(is_last, blocks, -1)
        )


class Recurrent(CacheKind):
    """The newest block of each sequence, and full blocks as snapshots."""

    spare = 5

    def bytes(self, blocks: int) -> int:
        return blocks * self.layers * sum(prod(shape) for shape in self.spec.state) * 4

    def allocate(self, blocks: int) -> None:
        self.leader: States | None = None
        self.states = [
            self.zeros(self.layers, blocks, *shape, dtype=torch.float32)
            for shape in self.spec.state
        ]

    def view(self, layer: int, batch: AttentionMetadata) -> States:
        states = States(tuple(state[layer] for state in self.states), batch, self.block)
        if layer == 0:
            self.leader = states
        elif self.leader is not None and self.leader.batch is batch:
            states.first = self.leader
        return states

    @property
    def aligned(self) -> bool:
        return True

    def first(self, length: int) -> int:
        """The block before the last: the prefix tree may not have published it yet."""
        return max(0, (length - 1) // self.block - 1)

    def needs_block(self, index: int, length: int) -> bool:
        return index == (length - 1) // self.block

    def blocks_of(self, context: int, rows: int) -> int:
        return min(-(-context // self.block) + 1, 3)

    def hit(self, known: Sequence[bool]) -> int:
        return next((end for end in range(len(known), 0, -1) if known[end - 1]), 0)
