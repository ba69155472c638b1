"""Positions and window order of the patches of images and videos.

A grid (t, h, w) is the number of a medium's patches in time, rows and columns. Patches are ordered
frame by frame, and in a frame in cells of merge x merge patches, which become one row of the
language model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Grid = tuple[int, int, int]
Ints = NDArray[np.int64]

SIDE = 4096
"""The longest side of a frame in patches; the limits of preprocessors are far below."""


def places(grids: Sequence[Grid], merge: int) -> Ints:
    """Row and column of every patch in its frame: [2, n]."""
    found = []
    for t, h, w in grids:
        frame = np.indices((h, w)).reshape(2, h // merge, merge, w // merge, merge)
        found.append(np.tile(frame.swapaxes(2, 3).reshape(2, -1), t))
    return np.concatenate(found, 1)


def frames(grids: Sequence[Grid]) -> list[int]:
    """The start of each frame among the patches, followed by their number."""
    sizes = [h * w for t, h, w in grids for _ in range(t)]
    return [0, *np.cumsum(sizes).tolist()]


def windows(grids: Sequence[Grid], merge: int, side: int) -> tuple[Ints, list[int]]:
    """The order of cells that groups windows of side x side cells, and the start of each window
    among the patches in that order, followed by their number.
    """
    labels, first = [], 0
    for t, h, w in grids:
        rows, columns = h // merge, w // merge
        time, row, column = np.indices((t, rows, columns)).reshape(3, -1)
        down, across = -(-rows // side), -(-columns // side)
        labels.append(first + (time * down + row // side) * across + column // side)
        first += t * down * across
    window = np.concatenate(labels)
    sizes = np.bincount(window) * merge**2
    return np.argsort(window, kind="stable"), [0, *np.cumsum(sizes).tolist()]
