"""A knapsack: of every unit one option, with the least error in all, within so many bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

EXCHANGES = 1000
"""Exchanges that improve a solution, at most: a few dozen are usual."""

STEPS = 64
"""Halvings of the range in which the price of a byte is sought, exp(-80) to exp(80)."""


@dataclass(frozen=True)
class Option:
    """What a unit may become, a format for each of its weights, and what that costs."""

    formats: tuple[str, ...]
    nbytes: int
    error: float


class Knapsack:
    """The options of every unit: sizes and errors float64 [units, options], infinite where a unit
    has fewer than others.
    """

    def __init__(self, options: Sequence[Sequence[Option]]) -> None:
        self.options = options
        most = max((len(mine) for mine in options), default=0)
        self.sizes, self.errors = torch.full((2, len(options), most), torch.inf).double()
        for i, mine in enumerate(options):
            for j, option in enumerate(mine):
                self.sizes[i, j], self.errors[i, j] = option.nbytes, option.error

    @property
    def least(self) -> int:
        """Bytes that are taken at least."""
        return int(self.sizes.amin(1).sum())

    def solve(self, room: int, caps: Sequence[Sequence[int]] = ()) -> list[Option]:
        """An option of each unit, that take `room` >= `least` bytes together.

        The best of several solutions, which exchanges improve until none helps: that of the relaxed
        problem, and the least errors within the bytes of each unit that each of `caps` names.
        """
        found = [self.relaxed(room)]
        found += [self.capped(torch.tensor(mine)) for mine in caps if sum(mine) <= room]
        better = [self.improved(chosen, room) for chosen in found]
        best = min(better, key=lambda chosen: float(at(self.errors, chosen).sum()))
        return [mine[i] for mine, i in zip(self.options, best.tolist(), strict=True)]

    def capped(self, caps: Tensor) -> Tensor:
        """The least error of each unit within its bytes; its least bytes where none are so few."""
        within = torch.maximum(caps.double(), self.sizes.amin(1))[:, None]
        return torch.where(self.sizes <= within, self.errors, torch.inf).argmin(1)

    def relaxed(self, room: int) -> Tensor:
        """The least error + price * bytes, at the least price of a byte that keeps to the room."""
        low, high = -80.0, 80.0
        for _ in range(STEPS):
            middle = (low + high) / 2
            fits = at(self.sizes, self.priced(middle)).sum() <= room
            low, high = (low, middle) if fits else (middle, high)
        return self.priced(high)

    def priced(self, log: float) -> Tensor:
        price = torch.tensor(log).double().exp()
        return (self.errors + price * self.sizes).argmin(1)

    def improved(self, chosen: Tensor, room: int) -> Tensor:
        """A solution after all exchanges, of the options of one unit or of two, that help."""
        for _ in range(EXCHANGES):
            changes = self.exchange(chosen, room)
            if not changes:
                break
            chosen = chosen.clone()
            for unit, option in changes:
                chosen[unit] = option
        return chosen

    def exchange(self, chosen: Tensor, room: int) -> list[tuple[int, int]]:
        """The two changes (unit, option) that gain most within the room, or one; none where none
        gains.
        """
        more = (self.sizes - at(self.sizes, chosen)[:, None]).flatten()
        gain = (at(self.errors, chosen)[:, None] - self.errors).flatten()
        left = room - at(self.sizes, chosen).sum()
        order = more.argsort(stable=True)
        best, where = gain[order].cummax(0)
        # Of all changes that fit beside each change, the one that gains most.
        fits = torch.searchsorted(more[order], left - more, right=True) - 1
        other = order[where[fits.clamp(min=0)]]
        width = self.sizes.shape[1]
        apart = other // width != torch.arange(len(more)) // width
        alone = torch.where(more <= left, gain, -torch.inf)
        both = torch.where(apart & (fits >= 0), gain + best[fits.clamp(min=0)], alone)
        first = int(both.argmax())
        if not float(both[first]) > 1e-9 * float(at(self.errors, chosen).sum()):
            return []
        pair = [first, int(other[first])] if apart[first] else [first]
        return [(i // width, i % width) for i in pair]


def joined(options: Sequence[Option]) -> Option:
    """Options of several weights as one of all."""
    return Option(
        tuple(name for option in options for name in option.formats),
        sum(option.nbytes for option in options),
        sum(option.error for option in options),
    )


def hull(options: Iterable[Option]) -> list[Option]:
    """The options of which each gains most per byte over the one before, the smallest first."""
    found: list[Option] = []
    for option in sorted(options, key=lambda option: (option.nbytes, option.error)):
        if found and option.error >= found[-1].error:
            continue
        while len(found) > 1 and not turns(found[-2], found[-1], option):
            found.pop()
        found.append(option)
    return found


def turns(a: Option, b: Option, c: Option) -> bool:
    """Whether b gains more per byte over a than c over b."""
    first = (a.error - b.error) * (c.nbytes - b.nbytes)
    return first > (b.error - c.error) * (b.nbytes - a.nbytes)


def at(table: Tensor, chosen: Tensor) -> Tensor:
    """The numbers of chosen options, [units]."""
    return table.gather(1, chosen[:, None])[:, 0]
