"""Times of tokens from an alignment: dynamic time warping."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

DIAGONAL, DOWN, RIGHT = 0, 1, 2
"""The steps to a cell of the path: to the next token and row, the next token, the next row."""


def first_rows(alignment: NDArray[np.float32]) -> list[int]:
    """The row of audio at which each token begins, from an alignment [tokens, rows].

    The path from the first cell to the last with the highest sum gives them: each of its steps goes
    to the next token, the next row, or both.
    """
    steps = cheapest_steps(-alignment.astype(np.float64))
    token, row = (n - 1 for n in alignment.shape)
    firsts = [0] * len(alignment)
    while token > 0:
        firsts[token] = row
        step = steps[token, row]
        token, row = token - int(step != RIGHT), row - int(step != DOWN)
    return firsts


def cheapest_steps(costs: NDArray[np.float64]) -> NDArray[Any]:
    """The last step of the cheapest path to each cell of costs [m, n].

    All cells of a diagonal depend on the two diagonals before only, and are computed at once.
    """
    m, n = costs.shape
    totals = np.full((m + 1, n + 1), np.inf, np.float32)
    totals[0, 0] = 0
    steps = np.zeros((m, n), np.int8)
    for diagonal in range(m + n - 1):
        i = np.arange(max(0, diagonal - n + 1), min(m, diagonal + 1))
        j = diagonal - i
        both, down, right = totals[i, j], totals[i, j + 1], totals[i + 1, j]
        step = np.where((both < down) & (both < right), DIAGONAL, RIGHT)
        step[(down < both) & (down < right)] = DOWN
        steps[i, j] = step
        totals[i + 1, j + 1] = costs[i, j] + np.choose(step, (both, down, right))
    return steps
