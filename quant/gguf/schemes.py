"""Schemes: the values that each ggml format can represent, as input of `search`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ostro.quant.gguf.naive import E2M1, NL

MIN_HALF, MAX_HALF, ZERO_BOUND = 2.0**-24, 65504.0, 2.0**-40
"""The smallest and largest float16, and the bound below which a scale becomes 0."""


class Levels:
    """The values of codes: integers, not always consecutive."""

    def __init__(self, values: Iterable[int]) -> None:
        numbers = sorted(set(values))
        self.first, self.last = numbers[0], numbers[-1]
        self.max_magnitude = max(-self.first, self.last)
        self.table: Tensor | None = None
        if len(numbers) <= self.last - self.first:
            # Midpoints between levels are multiples of 1/2: each interval of 1/2 has one nearest
            # level.
            cells = torch.arange(2 * (self.last - self.first) + 1) / 2 + self.first + 0.25
            levels = torch.tensor(numbers, dtype=torch.float32)
            self.table = levels[(cells[:, None] - levels).abs().argmin(1)]

    @property
    def ends(self) -> tuple[int, ...]:
        """The candidate levels of the weight with the largest magnitude in a group."""
        return (self.last,) if self.first in (0, -self.last) else (self.first, self.last)

    def nearest(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """The levels nearest to x, float32."""
        q = torch.clamp(x, self.first, self.last, out=out)
        if self.table is None:
            return q.round_()
        cells = q.sub_(self.first).mul_(2).int().flatten()
        torch.index_select(self.table.to(x.device), 0, cells, out=q.view(-1))
        return q


def half(d: Tensor) -> Sequence[Tensor]:
    """0, and the nearest finite float16 other than 0 (at least 2 ** -24 in magnitude)."""
    near = d.abs().clamp(MIN_HALF, MAX_HALF).half().float().copysign(d)
    zero = torch.zeros_like(d)
    return zero, torch.where(d.abs() < ZERO_BOUND, zero, near)


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """The values that a block of a format can represent.

    levels: of its codes. beyond: starting points, as the distance in steps from the outermost code
    to the largest weight, which is clipped by that much. groups: the number of groups in a block.
    minimum: whether groups have one; "positive" ones are 0 or more. scales: the levels of s and t,
    None where a block is one group. stored: numbers near d and m that a file can store, the nearest
    last; at max_value `max_value`.
    """

    levels: Levels
    beyond: Sequence[float]
    groups: int = 1
    minimum: Literal["none", "positive", "any"] = "none"
    scales: Levels | None = None
    stored: Callable[[Tensor], Sequence[Tensor]] = half
    max_value: float = MAX_HALF

    @property
    def range(self) -> tuple[float, float]:
        """The least and the largest weight that there can be."""
        max_value = self.max_value * (self.scales.max_magnitude if self.scales else 1)
        if self.minimum == "none":
            return -max_value * self.levels.max_magnitude, max_value * self.levels.max_magnitude
        return -max_value, max_value * self.levels.last


def single(d: Tensor) -> Sequence[Tensor]:
    return (d,)


def power(d: Tensor) -> Sequence[Tensor]:
    """Powers of two near d, up to the largest that `quant.mxfp4` supports."""
    exponent = torch.frexp(d).exponent
    near = (exponent + step for step in (-2, 0, -1))
    return [torch.ldexp(torch.ones_like(d), each.clamp(-128, 112)) for each in near]


def steps(first: float, last: float, count: int) -> list[float]:
    """`count` equally spaced numbers from first to last."""
    return torch.linspace(first, last, count).tolist()


def integers(first: int, last: int) -> Levels:
    return Levels(range(first, last + 1))


def ranged(last: int, scales: Levels | None = None, groups: int = 1) -> Scheme:
    """A scheme of codes from 0 to `last` and minima."""
    return Scheme(
        levels=integers(0, last),
        beyond=steps(-0.5, 1.5, 5),
        minimum="positive" if scales else "any",
        scales=scales,
        groups=groups,
    )


INT8 = Scheme(levels=integers(-127, 127), beyond=steps(-7, 3, 21))

# From 0.6 to 10.6 scales: either the few largest weights are cut off or most others become 0.
TERNARY = Scheme(levels=integers(-1, 1), beyond=[0.6 * 1.27**i - 1 for i in range(13)])

NONLINEAR = Scheme(levels=Levels(NL), beyond=steps(-17, 50, 15))

FORMATS: Mapping[str, Scheme] = {
    "Q4_0": Scheme(levels=integers(-8, 7), beyond=steps(-1, 4, 21)),
    "Q4_1": ranged(15),
    "Q5_0": Scheme(levels=integers(-16, 15), beyond=steps(-1, 6, 21)),
    "Q5_1": ranged(31),
    "Q8_0": INT8,
    "Q8_1": INT8,
    "Q2_K": ranged(3, scales=integers(0, 15), groups=16),
    "Q3_K": Scheme(
        levels=integers(-4, 3), beyond=steps(-1, 3, 15), scales=integers(-32, 31), groups=16
    ),
    "Q4_K": ranged(15, scales=integers(0, 63), groups=8),
    "Q5_K": ranged(31, scales=integers(0, 63), groups=8),
    "Q6_K": Scheme(
        levels=integers(-32, 31), beyond=steps(-2, 7, 25), scales=integers(-128, 127), groups=16
    ),
    "Q8_K": replace(INT8, stored=single, max_value=3.4e38 / 127),
    "IQ4_NL": NONLINEAR,
    "IQ4_XS": replace(NONLINEAR, scales=integers(-32, 31), groups=8),
    "TQ1_0": TERNARY,
    "TQ2_0": TERNARY,
    "MXFP4": Scheme(levels=Levels(E2M1), beyond=steps(-3, 3, 7), stored=power, max_value=2.0**112),
}
"""The schemes of all formats that `blocks.FORMATS` writes."""
