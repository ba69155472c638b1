"""Products with planes on CPU: codes are unpacked in the cache, whatever the number of rows.

`product` and `grouped` round x to bytes (`naive.rounded`) and multiply integers; the values of a
table that are no integers, and all in `product_exact` and `grouped_exact`, are multiplied in
float32. Sums of a row have one order, whatever other rows there are.
"""

from __future__ import annotations

from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ostro.core.native import ADDRESS, INT, functions, load
from ostro.core.planes import Planes

TYPES = {
    torch.float32: 0,
    torch.float16: 1,
    torch.bfloat16: 2,
    torch.int8: 3,
    torch.uint8: 4,
    torch.float8_e8m0fnu: 5,
    torch.float8_e4m3fn: 6,
}
"""Types of scales that are read as they lie; others are kept as float32 besides."""


class Numbers(Structure):
    """What groups share: `many` numbers of each row, or no data."""

    _fields_ = (("data", c_void_p), ("many", c_int64), ("type", c_int64))


class Weights(Structure):
    """Planes as native.cpp is told of them.

    codes     the planes, `widths` bits each; none is 0
    table     float32 [2 ** bits], as in `Planes`
    values    float32 [2 ** bits], at least 16: what codes stand for, less a zero of all; or none
    bytes     uint8 [16]: code c stands for unit (bytes[c] - 128); or none
    rows      of all experts
    together  groups that share d and m
    constant  a zero of all groups
    rest      what of it is neither in `values` nor in `start`, which is what integers have too much
    e4m3      whether values are all numbers of torch.float8_e4m3fn, in order
    """

    _fields_ = (
        ("codes", c_void_p * 3),
        ("widths", c_int64 * 3),
        *((name, Numbers) for name in ("scale", "zero", "offset", "d", "m")),
        *((name, c_void_p) for name in ("table", "values", "bytes")),
        *((name, c_int64) for name in ("bits", "n", "k", "group", "rows", "together")),
        *((name, c_float) for name in ("constant", "unit", "rest")),
        ("start", c_int32),
        ("e4m3", c_int32),
    )


LIBRARY = load(Path(__file__).with_suffix(".cpp"))
CALL = (POINTER(Weights), ADDRESS, INT, ADDRESS, INT, ADDRESS)
ROUNDED = functions(LIBRARY, "product", *CALL)
EXACT = functions(LIBRARY, "product_exact", *CALL)
DEQUANTIZE = functions(LIBRARY, "dequantize", POINTER(Weights), ADDRESS)


class Laid:
    """Planes as native.cpp is told of them: `weights`, and the tensors that they point to."""

    def __init__(self, planes: Planes) -> None:
        self.kept: list[Tensor] = []
        self.sources = [(t, t.data_ptr()) for t in planes.tensors().values()]
        self.weights = w = Weights(bits=planes.bits, group=planes.group, unit=1.0)
        *experts, w.n, w.k = planes.shape
        w.rows = w.n * (experts[0] if experts else 1)
        for i, plane in enumerate(planes.codes):
            w.codes[i], w.widths[i] = self.address(plane), plane.shape[-1] // 4
        for name in ("scale", "zero", "offset", "d", "m"):
            value = getattr(planes, name)
            if isinstance(value, Tensor):
                known = value if value.dtype in TYPES else value.float()
                address = self.address(known)
                setattr(w, name, Numbers(address, known.shape[-1], TYPES[known.dtype]))
        w.together = w.scale.many // (w.d.many or w.m.many or w.scale.many)
        if not isinstance(planes.zero, Tensor):
            w.constant = planes.zero
        if planes.table is not None:
            w.table = self.address(planes.table.float())

    def address(self, tensor: Tensor) -> int:
        """Where a tensor's numbers lie one after the other."""
        self.kept.append(tensor.contiguous())
        return self.kept[-1].data_ptr()

    @property
    def moved(self) -> bool:
        """Whether tensors have other memory than when this was made."""
        return any(tensor.data_ptr() != address for tensor, address in self.sources)


