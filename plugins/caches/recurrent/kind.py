"""States of a sequence, each in the block that holds the newest token it has seen.

A step reads the state of the block before its first row and writes the one of the block of its last
row. A full block thus holds what the sequence was at the block's end: a snapshot, which the prefix
tree finds by the block's key like any page, and shares, because nobody writes it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from ostro.core.cache import CacheKind
from ostro.core.ops.attention import Ragged
from ostro.core.ops.places import Places

SNAPSHOTS = 5  # blocks per sequence beyond those it works on: prefixes to come back to


@dataclass(slots=True)
class States:
    """What a recurrent layer finds in its step: tensors [blocks, *shape] float32, one per shape of
    its spec, and where the states of each sequence lie.
    """

    tensors: tuple[Tensor, ...]
    batch: Ragged
    block: int

    @property
    def places(self) -> Places:
        host = self.batch.host
        if host is None:
            return self.find()
        if host.memo is None:
            host.memo = {}
        key = f"{__name__} {self.block}"
        if key not in host.memo:
            host.memo[key] = self.find()
        found: Places = host.memo[key]
        return found

    def find(self) -> Places:
        starts, lengths = self.batch.starts.long(), self.batch.lengths.long()
        first = lengths - starts.diff()
        table = self.batch.table

        def block_of(token: Tensor, there: Tensor) -> Tensor:
            index = (token // self.block).clamp(0, table.shape[1] - 1)
            blocks = table.gather(1, index[:, None])[:, 0].long()
            return torch.where(there, blocks, -1)

        before = block_of(first - 1, (first > 0) & (lengths > 0))
        return Places(starts, before, block_of(lengths - 1, (lengths > 0) & (lengths > first)))


class Recurrent(CacheKind):
    """One block per sequence, a new one where it passes the end of the last."""

    def bytes(self, blocks: int) -> int:
        return blocks * self.layers * sum(prod(shape) for shape in self.spec.state) * 4

    def allocate(self, blocks: int) -> None:
        self.states = [
            torch.zeros(self.layers, blocks, *shape, device=self.device)
            for shape in self.spec.state
        ]

    def view(self, layer: int, batch: Ragged) -> States:
        return States(tuple(state[layer] for state in self.states), batch, self.block)

    def fork(self, source: int, target: int) -> None:
        for state in self.states:
            state[:, target].copy_(state[:, source])

    @property
    def aligned(self) -> bool:
        return True

    def first(self, length: int) -> int:
        """The last block, and the one before: it may still have to be published."""
        return max(0, (length - 1) // self.block - 1)

    def keeps(self, index: int, length: int) -> bool:
        return index == (length - 1) // self.block

    def blocks_of(self, context: int, rows: int) -> int:
        return min(-(-context // self.block) + 1, 3 + SNAPSHOTS)

    def hit(self, known: Sequence[bool]) -> int:
        return next((end for end in range(len(known), 0, -1) if known[end - 1]), 0)
