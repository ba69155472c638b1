"""A multiple-choice knapsack: one option per unit, with the least total error within a capacity."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_EXCHANGES = 1000
"""Maximum exchanges that improve a solution; a few dozen are usual."""

STEPS = 64
"""Bisection steps for the price of a byte, in exp(-80)..exp(80)."""


@dataclass(frozen=True)
class Option:
    """A format for each weight of a unit, and its bytes and error."""

    formats: tuple[str, ...]
    nbytes: int
    error: float


class Knapsack:
    """The options of every unit: sizes and errors float64 [units, options], padded with inf."""

    def __init__(self, options: Sequence[Sequence[Option]]) -> None:
        self.options = options
        most = max((len(choices) for choices in options), default=0)
        self.sizes, self.errors = torch.full((2, len(options), most), torch.inf).double()
        for i, choices in enumerate(options):
            for j, option in enumerate(choices):
                self.sizes[i, j], self.errors[i, j] = option.nbytes, option.error

    @property
    def min_nbytes(self) -> int:
        """Bytes of the smallest options of all units."""
        return int(self.sizes.amin(1).sum())

    def solve(self, capacity: int, caps: Sequence[Sequence[int]] = ()) -> list[Option]:
        """Choose an option per unit with at most `capacity` >= `min_nbytes` bytes in total.

        Several initial solutions are improved by exchanges, and the best is returned. They are the
        solution of the relaxed problem, and for each of `caps`, bytes per unit, the least errors
        within these bytes.
        """
        found = [self.solve_relaxed(capacity)]
        found += [
            self.solve_capped(torch.tensor(choices)) for choices in caps if sum(choices) <= capacity
        ]
        better = [self.improve(chosen, capacity) for chosen in found]
        best = min(better, key=lambda chosen: float(at(self.errors, chosen).sum()))
        return [choices[i] for choices, i in zip(self.options, best.tolist(), strict=True)]

    def solve_capped(self, caps: Tensor) -> Tensor:
        """The option with the least error within the bytes of each unit, else the smallest one."""
        within = torch.maximum(caps.double(), self.sizes.amin(1))[:, None]
        return torch.where(self.sizes <= within, self.errors, torch.inf).argmin(1)

    def solve_relaxed(self, capacity: int) -> Tensor:
        """Minimise error + price * bytes with the lowest price that satisfies the capacity."""
        low, high = -80.0, 80.0
        for _ in range(STEPS):
            mid = (low + high) / 2
            fits = at(self.sizes, self.choose_at_price(mid)).sum() <= capacity
            low, high = (low, mid) if fits else (mid, high)
        return self.choose_at_price(high)

    def choose_at_price(self, log: float) -> Tensor:
        price = torch.tensor(log).double().exp()
        return (self.errors + price * self.sizes).argmin(1)

    def improve(self, chosen: Tensor, capacity: int) -> Tensor:
        """Apply exchanges of one or two options while they reduce the error."""
        for _ in range(MAX_EXCHANGES):
            changes = self.exchange(chosen, capacity)
            if not changes:
                break
            chosen = chosen.clone()
            for unit, option in changes:
                chosen[unit] = option
        return chosen

    def exchange(self, chosen: Tensor, capacity: int) -> list[tuple[int, int]]:
        """The one or two changes (unit, option) with the largest gain; empty if none has a gain."""
        more = (self.sizes - at(self.sizes, chosen)[:, None]).flatten()
        gain = (at(self.errors, chosen)[:, None] - self.errors).flatten()
        left = capacity - at(self.sizes, chosen).sum()
        order = more.argsort(stable=True)
        best, where = gain[order].cummax(0)
        # For each change, the best second change that still fits.
        fits = torch.searchsorted(more[order], left - more, right=True) - 1
        other = order[where[fits.clamp(min=0)]]
        width = self.sizes.shape[1]
        differ = other // width != torch.arange(len(more)) // width
        one = torch.where(more <= left, gain, -torch.inf)
        both = torch.where(differ & (fits >= 0), gain + best[fits.clamp(min=0)], one)
        first = int(both.argmax())
        if not float(both[first]) > 1e-9 * float(at(self.errors, chosen).sum()):
            return []
        pair = [first, int(other[first])] if differ[first] else [first]
        return [(i // width, i % width) for i in pair]


def combine(options: Sequence[Option]) -> Option:
    """Combine the options of several weights to one option of all."""
    return Option(
        tuple(name for option in options for name in option.formats),
        sum(option.nbytes for option in options),
        sum(option.error for option in options),
    )


def hull(options: Iterable[Option]) -> list[Option]:
    """The lower convex hull of options (bytes, error), in order of bytes."""
    found: list[Option] = []
    for option in sorted(options, key=lambda option: (option.nbytes, option.error)):
        if found and option.error >= found[-1].error:
            continue
        while len(found) > 1 and not is_convex(found[-2], found[-1], option):
            found.pop()
        found.append(option)
    return found


def is_convex(a: Option, b: Option, c: Option) -> bool:
    """Whether the gain per byte from a to b exceeds that from b to c."""
    first = (a.error - b.error) * (c.nbytes - b.nbytes)
    return first > (b.error - c.error) * (b.nbytes - a.nbytes)


def at(table: Tensor, chosen: Tensor) -> Tensor:
    """The values of the chosen options, [units]."""
    return table.gather(1, chosen[:, None])[:, 0]
