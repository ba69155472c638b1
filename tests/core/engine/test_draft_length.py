"""The number of drafts: as many as pay, by their acceptance and by measured times."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest

from ostro.core.engine.draft_length import (
    FIRST_DRAFTS,
    LONGEST_PAUSE,
    MAX_DRAFTS,
    MAX_ROWS,
    DraftLength,
    StepCosts,
)


def costs_of(steps: Mapping[int, float], draft: float = 0.0) -> StepCosts:
    """Costs with the seconds of steps by their rows, after a slow first one."""
    costs = StepCosts()
    for rows, seconds in steps.items():
        for each in (100 * seconds, seconds):
            costs.add(rows, each)
    for each in (100 * draft, draft):
        costs.add_draft(each)
    return costs


FLAT = {1: 1.0, MAX_ROWS: 1.0}
STEEP = {1: 1.0, MAX_ROWS: float(MAX_ROWS)}
CPU = {1: 1.0, 2: 1.1, 4: 1.4, 9: 2.6, 18: 5.0, 32: 9.0}
"""Steps that cost nothing for further rows, as much as the first, and something between."""


@pytest.mark.parametrize(
    ("steps", "draft", "rate", "sequences", "best"),
    [
        (FLAT, 0.0, 0.1, 1, 8),
        (STEEP, 0.0, 0.9, 1, 0),
        # 1 + .7 + .49 + .343 tokens in 1.4 steps are the most a second.
        (CPU, 0.0, 0.7, 1, 3),
        (CPU, 0.2, 0.7, 1, 2),
        (CPU, 1.0, 0.7, 1, 0),
        (CPU, 0.0, 0.05, 1, 0),
        (CPU, 0.0, 1.0, 1, 8),
        # Eight sequences: a draft of each takes the time of eight more rows.
        (CPU, 0.0, 0.7, 8, 0),
        ({}, 5.0, 0.1, 8, 8),
    ],
)
def test_the_best_number_of_drafts(
    steps: Mapping[int, float], draft: float, rate: float, sequences: int, best: int
) -> None:
    assert costs_of(steps, draft).best(rate, sequences, MAX_DRAFTS) == best
    assert costs_of(steps, draft).best(rate, sequences, 1) == min(best, 1)


def test_times_of_sizes_between_and_beyond_those_that_are_known() -> None:
    costs = costs_of({4: 2.0, 8: 3.0})
    assert [costs.of(rows) for rows in (2, 4, 6, 8, 30, 99)] == [1, 2.0, 2.5, 3, 3, 3]
    assert StepCosts().of(3) == 0


def test_more_rows_are_never_faster() -> None:
    """One slow measurement of a size does not rule it out for good."""
    costs = costs_of({1: 1.0, 2: 50.0, 4: 1.4})
    assert costs.of(2) == costs.of(3) == costs.of(4) == 1.4


def test_a_lasting_change_is_followed() -> None:
    costs = costs_of({1: 1.0})
    for _ in range(60):
        costs.add(1, 2.0)
    assert costs.of(1) == 2.0
    costs.add(1, 0.5)
    assert costs.of(1) == 0.5


def test_drafts_that_pay_grow_and_shrink() -> None:
    length, costs = DraftLength(), costs_of(FLAT)
    assert length.choose(100, costs, 1) == FIRST_DRAFTS
    length.update(4, 4)
    assert length.choose(100, costs, 1) == 8
    length.update(8, 2)
    assert length.choose(100, costs, 1) == 4
    length.update(4, 0)
    assert length.choose(100, costs, 1) == 2
    assert length.choose(1, costs, 1) == 1 and length.choose(0, costs, 1) == 0


def test_drafts_that_do_not_pay_pause_longer_and_longer() -> None:
    length, costs = DraftLength(), costs_of(CPU)
    counts = list[int]()
    for _ in range(400):
        counts.append(length.choose(100, costs, 1))
        if counts[-1]:
            length.update(counts[-1], 0)
    tried = [place for place, count in enumerate(counts) if count]
    gaps = [after - before for before, after in pairwise(tried)]
    assert max(gaps) <= LONGEST_PAUSE + 2 and gaps[-1] > LONGEST_PAUSE / 2
    assert counts[tried[-1]] == 1 and sum(counts) < 40


def test_drafts_that_pay_again_are_no_longer_paused() -> None:
    length, costs = DraftLength(rate=0.0, longer=LONGEST_PAUSE), costs_of(CPU)
    counts = list[int]()
    for _ in range(1000):
        counts.append(length.choose(100, costs, 1))
        if counts[-1]:
            length.update(counts[-1], counts[-1])
    assert counts[0] == 0 and counts[-1] == MAX_DRAFTS and length.longer == 2
