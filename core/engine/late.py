"""Sequences whose masks take longer than a step waits: they draw in a later step."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor

from ostro.core.engine.scheduler import Chunk
from ostro.core.engine.sequence import Sequence as TokenSequence


class LateDraws:
    """The chunks that draw in a later step, and their logits [1, V], by sequence.

    Such a sequence is not planned until it has drawn: all of its tokens are computed.
    """

    def __init__(self) -> None:
        self.rows: dict[TokenSequence, tuple[Chunk, Tensor]] = {}

    def __bool__(self) -> bool:
        return bool(self.rows)

    def __iter__(self) -> Iterator[TokenSequence]:
        return iter(self.rows)

    def drop(self, sequence: TokenSequence) -> None:
        """Drop the row of a sequence that is computed again, if it has one."""
        self.rows.pop(sequence, None)

    def take(
        self, drawing: Sequence[Chunk], logits: Tensor | None
    ) -> tuple[list[Chunk], Tensor | None]:
        """The chunks and logits [W, V] of a step, with the rows of earlier steps behind them."""
        # A preempted sequence is computed again.
        late = [(c, row) for c, row in self.rows.values() if c.sequence.row >= 0]
        self.rows = {}
        if late:
            rows = [row for _, row in late]
            logits = torch.cat(rows if logits is None else [logits, *rows])
        return [*drawing, *(chunk for chunk, _ in late)], logits

    def keep(
        self, drawing: Sequence[Chunk], logits: Tensor, late: Collection[TokenSequence]
    ) -> None:
        """Keep the rows of late sequences for a later step; their drafts are not accepted."""
        for i, chunk in enumerate(drawing):
            if chunk.sequence in late and chunk.draft is None:
                # A copy: a captured step writes its logits to the same memory again.
                self.rows[chunk.sequence] = chunk, logits[i : i + 1].clone()
