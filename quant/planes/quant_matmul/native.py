"""Products with planes on CPU: they lie in strips, and codes are unpacked in the cache.

`product` and `grouped` round x to bytes (`naive.rounded`) and multiply integers; the values of a
table that are no integers, and all in `product_exact` and `grouped_exact`, are multiplied in
float32. Sums of a row have one order, whatever other rows there are.
"""

from __future__ import annotations

from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p, pointer
from pathlib import Path

import torch
from torch import Tensor

from ostro.errors import InvalidTensor
from ostro.ops import native
from ostro.quant.planes.planes import CELL, WIDTHS, Planes
from ostro.quant.planes.quant_matmul.interleaved import Strips

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


class Told(Structure):
    """Strips as native.cpp is told of them.

    codes     the planes, `widths` bits each; none is 0
    table     float32 [2 ** bits], as in `Planes`
    values    float32 [2 ** bits], at least 16: what codes stand for, less a zero of all; or none
    bytes     uint8 [16]: code c stands for unit (bytes[c] - 128); or none
    experts   1 where there are none
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
        *((name, c_int64) for name in ("bits", "n", "k", "group", "experts", "together")),
        *((name, c_float) for name in ("constant", "unit", "rest")),
        ("start", c_int32),
        ("e4m3", c_int32),
    )


LIBRARY = native.load(Path(__file__).with_suffix(".cpp"))
CALL = (POINTER(Told), native.ADDRESS, native.INT, native.ADDRESS, native.INT, native.ADDRESS)
ROUNDED = native.functions(LIBRARY, "product", *CALL)
EXACT = native.functions(LIBRARY, "product_exact", *CALL)
DEQUANTIZE = native.functions(LIBRARY, "dequantize", POINTER(Told), native.ADDRESS)
SIGNATURE = native.Signature(
    "quant_matmul",
    x=native.Arg("rows k", strided="rows"),
    expert_of_row=native.Arg("rows", torch.int64, optional=True),
)


class Weight(Strips):
    """Strips, and what native.cpp is told of them."""

    def __init__(self, planes: Planes) -> None:
        check(planes)
        super().__init__(planes)
        self.views: dict[type[View], View] = {}

    @property
    def rounded(self) -> View:
        """For products of integers, or of floats where codes stand for other numbers."""
        return self.view(Rounded)

    @property
    def exact(self) -> View:
        """For products of floats."""
        return self.view(Exact)

    def view(self, kind: type[View]) -> View:
        """Made once; and again where tensors have other memory, as those that visit a device."""
        view = self.views.get(kind)
        if view is None or view.moved:
            try:
                view = kind(self)
            except ValueError:
                view = Exact(self)
            self.views[kind] = view
        return view


class View:
    """What native.cpp is `told` of strips, and the function that multiplies by them."""

    product = ROUNDED

    def __init__(self, strips: Strips) -> None:
        planes, parts = strips.empty, strips.parts
        for name, part in parts.items():
            if not part.is_cpu or not part.is_contiguous():
                raise InvalidTensor(f"has {name} of planes on {part.device}, expected cpu")
        self.kept: list[Tensor] = []
        self.places = [(part, part.data_ptr()) for part in parts.values()]
        self.told = told = Told(bits=planes.bits, group=planes.group, experts=1, unit=1.0)
        *experts, told.n, told.k = strips.shape
        if experts:
            told.experts = experts[0]
        for i, plane in enumerate(planes.codes):
            told.codes[i], told.widths[i] = self.address(parts[f"codes{i}"]), plane.shape[-1] // 4
        for name in ("scale", "zero", "offset", "d", "m"):
            if name in parts:
                known = parts[name] if parts[name].dtype in TYPES else parts[name].float()
                numbers = Numbers(self.address(known), known.shape[-2], TYPES[known.dtype])
                setattr(told, name, numbers)
        told.together = told.scale.many // (told.d.many or told.m.many or told.scale.many)
        if not isinstance(planes.zero, Tensor):
            told.constant = planes.zero
        if planes.table is not None:
            told.table = self.address(planes.table.float())
        self.n, self.k, self.pointer = told.n, told.k, pointer(told)

    @property
    def moved(self) -> bool:
        """Whether strips have other memory than when this was made."""
        return any(part.data_ptr() != place for part, place in self.places)

    def address(self, tensor: Tensor) -> int:
        """Where a tensor lies, which is kept."""
        self.kept.append(tensor)
        return tensor.data_ptr()


def check(planes: Planes) -> None:
    """Raise InvalidTensor where the tensors of planes disagree in their sizes.

    native.cpp gets the number of rows and columns once, and finds all tensors by it.
    """
    rows, k = planes.codes[0].shape[:-2], planes.shape[-1]
    layout = [(codes.dtype, codes.shape[-1]) for codes in planes.codes]
    if layout != [(torch.uint8, 4 * bits) for bits in WIDTHS.get(planes.bits, ())]:
        raise InvalidTensor(f"has planes of codes {layout}, which are not those of 1 to 8 bits")
    groups = planes.scale.shape[-1] if planes.scale.ndim else 0
    shared = next((t.shape[-1] for t in (planes.d, planes.m) if t is not None), groups)
    if not groups or not shared or k % groups or groups % shared:
        raise InvalidTensor(f"has planes of {k} columns in {groups} groups in runs of {shared}")
    if planes.group != 16 and planes.group % CELL:
        raise InvalidTensor(
            f"has planes in groups of {planes.group}, expected 16 or {CELL} times n"
        )
    sizes = {"scale": groups, "zero": groups, "offset": groups, "d": shared, "m": shared}
    for name, tensor in planes.tensors().items():
        is_codes = name.startswith("codes")
        columns = (k // CELL, tensor.shape[-1]) if is_codes else (sizes[name],)
        if tensor.shape != (*rows, *columns):
            shape, expected = list(tensor.shape), [*rows, *columns]
            raise InvalidTensor(f"has planes whose {name} has shape {shape}, expected {expected}")
    if planes.table is not None and planes.table.shape != (2**planes.bits,):
        shape, expected = list(planes.table.shape), [2**planes.bits]
        raise InvalidTensor(f"has planes whose table has shape {shape}, expected {expected}")


class Exact(View):
    """For products in float32."""

    product = EXACT

    def __init__(self, strips: Strips) -> None:
        super().__init__(strips)
        told, table, bits = self.told, strips.empty.table, strips.empty.bits
        if table is None and bits > 4:
            told.rest = told.constant
            return
        values = torch.arange(2**bits) if table is None else table
        values = values.float() - told.constant
        told.e4m3 = len(values) == 256 and torch.allclose(values, bytes_as_floats(), 0, 0, True)
        told.values = self.address(torch.nn.functional.pad(values, (0, max(0, 16 - len(values)))))


def bytes_as_floats() -> Tensor:
    return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()


class Rounded(View):
    """For products of integers. Raises ValueError where codes stand for other numbers."""

    def __init__(self, strips: Strips) -> None:
        super().__init__(strips)
        told, table = self.told, strips.empty.table
        if table is not None:
            numbers, told.unit = integers(table)
            told.bytes = self.address(torch.nn.functional.pad(numbers, (0, 16 - len(numbers))))
            told.start = MIDDLE
        zero = told.constant / told.unit
        if zero.is_integer() and abs(zero) < 2**15:
            told.start += int(zero)
        else:
            told.rest = told.constant


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


def weight_of(planes: Planes | Weight) -> Weight:
    """Planes as they are held, or laid out for this once."""
    return planes if isinstance(planes, Weight) else Weight(planes)


def run(x: Tensor, view: View, expert_of_row: Tensor | None = None) -> Tensor:
    SIGNATURE(x, expert_of_row, k=view.k)
    y = torch.empty(x.shape[0], view.n, dtype=x.dtype)
    experts = None if expert_of_row is None else expert_of_row.data_ptr()
    call = view.product[x.dtype]
    call(view.pointer, x.data_ptr(), x.stride(0), experts, x.shape[0], y.data_ptr())
    return y


def product(x: Tensor, planes: Planes | Weight) -> Tensor:
    """See the package."""
    return run(x, weight_of(planes).rounded)


def product_exact(x: Tensor, planes: Planes | Weight) -> Tensor:
    """See the package; x is not rounded."""
    return run(x, weight_of(planes).exact)


def grouped(x: Tensor, planes: Planes | Weight, expert_of_row: Tensor) -> Tensor:
    """See the package."""
    return run(x, weight_of(planes).rounded, expert_of_row.contiguous())


def grouped_exact(x: Tensor, planes: Planes | Weight, expert_of_row: Tensor) -> Tensor:
    """See the package; x is not rounded."""
    return run(x, weight_of(planes).exact, expert_of_row.contiguous())


def dequantize(planes: Planes | Weight, dtype: torch.dtype) -> Tensor:
    """See the package: the same numbers as naive."""
    view, weight = weight_of(planes).view(View), torch.empty(planes.shape, dtype=dtype)
    DEQUANTIZE[dtype](view.pointer, weight.data_ptr())
    return weight
