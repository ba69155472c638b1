"""The rows of a launched step by sequence, for proposers that read hidden states of the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from torch import Tensor

from ostro.core.engine.runner import LaunchedStep
from ostro.core.engine.sequence import Sequence


@dataclass
class ComputedRows:
    """The hidden states [n, d] of the rows of a sequence from place `start` on, drafts included.

    is_prompt: they are those of a prompt.
    """

    sequence: Sequence
    start: int
    hidden: Tensor
    is_prompt: bool


def computed_rows(launched: LaunchedStep) -> Iterator[ComputedRows]:
    """The rows of each sequence in a launched step, whose hidden states are taken from it."""
    hidden, launched.hidden = launched.hidden, None
    if hidden is None:
        return
    hidden = hidden.clone()  # a captured step writes to the same memory again
    chunks = launched.plan.chunks
    starts = [i for i, chunk in enumerate(chunks) if chunk.draft is None]
    ends = [0, *accumulate(chunk.count for chunk in chunks)]
    for first, stop in zip(starts, [*starts[1:], len(chunks)], strict=True):
        chunk = chunks[first]
        rows = hidden[ends[first] : ends[stop]]
        yield ComputedRows(chunk.sequence, chunk.start, rows, is_prompt=chunk.count > 1)
