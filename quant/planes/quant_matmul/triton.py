"""Products with planes in Triton: which kernels take how many rows.

Few rows are multiplied in lanes (`gemv`), more in tiles that dequantize in registers (`gemm`), and
many by the dense product of weights dequantized once. Where x is rounded, it is rounded alike for
all of them: lanes multiply integers, the others the rounded numbers in x's dtype. Tables of values
that are no integers times a power of two multiply x as it is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ostro.quant.planes.planes import Planes
from ostro.quant.planes.quant_matmul import gemm, gemv
from ostro.quant.planes.quant_matmul.tiles import cuts, tensor_cores
from ostro.quant.planes.quant_matmul.weight import Weight, prepare

WORKSPACE = 1 << 26  # weights dequantized at a time


def product(x: Tensor, planes: Planes) -> Tensor:
    """See the package; x is rounded."""
    weight = prepare(planes)
    if not weight.whole:
        return product_exact(x, planes)
    if len(x) <= cuts().few:
        return gemv.words(x, weight, many=ceiling(len(x), cuts().together))
    return many_rows(gemv.round_floats(x), weight)


def product_exact(x: Tensor, planes: Planes) -> Tensor:
    """See the package."""
    weight = prepare(planes)
    if len(x) <= cuts().few:
        return gemv.floats(x, weight, many=ceiling(len(x), 4))
    return many_rows(x, weight)


def product_fixed(x: Tensor, planes: Planes) -> Tensor:
    """As `product`; a row's result has the same bits whatever other rows there are."""
    weight = prepare(planes)
    return gemv.words(x, weight) if weight.whole else gemv.floats(x, weight)


def product_exact_fixed(x: Tensor, planes: Planes) -> Tensor:
    """As `product_exact`, likewise."""
    return gemv.floats(x, prepare(planes))


def grouped(x: Tensor, planes: Planes, expert_of_row: Tensor) -> Tensor:
    """See the package; x is rounded."""
    weight = prepare(planes)
    if not weight.whole:
        return grouped_exact(x, planes, expert_of_row)
    if alone(x, weight):
        return gemv.words(x, weight, expert_of_row)
    return gemm.grouped(gemv.round_floats(x), weight, expert_of_row)


def grouped_exact(x: Tensor, planes: Planes, expert_of_row: Tensor) -> Tensor:
    """See the package."""
    weight = prepare(planes)
    if alone(x, weight):
        return gemv.floats(x, weight, expert_of_row)
    return gemm.grouped(x, weight, expert_of_row)


def grouped_fixed(x: Tensor, planes: Planes, expert_of_row: Tensor) -> Tensor:
    """As `grouped`; a row's result has the same bits whatever other rows there are."""
    weight = prepare(planes)
    rounds = gemv.words if weight.whole else gemv.floats
    return rounds(x, weight, expert_of_row)


def grouped_exact_fixed(x: Tensor, planes: Planes, expert_of_row: Tensor) -> Tensor:
    """As `grouped_exact`, likewise."""
    return gemv.floats(x, prepare(planes), expert_of_row)


def dequantize(planes: Planes, dtype: torch.dtype) -> Tensor:
    """See the package."""
    weight = prepare(planes)
    return gemm.dequantize(weight, 0, weight.matrices * weight.n, dtype).view(planes.shape)


def ceiling(rows: int, most: int) -> int:
    """How many rows a program takes: a power of two."""
    return min(most, 1 << max(rows - 1, 0).bit_length())


def alone(x: Tensor, weight: Weight) -> bool:
    """Whether rows are multiplied one by one: where most have an expert to themselves."""
    return len(x) <= max(cuts().few, weight.matrices // 2) or not tensor_cores(x.dtype)


def many_rows(x: Tensor, weight: Weight) -> Tensor:
    if len(x) <= cuts().some and tensor_cores(x.dtype):
        return gemm.product(x, weight)
    y = x.new_empty(len(x), weight.n)
    step = max(1, WORKSPACE // x.shape[1])
    for start in range(0, weight.n, step):
        stop = min(start + step, weight.n)
        torch.mm(x, gemm.dequantize(weight, start, stop, x.dtype).t(), out=y[:, start:stop])
    return y
