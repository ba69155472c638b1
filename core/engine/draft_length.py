"""How many tokens to propose: those that give the most tokens per second.

A draft is accepted if it and all drafts before it are right. So if each draft of a sequence is
right with probability p, its k-th one adds p^k tokens to a step on average (Leviathan et al. 2023).
A step takes the most likely drafts of all its sequences, as many as are worth the time of its
further rows and that of proposing. Both times are measured while the engine runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MAX_ROWS = 32
"""Decode rows of a step up to which sequences get drafts: larger steps are bound by computation, so
that each further row costs time.
"""
MAX_DRAFTS = 8
"""The most drafts of one sequence in a step."""
FIRST_RATE = 0.7
"""The probability of a right draft that is assumed before the first are judged."""
WEIGHT, TYPICAL_WEIGHT = 0.1, 0.02
"""The weight of one draft in the share of right ones of its sequence, and of all sequences."""
IDLE_RATE, IDLE_WEIGHT = 0.9, 1 / 128
"""The share that a sequence without drafts approaches, and by which part with each token: so drafts
are tried again some time.
"""
GAIN = 1.05
"""The least gain in tokens per second for which a step has drafts: rates and times are estimates.
"""
FREE = 0.01
"""The part of a step up to which the time of a proposal does not matter."""
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

    def are_proposals_free(self, rows: int) -> bool:
        """Whether the time of proposals does not matter beside a step of `rows`, or is unknown."""
        seconds = self.draft.seconds
        return seconds is None or MAX_DRAFTS * seconds <= FREE * self.of(rows)

    def choose(
        self,
        rates: Sequence[float],
        limits: Sequence[int],
        *,
        rows: int,
        budget: int,
        proposed: bool = False,
    ) -> list[int]:
        """The number of drafts of each sequence with the most tokens per second.

        rates: the shares of right drafts. limits: the most drafts. rows: those of the step without
        drafts. budget: the most drafts in all. proposed: they need not be proposed first.
        """
        plain = self.of(rows) or 1.0
        draft = 0.0 if proposed else self.draft.seconds or 0.0
        candidates = [
            (rate**place, place, index)
            for index, (rate, limit) in enumerate(zip(rates, limits, strict=True))
            for place in range(1, limit + 1)
        ]
        # Stable: a draft never precedes those before it, which are at least as likely.
        candidates.sort(key=lambda candidate: -candidate[0])
        tokens, deepest, best, fastest = float(rows), 0, 0, GAIN * rows / plain
        for count, (accepted, place, _) in enumerate(candidates[: max(budget, 0)], 1):
            tokens, deepest = tokens + accepted, max(deepest, place)
            speed = tokens / ((self.of(rows + count) or plain) + deepest * draft)
            if speed > fastest:
                best, fastest = count, speed
        counts = [0] * len(rates)
        for _, _, index in candidates[:best]:
            counts[index] += 1
        return counts


@dataclass
class Acceptance:
    """The share of right drafts among the last ones; `weight` is that of one of them."""

    rate: float = FIRST_RATE
    weight: float = WEIGHT

    def update(self, drafted: int, accepted: int) -> None:
        """Take note of a step. The drafts after the first wrong one are not judged."""
        for right in [1] * accepted + [0] * (accepted < drafted):
            self.rate += self.weight * (right - self.rate)

    def decay(self) -> None:
        """Take note of a token without drafts: what is known of the share gets old."""
        self.rate += IDLE_WEIGHT * max(IDLE_RATE - self.rate, 0.0)
