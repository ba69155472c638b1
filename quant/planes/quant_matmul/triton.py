"""Triton matrix products with quantized weights: the choice of a kernel by the number of rows.

Few rows use the vector kernels (`gemv`), more use tiles that dequantize in registers (`gemm`), and
many use a dense product with the weight dequantized once. All three quantize x to the same values:
`gemv` multiplies integers, `gemm` the rounded values as float16, the dense product those in x's
dtype. If the code table holds values that are not integers times a power of two, x is not rounded.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ostro.quant.planes.planes import Planes
from ostro.quant.planes.quant_matmul import gemm, gemv
from ostro.quant.planes.quant_matmul.tiles import tensor_cores, tile_limit, tuning
from ostro.quant.planes.quant_matmul.weight import TritonWeight, prepare

WORKSPACE = 1 << 27  # elements of a weight dequantized at a time


def matmul(x: Tensor, planes: Planes) -> Tensor:
    """See the package; quantizes activations."""
    weight = prepare(planes)
    if not weight.has_integer_values:
        return matmul_exact(x, planes)
    if len(x) <= tuning().gemv_rows:
        return gemv.integers(x, weight, rows=block_rows(len(x), tuning().gemv_block_rows))
    return matmul_batch(x, weight, quantize=True)


def matmul_exact(x: Tensor, planes: Planes) -> Tensor:
    """See the package."""
    weight = prepare(planes)
    config = tuning()
    if len(x) <= (config.float_rows if tensor_cores(x.dtype) else config.gemv_rows):
        return gemv.floats(x, weight, rows=block_rows(len(x), config.float_rows))
    return matmul_batch(x, weight, quantize=False)


def matmul_deterministic(x: Tensor, planes: Planes) -> Tensor:
    """As `matmul`, batch-invariant."""
    weight = prepare(planes)
    return gemv.integers(x, weight) if weight.has_integer_values else gemv.floats(x, weight)


def matmul_exact_deterministic(x: Tensor, planes: Planes) -> Tensor:
    """As `matmul_exact`, batch-invariant."""
    return gemv.floats(x, prepare(planes))


def grouped_matmul(x: Tensor, planes: Planes, expert_of_row: Tensor) -> Tensor:
    """See the package; quantizes activations."""
    weight = prepare(planes)
    if not weight.has_integer_values:
        return grouped_matmul_exact(x, planes, expert_of_row)
    if prefers_gemv(x, weight):
        return gemv.integers(x, weight, expert_of_row)
    return gemm.grouped_matmul(x, weight, expert_of_row, quantize=True)


def grouped_matmul_exact(x: Tensor, planes: Planes, expert_of_row: Tensor) -> Tensor:
    """See the package."""
    weight = prepare(planes)
    if prefers_gemv(x, weight):
        return gemv.floats(x, weight, expert_of_row)
    return gemm.grouped_matmul(x, weight, expert_of_row, quantize=False)


def grouped_matmul_deterministic(x: Tensor, planes: Planes, expert_of_row: Tensor) -> Tensor:
    """As `grouped_matmul`, batch-invariant."""
    weight = prepare(planes)
    multiply = gemv.integers if weight.has_integer_values else gemv.floats
    return multiply(x, weight, expert_of_row)


def grouped_matmul_exact_deterministic(x: Tensor, planes: Planes, expert_of_row: Tensor) -> Tensor:
    """As `grouped_matmul_exact`, batch-invariant."""
    return gemv.floats(x, prepare(planes), expert_of_row)


def dequantize(planes: Planes, dtype: torch.dtype) -> Tensor:
    """See the package."""
    weight = prepare(planes)
    return gemm.dequantize(weight, 0, weight.matrices * weight.n, dtype).view(planes.shape)


def block_rows(rows: int, limit: int) -> int:
    """Rows of x per program: the next power of two, at most `limit`."""
    return min(limit, 1 << max(rows - 1, 0).bit_length())


def prefers_gemv(x: Tensor, weight: TritonWeight) -> bool:
    """Return whether to multiply row by row: if most experts have at most one row of x."""
    few = len(x) <= max(tuning().gemv_rows, weight.matrices // 2)
    return few or not tensor_cores(x.dtype)


def matmul_batch(x: Tensor, weight: TritonWeight, *, quantize: bool) -> Tensor:
    """x [t, k] -> [t, n] by tiles, or by dense products with parts of the dequantized weight."""
    if len(x) <= tile_limit(weight) and tensor_cores(x.dtype):
        return gemm.matmul(x, weight, quantize=quantize)
    x = gemv.quantize_to_floats(x) if quantize else x
    y = x.new_empty(len(x), weight.n)
    step = max(1, WORKSPACE // x.shape[1])
    for start in range(0, weight.n, step):
        stop = min(start + step, weight.n)
        torch.mm(x, gemm.dequantize(weight, start, stop, x.dtype).t(), out=y[:, start:stop])
    return y
