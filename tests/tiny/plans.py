"""Plans of the scheduler as plain values."""

from __future__ import annotations

from ostro.core.engine.scheduler import StepPlan
from ostro.core.engine.sequence import Sequence


def shape(plan: StepPlan) -> list[tuple[str, int, int]]:
    """(request, start, count) of each chunk."""
    return [(c.sequence.request.id, c.start, c.count) for c in plan.chunks]


def ids(sequences: list[Sequence]) -> list[str]:
    return [sequence.request.id for sequence in sequences]
