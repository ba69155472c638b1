"""A weight in planes as Triton kernels take it, made once of each `Planes`."""

from __future__ import annotations

import math
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ostro.quant.planes.planes import WIDTHS, Planes

READABLE = (
    *(torch.float32, torch.float16, torch.bfloat16),
    *(torch.int8, torch.uint8, torch.int16, torch.int32),
)
"""Types of scales that a kernel loads on any GPU."""


class Numbers(NamedTuple):
    """The tensors of a weight, as a kernel's one argument; codes uint8, as words int32."""

    codes: tuple[Tensor, ...]
    words: tuple[Tensor, ...]
    scale: Tensor
    zero: Tensor | None
    offset: Tensor | None
    d: Tensor | None
    m: Tensor | None
    table: Tensor | None
    ints: Tensor | None


class Kind(NamedTuple):
    """What a kernel is compiled for.

    widths, lows: bits of each plane, and below it; group: weights that share a scale; zero: where
    all share it, else 0; d, m: groups that share one; unit: what `ints` are multiples of.
    """

    widths: tuple[int, ...]
    lows: tuple[int, ...]
    group: int
    zero: float
    d: int
    m: int
    unit: float


class Weight(NamedTuple):
    """A weight of planes, ready for kernels: so many matrices of n rows of cells of 32."""

    numbers: Numbers
    kind: Kind
    matrices: int
    n: int
    cells: int

    @property
    def device(self) -> torch.device:
        return self.numbers.scale.device

    @property
    def whole(self) -> bool:
        """Whether values of codes are whole numbers, so that integers can multiply them."""
        return self.numbers.table is None or self.numbers.ints is not None


WEIGHTS: WeakKeyDictionary[Planes, Weight] = WeakKeyDictionary()
TABLES = WeakTensorKeyDictionary()


def prepare(planes: Planes) -> Weight:
    """The weight that kernels take; made once for each object."""
    weight = WEIGHTS.get(planes)
    if weight is None:
        weight = WEIGHTS[planes] = make(planes)
    return weight


def make(planes: Planes) -> Weight:
    zero = planes.zero
    ints, unit = (None, 1.0) if planes.table is None else whole(planes.table)
    numbers = Numbers(
        codes=tuple(plane.contiguous() for plane in planes.codes),
        words=tuple(plane.contiguous().view(torch.int32) for plane in planes.codes),
        scale=readable(planes.scale),
        zero=readable(zero) if isinstance(zero, Tensor) else None,
        offset=None if planes.offset is None else readable(planes.offset),
        d=None if planes.d is None else readable(planes.d),
        m=None if planes.m is None else readable(planes.m),
        table=planes.table,
        ints=ints,
    )
    groups, widths = planes.scale.shape[-1], WIDTHS[planes.bits]
    kind = Kind(
        widths=widths,
        lows=tuple(sum(widths[:i]) for i in range(len(widths))),
        group=planes.group,
        zero=0.0 if isinstance(zero, Tensor) else float(zero),
        d=1 if planes.d is None else groups // planes.d.shape[-1],
        m=1 if planes.m is None else groups // planes.m.shape[-1],
        unit=unit,
    )
    return Weight(
        numbers, kind, math.prod(planes.shape[:-2]), planes.shape[-2], planes.shape[-1] // 32
    )


def readable(tensor: Tensor) -> Tensor:
    """Contiguous, and of a type that kernels load: others are widened."""
    return (tensor if tensor.dtype in READABLE else tensor.float()).contiguous()


def whole(table: Tensor) -> tuple[Tensor | None, float]:
    """Sixteen values as integers of eight bits, int32 [4, 32] of four each, and their unit.

    (None, 1) where they are no multiples of one power of two, or too many.
    """
    found = TABLES.get(table)
    if found is None:
        found = TABLES[table] = integers(table)
    return found


def integers(table: Tensor) -> tuple[Tensor | None, float]:
    values = table.double().cpu()
    for power in range(8 if len(values) == 16 else 0):
        scaled = values * 2**power
        if scaled.equal(scaled.round()) and scaled.abs().max() <= 127:
            four = scaled.to(torch.int8).view(torch.int32)
            return four[:, None].repeat(1, 32).to(table.device), 2.0**-power
    return None, 1.0
