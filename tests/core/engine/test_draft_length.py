"""The number of drafts: as many as pay, by their acceptance and by measured times."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ostro.core.engine.draft_length import FIRST_RATE, MAX_DRAFTS, MAX_ROWS, Acceptance, StepCosts


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
BUCKETS = {8: 1.0, 9: 1.4, 16: 1.4}
"""Steps of 9 rows that take as long as those of 16."""


@pytest.mark.parametrize(
    ("steps", "draft", "rate", "best"),
    [
        (FLAT, 0.0, 0.5, 8),
        (STEEP, 0.0, 0.9, 0),
        # 1 + .7 + .49 + .343 tokens in 1.4 steps are the most a second.
        (CPU, 0.0, 0.7, 3),
        (CPU, 0.2, 0.7, 2),
        (CPU, 1.0, 0.7, 0),
        # 1.14 tokens in 1.1 steps: less than what estimates are off by.
        (CPU, 0.0, 0.14, 0),
        (CPU, 0.0, 1.0, 8),
        ({}, 5.0, 0.9, 0),
        ({}, 0.0, 0.9, 8),
    ],
)
def test_the_drafts_of_one_sequence(
    steps: Mapping[int, float], draft: float, rate: float, best: int
) -> None:
    costs = costs_of(steps, draft)
    assert costs.choose([rate], [MAX_DRAFTS], rows=1, budget=31) == [best]
    assert costs.choose([rate], [1], rows=1, budget=31) == [min(best, 1)]
    assert costs.choose([rate], [MAX_DRAFTS], rows=1, budget=0) == [0]


def test_sequences_share_the_rows_of_a_step() -> None:
    """One draft for one of eight sequences does not pay, one for each does."""
    costs = costs_of(BUCKETS)
    assert costs.choose([0.9] * 8, [1, *[0] * 7], rows=8, budget=24) == [0] * 8
    assert costs.choose([0.9], [8], rows=8, budget=24) == [8]
    assert costs.choose([0.9] * 8, [1] * 8, rows=8, budget=24) == [1] * 8
    assert costs.choose([0.4] * 8, [1] * 8, rows=8, budget=24) == [0] * 8


def test_the_most_likely_drafts_come_first() -> None:
    costs = costs_of({1: 1.0, 4: 1.0, 5: 9.0})
    assert costs.choose([0.9, 0.5], [8, 8], rows=2, budget=30) == [2, 0]
    assert costs.choose([0.6, 0.5], [8, 8], rows=2, budget=30) == [1, 1]
    assert costs.choose([0.6, 0.5], [8, 8], rows=2, budget=1) == [1, 0]


def test_proposals_that_are_made_cost_no_more() -> None:
    costs = costs_of(CPU, 1.0)
    assert costs.choose([0.7], [8], rows=1, budget=31) == [0]
    assert costs.choose([0.7], [8], rows=1, budget=31, proposed=True) == [3]
    assert not costs.are_proposals_free(1)
    assert costs_of(CPU, 0.001).are_proposals_free(1)
    assert not costs_of({}, 0.001).are_proposals_free(1)
    assert StepCosts().are_proposals_free(1), "the first ones show what they cost"


def test_times_of_sizes_between_and_beyond_those_that_are_known() -> None:
    costs = costs_of({4: 2.0, 8: 3.0})
    assert [costs.of(rows) for rows in (2, 4, 6, 8, 30, 99)] == [1, 2.0, 2.5, 3, 3, 3]
    assert StepCosts().of(3) == 0


def test_more_rows_are_never_faster() -> None:
    """One slow measurement of a size does not rule it out for good."""
    costs = costs_of({1: 1.0, 2: 50.0, 4: 1.4})
    assert costs.of(2) == costs.of(3) == costs.of(4) == 1.4


def test_the_first_step_of_a_size_does_not_count() -> None:
    """It may compile or capture: the size would never be tried again."""
    costs = costs_of({1: 1.0})
    costs.add(9, 50.0)
    assert costs.of(9) == 1.0


def test_a_lasting_change_is_followed() -> None:
    costs = costs_of({1: 1.0})
    for _ in range(60):
        costs.add(1, 2.0)
    assert costs.of(1) == 2.0
    costs.add(1, 0.5)
    assert costs.of(1) == 0.5


def test_the_share_of_right_drafts() -> None:
    acceptance = Acceptance()
    acceptance.update(4, 4)
    assert acceptance.rate == pytest.approx(1 - (1 - FIRST_RATE) * 0.9**4)
    before = acceptance.rate
    acceptance.update(8, 0)  # one is judged wrong, the rest are not judged
    assert acceptance.rate == pytest.approx(0.9 * before)
    for _ in range(40):
        acceptance.update(3, 1)
    assert 0.4 < acceptance.rate < 0.6


def test_drafts_that_do_not_pay_become_rare() -> None:
    costs, acceptance = costs_of({1: 1.0, 2: 1.5, 32: 16.0}), Acceptance()
    counts = list[int]()
    for _ in range(1000):
        [count] = costs.choose([acceptance.rate], [MAX_DRAFTS], rows=1, budget=31)
        counts.append(count)
        if count:
            acceptance.update(count, 0)
        else:
            acceptance.decay()
    assert 2 < sum(counts[500:]) < 50


def test_drafts_that_pay_again_are_found() -> None:
    costs, acceptance = costs_of(CPU), Acceptance(rate=0.0)
    counts = list[int]()
    for _ in range(200):
        [count] = costs.choose([acceptance.rate], [MAX_DRAFTS], rows=1, budget=31)
        counts.append(count)
        if count:
            acceptance.update(count, count)
        else:
            acceptance.decay()
    assert counts[0] == 0 and counts[-1] == MAX_DRAFTS
