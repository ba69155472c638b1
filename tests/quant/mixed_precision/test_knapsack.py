"""The knapsack: within its capacity, and as good as exchanges of two options can make it."""

from __future__ import annotations

import random

import pytest
import torch

from ostro.quant.mixed_precision.knapsack import Knapsack, Option


def options(*pairs: tuple[int, float]) -> list[Option]:
    return [Option((str(i),), nbytes, error) for i, (nbytes, error) in enumerate(pairs)]


@pytest.mark.parametrize(("capacity", "chosen"), [(19, 0), (20, 1), (39, 1), (40, 2)])
def test_an_exchange_may_use_up_the_capacity(capacity: int, chosen: int) -> None:
    knapsack = Knapsack([options((10, 5.0), (20, 2.0), (40, 1.0))])
    assert knapsack.improve(torch.tensor([0]), capacity).tolist() == [chosen]
    assert knapsack.solve(capacity) == [knapsack.options[0][chosen]]


@pytest.mark.parametrize("seed", range(20))
def test_no_single_change_is_better(seed: int) -> None:
    draw = random.Random(seed)
    units = [options(*((draw.randint(1, 50), draw.random()) for _ in range(4))) for _ in range(6)]
    knapsack = Knapsack(units)
    capacity = knapsack.min_nbytes + draw.randint(0, 80)
    solution = knapsack.solve(capacity)
    left = capacity - sum(option.nbytes for option in solution)
    assert left >= 0
    for unit, option in zip(units, solution, strict=True):
        fitting = [other for other in unit if other.nbytes - option.nbytes <= left]
        assert option.error == min(other.error for other in fitting)
