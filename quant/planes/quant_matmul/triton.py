"""Triton matrix products with quantized weights: the plan of a product for its number of rows.

Few rows use the vector kernels (`gemv`), more use tiles that dequantize in registers (`gemm`), and
many use a dense product with the weight dequantized once. All three quantize x to the same values:
`gemv` multiplies integers, `gemm` the rounded values as float16, the dense product those in x's
dtype. If the code table holds values that are not integers times a power of two, x is not rounded.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ostro.quant.planes.planes import Planes
from ostro.quant.planes.quant_matmul import gemm, gemv
from ostro.quant.planes.quant_matmul.tiles import (
    Dequantize,
    GemvBlock,
    Tile,
    gemv_block,
    grouped_plan,
    matmul_plan,
    parts_block,
)
from ostro.quant.planes.quant_matmul.weight import TritonWeight, prepare


def matmul(x: Tensor, planes: Planes) -> Tensor:
    """See the package; quantizes activations."""
    weight = prepare(planes)
    return multiply(x, weight, quantize=weight.has_integer_values)


def matmul_exact(x: Tensor, planes: Planes) -> Tensor:
    """See the package."""
    return multiply(x, prepare(planes), quantize=False)


def matmul_deterministic(x: Tensor, planes: Planes) -> Tensor:
    """As `matmul`, batch-invariant."""
    weight = prepare(planes)
    return multiply_rows(x, weight, quantize=weight.has_integer_values)


def matmul_exact_deterministic(x: Tensor, planes: Planes) -> Tensor:
    """As `matmul_exact`, batch-invariant."""
    return multiply_rows(x, prepare(planes), quantize=False)


def matmul_parts(x: Tensor, parts: Sequence[Planes]) -> Tensor | None:
    """See the package; quantizes activations."""
    weights = [prepare(planes) for planes in parts]
    block = parts_block(weights, x)
    return None if block is None else gemv.multiply_parts(x, weights, block)


def matmul_parts_deterministic(x: Tensor, parts: Sequence[Planes]) -> Tensor | None:
    """As `matmul_parts`, batch-invariant; also of many rows."""
    weights = [prepare(planes) for planes in parts]
    if not all(weight.has_integer_values for weight in weights):
        return None
    return gemv.multiply_parts(x, weights, gemv_block(weights[0], 1, floats=False))


def grouped_matmul(x: Tensor, planes: Planes, expert_of_row: Tensor) -> Tensor:
    """See the package; quantizes activations."""
    weight = prepare(planes)
    return multiply_experts(x, weight, expert_of_row, quantize=weight.has_integer_values)


def grouped_matmul_exact(x: Tensor, planes: Planes, expert_of_row: Tensor) -> Tensor:
    """See the package."""
    return multiply_experts(x, prepare(planes), expert_of_row, quantize=False)


def grouped_matmul_deterministic(x: Tensor, planes: Planes, expert_of_row: Tensor) -> Tensor:
    """As `grouped_matmul`, batch-invariant."""
    weight = prepare(planes)
    return multiply_rows(x, weight, expert_of_row, quantize=weight.has_integer_values)


def grouped_matmul_exact_deterministic(x: Tensor, planes: Planes, expert_of_row: Tensor) -> Tensor:
    """As `grouped_matmul_exact`, batch-invariant."""
    return multiply_rows(x, prepare(planes), expert_of_row, quantize=False)


def dequantize(planes: Planes, dtype: torch.dtype) -> Tensor:
    """See the package."""
    weight = prepare(planes)
    return gemm.dequantize(weight, 0, weight.matrices * weight.n, dtype).view(planes.shape)


def multiply(x: Tensor, weight: TritonWeight, *, quantize: bool) -> Tensor:
    """x [t, k] -> [t, n] as the plan for t rows says."""
    plan = matmul_plan(weight, x, quantize=quantize)
    if isinstance(plan, GemvBlock):
        return gemv.multiply(x, weight, plan, quantize=quantize)
    if isinstance(plan, Tile):
        return gemm.matmul(x, weight, plan, quantize=quantize)
    return multiply_dense(x, weight, plan, quantize=quantize)


def multiply_rows(
    x: Tensor, weight: TritonWeight, expert_of_row: Tensor | None = None, *, quantize: bool
) -> Tensor:
    """x [t, k] -> [t, n], each row by itself."""
    block = gemv_block(weight, 1, floats=not quantize)
    return gemv.multiply(x, weight, block, expert_of_row, quantize=quantize)


def multiply_experts(
    x: Tensor, weight: TritonWeight, expert_of_row: Tensor, *, quantize: bool
) -> Tensor:
    """x [t, k] -> [t, n], each row with its expert's matrix."""
    plan = grouped_plan(weight, x, quantize=quantize)
    if isinstance(plan, GemvBlock):
        return gemv.multiply(x, weight, plan, expert_of_row, quantize=quantize)
    return gemm.grouped_matmul(x, weight, plan, expert_of_row, quantize=quantize)


def multiply_dense(x: Tensor, weight: TritonWeight, plan: Dequantize, *, quantize: bool) -> Tensor:
    """x [t, k] -> [t, n] by dense products with parts of the dequantized weight."""
    x = gemv.quantize_to_floats(x) if quantize else x
    y = x.new_empty(len(x), weight.n)
    step = max(1, plan.elements // x.shape[1])
    for start in range(0, weight.n, step):
        stop = min(start + step, weight.n)
        torch.mm(x, gemm.dequantize(weight, start, stop, x.dtype).t(), out=y[:, start:stop])
    return y
