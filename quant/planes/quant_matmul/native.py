"""CPU matrix products with quantized weights in the interleaved layout (native.cpp).

`matmul` and `grouped_matmul` quantize x to int8 (`naive.quantize_activations`) and multiply
integers. `matmul_exact` and `grouped_matmul_exact`, and weights whose code table does not hold
integers, multiply float32. The order of each sum is fixed, so a row's bits depend on no other row.
"""

from __future__ import annotations

from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p, pointer
from pathlib import Path

import torch
from torch import Tensor

from ostro.errors import InvalidTensor
from ostro.ops import native
from ostro.quant.planes.planes import CELL, WIDTHS, Planes
from ostro.quant.planes.quant_matmul.interleaved import InterleavedPlanes
from ostro.quant.planes.quant_matmul.naive import BYTE_ZERO, table_as_bytes

TYPES = {
    torch.float32: 0,
    torch.float16: 1,
    torch.bfloat16: 2,
    torch.int8: 3,
    torch.uint8: 4,
    torch.float8_e8m0fnu: 5,
    torch.float8_e4m3fn: 6,
}
"""Dtypes of group values that native.cpp reads; others are converted to float32."""


class GroupValues(Structure):
    """Values shared by groups, `per_row` for each row; null data means absent."""

    _fields_ = (("data", c_void_p), ("per_row", c_int64), ("type", c_int64))


class WeightStruct(Structure):
    """The struct `Weights` of weights.h; the fields must match.

    codes                 the planes, `widths` bits each; width 0 means absent
    table                 float32 [2 ** bits], as in `Planes`, or null
    code_values           float32 [2 ** bits], at least 16: values of codes minus the constant zero,
                          or null
    code_bytes            uint8 [16]: code c has value table_unit * (code_bytes[c] - 128), or null
    experts               1 for a plain matrix
    groups_per_superblock groups that share d and m
    shared_zero           the constant zero of all groups
    zero_residual         the zero that neither `code_values` nor `zero_point` contains
    zero_point            the integer that is subtracted from each code
    is_e4m3               1 if code_values are all values of torch.float8_e4m3fn, in order
    """

    _fields_ = (
        ("codes", c_void_p * 3),
        ("widths", c_int64 * 3),
        *((name, GroupValues) for name in ("scale", "zero", "offset", "d", "m")),
        *((name, c_void_p) for name in ("table", "code_values", "code_bytes")),
        *((name, c_int64) for name in ("bits", "n", "k", "group", "experts")),
        ("groups_per_superblock", c_int64),
        *((name, c_float) for name in ("shared_zero", "table_unit", "zero_residual")),
        ("zero_point", c_int32),
        ("is_e4m3", c_int32),
    )


LIBRARY = native.load(Path(__file__).with_suffix(".cpp"))
ARGUMENTS = (
    *(POINTER(WeightStruct), native.ADDRESS, native.INT),
    *(native.ADDRESS, native.INT, native.ADDRESS),
)
MATMUL = native.functions(LIBRARY, "matmul", *ARGUMENTS)
MATMUL_EXACT = native.functions(LIBRARY, "matmul_exact", *ARGUMENTS)
DEQUANTIZE = native.functions(LIBRARY, "dequantize", POINTER(WeightStruct), native.ADDRESS)
SIGNATURE = native.Signature(
    "quant_matmul",
    x=native.Arg("rows k", strided="rows"),
    expert_of_row=native.Arg("rows", torch.int64, optional=True),
)


class NativeWeight(InterleavedPlanes):
    """Interleaved planes with the structs that native.cpp takes. Raises InvalidTensor."""

    def __init__(self, planes: Planes) -> None:
        check(planes)
        super().__init__(planes)
        self.arguments: dict[type[KernelArgs], KernelArgs] = {}

    @property
    def integers(self) -> KernelArgs:
        """Arguments of integer products; of float products if the table is not integers."""
        return self.args(IntegerArgs)

    @property
    def floats(self) -> KernelArgs:
        """Arguments of float products."""
        return self.args(FloatArgs)

    def args(self, kind: type[KernelArgs]) -> KernelArgs:
        """The arguments of this kind, cached until a tensor moves.

        Offloading replaces the memory of the tensors, and the struct holds their addresses.
        """
        args = self.arguments.get(kind)
        if args is None or args.is_stale:
            try:
                args = kind(self)
            except NotIntegers:
                args = FloatArgs(self)
            self.arguments[kind] = args
        return args


class KernelArgs:
    """The struct of a weight, and the C++ function that multiplies by it.

    Raises InvalidTensor if a tensor is not contiguous CPU memory.
    """

    functions = MATMUL

    def __init__(self, weight: InterleavedPlanes) -> None:
        planes, tensors = weight.template, weight.tensors
        for name, tensor in tensors.items():
            if not tensor.is_cpu or not tensor.is_contiguous():
                raise InvalidTensor(f"has {name} of planes on {tensor.device}, expected cpu")
        # The struct contains bare addresses: keep its tensors alive.
        self.references: list[Tensor] = []
        self.addresses = [(tensor, tensor.data_ptr()) for tensor in tensors.values()]
        self.struct = WeightStruct(bits=planes.bits, group=planes.group, experts=1, table_unit=1.0)
        struct = self.struct
        *experts, struct.n, struct.k = weight.shape
        if experts:
            struct.experts = experts[0]
        for i, plane in enumerate(planes.codes):
            struct.codes[i] = self.address(tensors[f"codes{i}"])
            struct.widths[i] = plane.shape[-1] // 4
        for name in ("scale", "zero", "offset", "d", "m"):
            if name in tensors:
                setattr(struct, name, self.group_values(tensors[name]))
        groups = struct.scale.per_row
        struct.groups_per_superblock = groups // (struct.d.per_row or struct.m.per_row or groups)
        if not isinstance(planes.zero, Tensor):
            struct.shared_zero = planes.zero
        if planes.table is not None:
            struct.table = self.address(planes.table.float())
        self.n, self.k, self.pointer = struct.n, struct.k, pointer(struct)

    @property
    def is_stale(self) -> bool:
        """True if the memory of a tensor has changed since the addresses were taken."""
        return any(tensor.data_ptr() != address for tensor, address in self.addresses)

    def address(self, tensor: Tensor) -> int:
        """The address of a tensor, which is kept alive."""
        self.references.append(tensor)
        return tensor.data_ptr()

    def group_values(self, tensor: Tensor) -> GroupValues:
        values = tensor if tensor.dtype in TYPES else tensor.float()
        return GroupValues(self.address(values), values.shape[-2], TYPES[values.dtype])


