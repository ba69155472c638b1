"""What operations with a state are told about a batch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(slots=True)
class StateLayout:
    """Whose rows are whose, and where each sequence's state lies.

    starts [B + 1] int64: the first row of each sequence; before [B] int64: the block of the state
    that its rows go on from, negative where they begin; after [B] int64: the block that takes the
    state after its last row, negative where it has no rows.
    """

    starts: Tensor
    before: Tensor
    after: Tensor
