"""The rows of a launched step by sequence, for proposers that read hidden states of the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from torch import Tensor

from ostro.core.engine.scheduler import Chunk
from ostro.core.engine.speculation import ComputedRows


def computed_rows(chunks: Sequence[Chunk], hidden: Tensor | None) -> Iterator[ComputedRows]:
    """The rows of each sequence in a launched step; none without its hidden states."""
    if hidden is None:
        return
    hidden = hidden.clone()  # a captured step writes to the same memory again
    starts = [i for i, chunk in enumerate(chunks) if chunk.draft is None]
    ends = [0, *accumulate(chunk.count for chunk in chunks)]
    for first, stop in zip(starts, [*starts[1:], len(chunks)], strict=True):
        chunk = chunks[first]
        rows = hidden[ends[first] : ends[stop]]
        yield ComputedRows(chunk.sequence, chunk.start, rows, is_prompt=chunk.count > 1)
