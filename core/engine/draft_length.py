"""How many tokens to propose for a sequence: as many as give the most tokens per second.

If each draft is right with probability p, a step with k drafts yields (1 - p^(k+1)) / (1 - p)
tokens on average (Leviathan et al. 2023), and it takes the time of a step of more rows, and of
proposing. Both times are measured while the engine runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MAX_ROWS = 32
"""Decode rows of a step up to which sequences get drafts: larger steps are bound by computation, so
that each further row costs time.
"""
MAX_DRAFTS = 8
"""The most drafts of one sequence in a step."""
FIRST_DRAFTS = 4
"""Drafts in the first step that has a proposal."""
FIRST_RATE = 0.7
"""The share of right drafts that is assumed before the first are judged."""
RATE_WEIGHT = 0.15
"""The weight of one draft in the share of right drafts."""
LONGEST_PAUSE = 64
"""The most tokens without drafts while they do not pay."""
GROWTH = 1.02
"""The most by which a longer step raises the stored time of its size: most delays are those of
other work on the machine.
"""


class Shortest:
    """A duration in seconds, near the shortest of the last ones."""

    def __init__(self) -> None:
        self.seconds: float | None = None
        self.begun = False

    def add(self, seconds: float) -> None:
        """Take note of a duration; not of the first, which may compile or capture."""
        if self.begun:
            known = self.seconds
            self.seconds = seconds if known is None else min(seconds, GROWTH * known)
        self.begun = True


class StepCosts:
    """The seconds of decode steps by their rows, and of the proposal of one token."""

    def __init__(self) -> None:
        self.steps = [Shortest() for _ in range(MAX_ROWS + 1)]
        self.curve = [0.0] * (MAX_ROWS + 1)
        self.draft = Shortest()

    def add(self, rows: int, seconds: float) -> None:
        """Take note of a step of decode rows only."""
        if rows <= MAX_ROWS:
            self.steps[rows].add(seconds)
            self.curve = self.estimate()

    def add_draft(self, seconds: float) -> None:
        """Take note of the proposal of one token for each of some sequences."""
        self.draft.add(seconds)

    def estimate(self) -> list[float]:
        """The seconds of steps of 0, 1, ... rows; zeros while none is known.

        An unknown size is between its neighbours. One below all known ones takes a share of the
        smallest, one above them as long as the largest: either way it is tried, and then known.
        """
        known = [(n, step.seconds) for n, step in enumerate(self.steps) if step.seconds]
        if not known:
            return [0.0] * (MAX_ROWS + 1)
        rows, seconds = zip(*known, strict=True)
        # More rows are never faster: a size that was measured at a bad moment is not.
        lower = np.minimum.accumulate(seconds[::-1])[::-1]
        return list(np.interp(range(MAX_ROWS + 1), (0, *rows), (0.0, *lower)).tolist())

    def of(self, rows: int) -> float:
        """The seconds of a step; 0 while none is known."""
        return self.curve[min(rows, MAX_ROWS)]

    def best(self, rate: float, sequences: int, limit: int) -> int:
        """The number of drafts, up to `limit`, with the most tokens per second; 0 if none pays.

        rate: the share of right drafts. sequences: those of the step, all with as many drafts.
        """
        plain = self.of(sequences)
        if not plain:
            return limit
        draft = self.draft.seconds or 0.0
        best, fastest, tokens = 0, 1 / plain, 1.0
        for count in range(1, limit + 1):
            tokens += rate**count
            speed = tokens / (self.of(sequences * (1 + count)) + count * draft)
            if speed > fastest:
                best, fastest = count, speed
        return best


@dataclass
class DraftLength:
    """How many drafts a sequence gets, by the acceptance of its last ones and by their cost.

    count: the most in a step. rate: the share of right ones among the last. pause: tokens until the
    next drafts, since they do not pay; `longer`: those of the next pause. trying: after a pause,
    one draft is tried whatever it costs.
    """

    count: int = FIRST_DRAFTS
    rate: float = FIRST_RATE
    pause: int = 0
    longer: int = 2
    trying: bool = False

    def choose(self, limit: int, costs: StepCosts, sequences: int) -> int:
        """The number of drafts in the next step, at most `limit`. sequences: see `best`."""
        if self.pause:
            self.pause -= 1
            return 0
        limit = min(limit, self.count)
        if limit < 1:
            return 0
        if self.trying:
            return 1
        count = costs.best(self.rate, sequences, limit)
        if not count:
            self.rest()
        return count

    def rest(self) -> None:
        """Begin a pause, twice as long as the one before."""
        self.pause, self.trying = self.longer, True
        self.longer = min(2 * self.longer, LONGEST_PAUSE)

    def update(self, drafted: int, accepted: int) -> None:
        """Take note of a step: if all drafts were right, the next ones may be twice as many."""
        for right in [1] * accepted + [0] * (accepted < drafted):
            self.rate += RATE_WEIGHT * (right - self.rate)
        if not self.trying and accepted:
            self.longer = 2
        self.trying = False
        if accepted == drafted:
            self.count = min(2 * self.count, MAX_DRAFTS)
        else:
            self.count = max(accepted + 1, self.count // 2)
