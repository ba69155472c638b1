"""The layout of rows and recurrent states of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

SAVED_ROWS = 16
"""The most rows of a sequence of which more than the last may save their states."""


@dataclass(slots=True)
class StateLayout:
    """The rows of each sequence, and the cache blocks of its state before and after them.

    starts  [B + 1] int64: the first row of each sequence
    before  [B] int64: the block of the state before its first row; negative for a new sequence
    saved   [T] int64: the block for the state after each row, T = starts[B]; negative where it is
            not saved. The last row of a sequence saves its state, or the whole sequence is idle.

    Other rows than the last save their states only in sequences of at most `SAVED_ROWS` rows. The
    first row that saves its state may save it to the block of `before`, later ones may not.
    """

    starts: Tensor
    before: Tensor
    saved: Tensor


def active_sequences(layout: StateLayout) -> Iterator[tuple[int, range]]:
    """The block before each sequence that is not idle, and its rows: for loops of naive kernels."""
    starts, saved = layout.starts.tolist(), layout.saved.tolist()
    for before, start, stop in zip(layout.before.tolist(), starts[:-1], starts[1:], strict=True):
        if start < stop and saved[stop - 1] >= 0:
            yield before, range(start, stop)
