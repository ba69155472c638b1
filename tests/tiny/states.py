"""Layouts of recurrent states."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

from ostro.core.ops.state_layout import StateLayout


def state_layout(
    rows: Sequence[int],
    before: Sequence[int],
    after: Sequence[int | Sequence[int]],
    device: torch.device | str = "cpu",
) -> StateLayout:
    """The layout of sequences with so many rows; `after` is the block of the last state of each, or
    the blocks of its last rows.
    """
    saved = list[int]()
    for count, blocks in zip(rows, after, strict=True):
        last = [blocks] if isinstance(blocks, int) else list(blocks)
        saved += [-1] * (count - len(last)) + last[max(len(last) - count, 0) :]
    lists = ([0, *accumulate(rows)], before, saved)
    return StateLayout(*(torch.tensor(x, dtype=torch.int64, device=device) for x in lists))
