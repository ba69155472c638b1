"""Arguments of the Triton kernels for a quantized weight, prepared once per `Planes`."""

from __future__ import annotations

import math
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ostro.ops import target_family
from ostro.quant.planes.planes import WIDTHS, Planes

FLOAT8 = ("sm_89", "sm_90", "sm_100")
"""GPUs with an instruction for float8_e4m3fn."""

LOADABLE = (
    *(torch.float32, torch.float16, torch.bfloat16),
    *(torch.int8, torch.uint8, torch.int16, torch.int32),
)
"""Dtypes of scales that a kernel can load on every GPU."""


HALF_EXPONENT = 15
"""Weights times their factor are below 2 ** 15: half of what float16 holds."""


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
    factor: Tensor


class WeightLayout(NamedTuple):
    """Compile-time constants of a kernel.

    widths  bits of each plane
    lows    bits below each plane
    group   weights that share a scale
    zero    the constant zero of all groups, or 0
    d, m    groups that share one value of d and m
    unit    the factor of the values in `ints`
    exponent  4 or 5 if codes are the bytes of float8_e4m3fn or float8_e5m2, else 0
    converts  whether the GPU converts float8_e4m3fn
    bytes     whether the values are whole: codes minus the constant zero
    """

    widths: tuple[int, ...]
    lows: tuple[int, ...]
    group: int
    zero: float
    d: int
    m: int
    unit: float
    exponent: int
    converts: bool
    bytes: bool


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
        is_float = self.tensors.table is not None or self.layout.exponent
        return self.tensors.ints is not None or not is_float


# Weak keys: an entry is freed with its planes or its table.
WEIGHTS: WeakKeyDictionary[Planes, TritonWeight] = WeakKeyDictionary()
TABLES = WeakTensorKeyDictionary()
EXPONENTS = WeakTensorKeyDictionary()


def prepare(planes: Planes) -> TritonWeight:
    """The kernel arguments of a weight, cached per `Planes` object but for `words`."""
    weight = WEIGHTS.get(planes)
    if weight is None:
        weight = WEIGHTS[planes] = make_weight(planes)
    # Views are made for each call: cached ones would keep the copy of an offloaded weight on the
    # device, since the offloader replaces only the data of the codes themselves.
    words = tuple(codes.view(torch.int32) for codes in weight.tensors.codes)
    return weight._replace(tensors=weight.tensors._replace(words=words))


def make_weight(planes: Planes) -> TritonWeight:
    zero = planes.zero
    table = planes.table
    ints, unit = (None, 1.0) if table is None else integer_table(table)
    exponent = 0 if table is None else float8_exponent(table)
    tensors = WeightTensors(
        codes=tuple(plane.contiguous() for plane in planes.codes),
        words=(),
        scale=loadable(planes.scale),
        zero=loadable(zero) if isinstance(zero, Tensor) else None,
        offset=None if planes.offset is None else loadable(planes.offset),
        d=None if planes.d is None else loadable(planes.d),
        m=None if planes.m is None else loadable(planes.m),
        table=None if exponent else table,
        ints=ints,
        factor=half_factor(planes),
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
        exponent=exponent,
        converts=target_family() in FLOAT8,
        bytes=table is None and (isinstance(zero, Tensor) or zero % 1 == 0),
    )
    return TritonWeight(
        tensors, layout, math.prod(planes.shape[:-2]), planes.shape[-2], planes.shape[-1] // 32
    )


def half_factor(planes: Planes) -> Tensor:
    """A power of two that brings all weights into the range of float16, float32 [1]."""
    zero, table = planes.zero, planes.table
    # A table of float8 has values that no weight has: NaN, and infinite ones.
    code = 2.0**planes.bits if table is None else table.where(table.isfinite(), 0).abs().amax()
    zero = zero.float().abs().amax() if isinstance(zero, Tensor) else abs(zero)
    largest = (code + zero) * bound(planes.scale, planes.d)
    if planes.offset is not None:
        largest = largest + bound(planes.offset, planes.m)
    exponent = (HALF_EXPONENT - largest.log2()).floor().clamp(-126, 126)
    return torch.exp2(exponent.nan_to_num(0.0)).view(1)


def bound(fine: Tensor, coarse: Tensor | None) -> Tensor:
    largest = fine.float().abs().amax()
    return largest if coarse is None else largest * coarse.float().abs().amax()


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


def float8_exponent(table: Tensor) -> int:
    """The bits of the exponent if a table has the finite values of a float8 dtype, else 0; cached.

    Kernels compute such values from the codes, which takes fewer instructions than loads.
    """
    result = EXPONENTS.get(table)
    if result is None:
        result = EXPONENTS[table] = find_exponent(table)
    return result


def find_exponent(table: Tensor) -> int:
    values = table.float().cpu()
    if len(values) == 256:
        for exponent, dtype in ((4, torch.float8_e4m3fn), (5, torch.float8_e5m2)):
            exact = torch.arange(256, dtype=torch.uint8).view(dtype).float()
            finite = exact.isfinite()  # a weight has no other values
            if values[finite].equal(exact[finite]):
                return exponent
    return 0


def to_integers(table: Tensor) -> tuple[Tensor | None, float]:
    values = table.double().cpu()
    for power in range(8 if len(values) == 16 else 0):
        scaled = values * 2**power
        if scaled.equal(scaled.round()) and scaled.abs().max() <= 127:
            words = scaled.to(torch.int8).view(torch.int32)
            return words[:, None].repeat(1, 32).to(table.device), 2.0**-power
    return None, 1.0
