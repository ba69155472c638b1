"""Products with weights in planes (`quant.planes.planes`), and the weights as floats again.

    product(x, planes) -> [t, n]
    grouped(x, planes, expert_of_row) -> [t, n]
    dequantize(planes, dtype) -> [..., k]

x [t, k] of the model's dtype, last dimension contiguous. Planes of [n, k], for `grouped` of
[experts, n, k] with expert_of_row [t] int64, ascending. Sums are float32, rounded once to x's
dtype; a row's bits depend on no other row where a kernel is deterministic. `dequantize` computes in
float32, rounded once to `dtype`.

Kernels marked `quantizes_activations` do as llama.cpp's: every 32 neighbours of a row of x become
8-bit integers and a scale first (`naive.rounded`), whatever the number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ostro import Kernel

FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def even(facts: Mapping[str, Any]) -> bool:
    """Groups that kernels know: of 16, or of whole cells."""
    group = facts["group"]
    return bool(group == 16 or group % 32 == 0)


def on_cuda(verb: str) -> tuple[Kernel, ...]:
    """Those in Triton; `quant.planes.quant_matmul.triton` says what each does."""
    kinds = [("triton", verb, True), ("triton exact", f"{verb}_exact", False)]
    return tuple(
        Kernel(
            name=name + ", row by row" * fixed,
            call=f"{__name__}.triton:{call}" + "_fixed" * fixed,
            devices=("cuda",),
            dtypes=FLOATS,
            deterministic=fixed,
            quantizes_activations=rounds,
            fits=even,
        )
        for fixed in (False, True)
        for name, call, rounds in kinds
    )


def on_cpu(verb: str) -> tuple[Kernel, ...]:
    """Those in C++, the same for any number of rows."""
    kinds = [("native", verb, True), ("native exact", f"{verb}_exact", False)]
    return tuple(
        Kernel(
            name=name,
            call=f"{__name__}.native:{call}",
            devices=("cpu",),
            dtypes=FLOATS,
            deterministic=True,
            quantizes_activations=rounds,
            layout=f"{__name__}.native:Weight",
            fits=even,
        )
        for name, call, rounds in kinds
    )


def kernels(verb: str) -> tuple[Kernel, ...]:
    """The ways to run one of the verbs, in order of preference."""
    here = __name__
    return (
        *on_cuda(verb),
        *on_cpu(verb),
        Kernel(
            name="naive, blocks of rows",
            call=f"{here}.naive:{verb}",
            deterministic=False,
        ),
        Kernel(name="naive, row by row", call=f"{here}.naive:{verb}_fixed", deterministic=True),
    )


PRODUCT = kernels("product")
GROUPED = kernels("grouped")
DEQUANTIZE = (
    Kernel(
        name="triton",
        call=f"{__name__}.triton:dequantize",
        devices=("cuda",),
        dtypes=FLOATS,
        deterministic=True,
        fits=even,
    ),
    Kernel(
        name="native",
        call=f"{__name__}.native:dequantize",
        devices=("cpu",),
        dtypes=FLOATS,
        deterministic=True,
        fits=even,
    ),
    Kernel(name="naive", call=f"{__name__}.naive:dequantize", deterministic=True),
)
