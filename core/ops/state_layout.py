"""The layout of rows and recurrent states of a batch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(slots=True)
class StateLayout:
    """The rows of each sequence, and the cache blocks of its state before and after them.

    starts  [B + 1] int64: the first row of each sequence
    before  [B] int64: the block of the state before its first row; negative for a new sequence
    after   [B] int64: the block for the state after its last row; negative if it has no rows
    rows    the number of rows of all sequences, at least starts[B]
    """

    starts: Tensor
    before: Tensor
    after: Tensor
    rows: int
