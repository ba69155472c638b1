"""Operations on quantized weights in `Planes`: matrix products and dequantization.

    matmul(x, planes) -> [t, n]
    matmul_parts(x, [planes, ...]) -> [t, n of all planes], or None
    grouped_matmul(x, planes, expert_of_row) -> [t, n]
    dequantize(planes, dtype) -> [..., k]

x [t, k] of the model's dtype, last dimension contiguous. The planes have shape [n, k], for
`grouped_matmul` [experts, n, k] with expert_of_row [t] int64, ascending. Sums are float32, rounded
once to x's dtype. A deterministic kernel is batch-invariant: a row's bits depend on no other row.
`matmul_parts` concatenates the results of `matmul`; it returns None if it does not combine these
products: those of many rows, or of a weight whose x is not quantized.
`dequantize` computes in float32 and rounds once to `dtype`.

Kernels marked `quantizes_activations` first quantize every 32 neighbours of a row of x to int8 with
one scale, as llama.cpp does (`naive.quantize_activations`), whatever the number of rows. Kernels
named "exact" keep x in its dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ostro import Kernel

FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def supports_group(facts: Mapping[str, Any]) -> bool:
    """Return whether the compiled kernels support the group size: 16, or whole cells of 32."""
    group = facts["group"]
    return bool(group == 16 or group % 32 == 0)


def cuda_kernels(function: str) -> tuple[Kernel, ...]:
    """The Triton kernels of an operation (`quant.planes.quant_matmul.triton`)."""
    kinds = [("triton", function, True), ("triton exact", f"{function}_exact", False)]
    return tuple(
        Kernel(
            name=name + (", row by row" if deterministic else ""),
            call=f"{__name__}.triton:{call}" + ("_deterministic" if deterministic else ""),
            devices=("cuda",),
            dtypes=FLOATS,
            deterministic=deterministic,
            quantizes_activations=quantizes,
            fits=supports_group,
        )
        for deterministic in (False, True)
        for name, call, quantizes in kinds
    )


def cpu_kernels(function: str) -> tuple[Kernel, ...]:
    """The C++ kernels of an operation, which are deterministic for any number of rows."""
    kinds = [("native", function, True), ("native exact", f"{function}_exact", False)]
    return tuple(
        Kernel(
            name=name,
            call=f"{__name__}.native:{call}",
            devices=("cpu",),
            dtypes=FLOATS,
            deterministic=True,
            quantizes_activations=quantizes,
            layout=f"{__name__}.native:NativeWeight",
            fits=supports_group,
        )
        for name, call, quantizes in kinds
    )


def naive_kernels(function: str) -> tuple[Kernel, ...]:
    """The torch kernels of an operation.

    Without a C++ compiler, the CPU uses the first two. They quantize activations as the C++ kernels
    do, so that a greedy answer does not depend on the compiler.
    """
    kinds = [("naive int8", f"{function}_int8", True), ("naive", function, False)]
    return tuple(
        Kernel(
            name=name + (", row by row" if deterministic else ", blocks of rows"),
            call=f"{__name__}.naive:{call}" + ("_deterministic" if deterministic else ""),
            devices=("cpu",) if quantizes else ("cpu", "cuda"),
            dtypes=FLOATS if quantizes else None,
            deterministic=deterministic,
            quantizes_activations=quantizes,
            fits=supports_group if quantizes else None,
        )
        for name, call, quantizes in kinds
        for deterministic in (False, True)
    )


def kernels(function: str) -> tuple[Kernel, ...]:
    """All kernels of an operation, in order of preference."""
    return (*cuda_kernels(function), *cpu_kernels(function), *naive_kernels(function))


MATMUL = kernels("matmul")
MATMUL_PARTS = (
    *(kernel for kernel in cuda_kernels("matmul_parts") if kernel.quantizes_activations),
    Kernel(name="naive", call=f"{__name__}.naive:matmul_parts"),
)
GROUPED_MATMUL = kernels("grouped_matmul")
DEQUANTIZE = (
    Kernel(
        name="triton",
        call=f"{__name__}.triton:dequantize",
        devices=("cuda",),
        dtypes=FLOATS,
        deterministic=True,
        fits=supports_group,
    ),
    Kernel(
        name="native",
        call=f"{__name__}.native:dequantize",
        devices=("cpu",),
        dtypes=FLOATS,
        deterministic=True,
        fits=supports_group,
    ),
    Kernel(name="naive", call=f"{__name__}.naive:dequantize", deterministic=True),
)
