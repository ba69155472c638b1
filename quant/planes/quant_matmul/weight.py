"""Arguments of the Triton kernels for a quantized weight, prepared once per `Planes`."""

from __future__ import annotations

import math
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ostro.quant.planes.planes import WIDTHS, Planes

LOADABLE = (
    *(torch.float32, torch.float16, torch.bfloat16),
    *(torch.int8, torch.uint8, torch.int16, torch.int32),
)
"""Dtypes of scales that a kernel can load on every GPU."""


class WeightTensors(NamedTuple):
    """The tensors of a weight, as one kernel argument; codes both as uint8 and as int32 words."""

    codes: tuple[Tensor, ...]
    words: tuple[Tensor, ...]
    scale: Tensor
    zero: Tensor | None
    offset: Tensor | None
    d: Tensor | None
    m: Tensor | None
    table: Tensor | None
    ints: Tensor | None


class WeightLayout(NamedTuple):
    """Compile-time constants of a kernel.

    widths  bits of each plane
    lows    bits below each plane
    group   weights that share a scale
    zero    the constant zero of all groups, or 0
    d, m    groups that share one value of d and m
    unit    the factor of the values in `ints`
    """

    widths: tuple[int, ...]
    lows: tuple[int, ...]
    group: int
    zero: float
    d: int
    m: int
    unit: float


class TritonWeight(NamedTuple):
    """Kernel arguments of a weight: `matrices` matrices of n rows of `cells` cells of 32."""

    tensors: WeightTensors
    layout: WeightLayout
    matrices: int
    n: int
    cells: int

    @property
    def device(self) -> torch.device:
        return self.tensors.scale.device

    @property
    def has_integer_values(self) -> bool:
        """True if codes decode to int8 times a unit, so that kernels can multiply integers."""
        return self.tensors.table is None or self.tensors.ints is not None


# Weak keys: an entry is freed with its planes or its table.
WEIGHTS: WeakKeyDictionary[Planes, TritonWeight] = WeakKeyDictionary()
TABLES = WeakTensorKeyDictionary()


def prepare(planes: Planes) -> TritonWeight:
    """The kernel arguments of a weight, cached per `Planes` object."""
    weight = WEIGHTS.get(planes)
    if weight is None:
        weight = WEIGHTS[planes] = make_weight(planes)
    return weight


def make_weight(planes: Planes) -> TritonWeight:
    zero = planes.zero
    ints, unit = (None, 1.0) if planes.table is None else integer_table(planes.table)
    tensors = WeightTensors(
        codes=tuple(plane.contiguous() for plane in planes.codes),
        words=tuple(plane.contiguous().view(torch.int32) for plane in planes.codes),
        scale=loadable(planes.scale),
        zero=loadable(zero) if isinstance(zero, Tensor) else None,
        offset=None if planes.offset is None else loadable(planes.offset),
        d=None if planes.d is None else loadable(planes.d),
        m=None if planes.m is None else loadable(planes.m),
        table=planes.table,
        ints=ints,
    )
    groups, widths = planes.scale.shape[-1], WIDTHS[planes.bits]
    layout = WeightLayout(
        widths=widths,
        lows=tuple(sum(widths[:i]) for i in range(len(widths))),
        group=planes.group,
        zero=0.0 if isinstance(zero, Tensor) else float(zero),
        d=1 if planes.d is None else groups // planes.d.shape[-1],
        m=1 if planes.m is None else groups // planes.m.shape[-1],
        unit=unit,
    )
    return TritonWeight(
        tensors, layout, math.prod(planes.shape[:-2]), planes.shape[-2], planes.shape[-1] // 32
    )


def loadable(tensor: Tensor) -> Tensor:
    """The tensor, contiguous; as float32 if kernels cannot load its dtype."""
    return (tensor if tensor.dtype in LOADABLE else tensor.float()).contiguous()


def integer_table(table: Tensor) -> tuple[Tensor | None, float]:
    """Return a table of 16 values as int8 and their unit: value = unit * int8; cached.

    The integers are packed by four, int32 [4, 32], one copy per lane of a warp. Returns (None, 1)
    if the table has another length or its values are not int8 times a power of two.
    """
    result = TABLES.get(table)
    if result is None:
        result = TABLES[table] = to_integers(table)
    return result


def to_integers(table: Tensor) -> tuple[Tensor | None, float]:
    values = table.double().cpu()
    for power in range(8 if len(values) == 16 else 0):
        scaled = values * 2**power
        if scaled.equal(scaled.round()) and scaled.abs().max() <= 127:
            words = scaled.to(torch.int8).view(torch.int32)
            return words[:, None].repeat(1, 32).to(table.device), 2.0**-power
    return None, 1.0