class Exact(Laid):
    """For products in float32."""

    def __init__(self, planes: Planes) -> None:
        super().__init__(planes)
        w = self.weights
        if planes.table is None and planes.bits > 4:
            w.rest = w.constant
            return
        values = planes.table
        if values is None:
            values = torch.arange(2**planes.bits)
        values = values.float() - w.constant
        w.e4m3 = len(values) == 256 and torch.allclose(values, bytes_as_floats(), 0, 0, True)
        w.values = self.address(torch.nn.functional.pad(values, (0, max(0, 16 - len(values)))))


def bytes_as_floats() -> Tensor:
    return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()


class Rounded(Laid):
    """For products of integers. Raises ValueError where codes stand for other numbers."""

    def __init__(self, planes: Planes) -> None:
        super().__init__(planes)
        w = self.weights
        if planes.table is not None:
            numbers, w.unit = integers(planes.table)
            w.bytes = self.address(torch.nn.functional.pad(numbers, (0, 16 - len(numbers))))
            w.start = MIDDLE
        zero = w.constant / w.unit
        if zero.is_integer() and abs(zero) < 2**15:
            w.start += int(zero)
        else:
            w.rest = w.constant


MIDDLE = 128  # the byte that stands for 0


def integers(table: Tensor) -> tuple[Tensor, float]:
    """A table as bytes, uint8, and what their distance from `MIDDLE` is multiplied by."""
    if len(table) > 16:
        raise ValueError("more values than are looked up at once")
    for unit in (1.0, 0.5, 0.25, 0.125):
        numbers = table.float() / unit + MIDDLE
        if bool(((numbers == numbers.round()) & (numbers >= 0) & (numbers <= 255)).all()):
            return numbers.to(torch.uint8), unit
    raise ValueError("values that are no integers")


ROUND: WeakKeyDictionary[Planes, Laid] = WeakKeyDictionary()
KEEP: WeakKeyDictionary[Planes, Laid] = WeakKeyDictionary()


def rounded(planes: Planes) -> Laid:
    """Planes for products of integers, or for others where it must be; made once."""
    laid = ROUND.get(planes)
    if laid is None or laid.moved:
        try:
            laid = Rounded(planes)
        except ValueError:
            laid = Exact(planes)
        ROUND[planes] = laid
    return laid


def exact(planes: Planes) -> Laid:
    laid = KEEP.get(planes)
    if laid is None or laid.moved:
        laid = KEEP[planes] = Exact(planes)
    return laid


def run(x: Tensor, laid: Laid, expert_of_row: Tensor | None = None) -> Tensor:
    y = torch.empty(x.shape[0], laid.weights.n, dtype=x.dtype)
    experts = None if expert_of_row is None else expert_of_row.data_ptr()
    call = EXACT if isinstance(laid, Exact) else ROUNDED
    call[x.dtype](laid.weights, x.data_ptr(), x.stride(0), experts, x.shape[0], y.data_ptr())
    return y


def product(x: Tensor, planes: Planes) -> Tensor:
    """See the package."""
    return run(x, rounded(planes))


def product_exact(x: Tensor, planes: Planes) -> Tensor:
    """See the package; x is not rounded."""
    return run(x, exact(planes))


def grouped(x: Tensor, planes: Planes, expert_of_row: Tensor) -> Tensor:
    """See the package."""
    return run(x, rounded(planes), expert_of_row.contiguous())


def grouped_exact(x: Tensor, planes: Planes, expert_of_row: Tensor) -> Tensor:
    """See the package; x is not rounded."""
    return run(x, exact(planes), expert_of_row.contiguous())


def dequantize(planes: Planes, dtype: torch.dtype) -> Tensor:
    """See the package: the same numbers as naive."""
    laid, weight = Laid(planes), torch.empty(planes.shape, dtype=dtype)
    DEQUANTIZE[dtype](laid.weights, weight.data_ptr())
    return weight