def check(planes: Planes) -> None:
    """Raise InvalidTensor if the tensors of planes have inconsistent shapes.

    native.cpp gets the number of rows and columns once, and computes all addresses from them.
    """
    rows, k = planes.codes[0].shape[:-2], planes.shape[-1]
    layout = [(codes.dtype, codes.shape[-1]) for codes in planes.codes]
    if layout != [(torch.uint8, 4 * bits) for bits in WIDTHS.get(planes.bits, ())]:
        raise InvalidTensor(f"has planes of codes {layout}, expected those of 1 to 8 bits")
    groups = planes.scale.shape[-1] if planes.scale.ndim else 0
    shared = next((t.shape[-1] for t in (planes.d, planes.m) if t is not None), groups)
    if not groups or not shared or k % groups or groups % shared:
        raise InvalidTensor(f"has planes of {k} columns, {groups} groups and {shared} superblocks")
    if planes.group != 16 and planes.group % CELL:
        raise InvalidTensor(
            f"has planes in groups of {planes.group}, expected 16 or a multiple of {CELL}"
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


class FloatArgs(KernelArgs):
    """Arguments of products in float32."""

    functions = MATMUL_EXACT

    def __init__(self, weight: InterleavedPlanes) -> None:
        super().__init__(weight)
        struct, table, bits = self.struct, weight.template.table, weight.template.bits
        if table is None and bits > 4:
            struct.zero_residual = struct.shared_zero
            return
        values = torch.arange(2**bits) if table is None else table
        values = values.float() - struct.shared_zero
        struct.is_e4m3 = len(values) == 256 and torch.allclose(values, e4m3_values(), 0, 0, True)
        # The kernel loads 16 values at once, whatever the number of bits.
        padded = torch.nn.functional.pad(values, (0, max(0, 16 - len(values))))
        struct.code_values = self.address(padded)


def e4m3_values() -> Tensor:
    """The 256 values of torch.float8_e4m3fn, float32."""
    return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()


class IntegerArgs(KernelArgs):
    """Arguments of integer products. Raises NotIntegers if the table is not integers."""

    def __init__(self, weight: InterleavedPlanes) -> None:
        super().__init__(weight)
        struct, table = self.struct, weight.template.table
        if table is not None:
            if (as_bytes := table_as_bytes(table)) is None:
                raise NotIntegers
            values, struct.table_unit = as_bytes
            padded = torch.nn.functional.pad(values, (0, 16 - len(values)))
            struct.code_bytes = self.address(padded)
            struct.zero_point = BYTE_ZERO
        zero = struct.shared_zero / struct.table_unit
        # The kernel sums zero_point * q in int32: a large or fractional zero is applied in float.
        if zero.is_integer() and abs(zero) < 2**15:
            struct.zero_point += int(zero)
        else:
            struct.zero_residual = struct.shared_zero


class NotIntegers(Exception):
    """A code table cannot be represented as bytes."""


def weight_of(planes: Planes | NativeWeight) -> NativeWeight:
    """The interleaved weight; converts planes for this one call."""
    return planes if isinstance(planes, NativeWeight) else NativeWeight(planes)


def run(x: Tensor, args: KernelArgs, expert_of_row: Tensor | None = None) -> Tensor:
    SIGNATURE(x, expert_of_row, k=args.k)
    y = torch.empty(x.shape[0], args.n, dtype=x.dtype)
    experts = None if expert_of_row is None else expert_of_row.data_ptr()
    call = args.functions[x.dtype]
    call(args.pointer, x.data_ptr(), x.stride(0), experts, x.shape[0], y.data_ptr())
    return y


def matmul(x: Tensor, planes: Planes | NativeWeight) -> Tensor:
    """See the package; quantizes activations."""
    return run(x, weight_of(planes).integers)


def matmul_exact(x: Tensor, planes: Planes | NativeWeight) -> Tensor:
    """See the package."""
    return run(x, weight_of(planes).floats)


def grouped_matmul(x: Tensor, planes: Planes | NativeWeight, expert_of_row: Tensor) -> Tensor:
    """See the package; quantizes activations."""
    return run(x, weight_of(planes).integers, expert_of_row.contiguous())


def grouped_matmul_exact(x: Tensor, planes: Planes | NativeWeight, expert_of_row: Tensor) -> Tensor:
    """See the package."""
    return run(x, weight_of(planes).floats, expert_of_row.contiguous())


def dequantize(planes: Planes | NativeWeight, dtype: torch.dtype) -> Tensor:
    """See the package: the same bits as the naive kernel."""
    args, weight = weight_of(planes).args(KernelArgs), torch.empty(planes.shape, dtype=dtype)
    DEQUANTIZE[dtype](args.pointer, weight.data_ptr())
    return weight
