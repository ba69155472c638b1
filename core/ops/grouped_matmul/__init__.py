"""Grouped matmul: every row times the weight of its own expert.

    grouped(x, weight, expert_of_row) -> [t, n]

x [t, k], rows sorted by expert, last dimension contiguous; weight [experts, n, k] of x's dtype,
contiguous; expert_of_row [t] int64, ascending, each within 0..experts - 1. Row r of the answer is
weight[expert_of_row[r]] @ x[r], summed in float32 and rounded once to x's dtype. An expert may have
any number of rows, none as well. Which kernel runs and how it is launched depends on shapes alone,
so that a launch can be captured.
"""

import torch

from ostro.core.native import DTYPES
from ostro.core.ops.choose import Kernel

HALVES = (torch.float16, torch.bfloat16)

KERNELS = (
    Kernel(
        name="triton",
        call=f"{__name__}.triton:grouped",
        devices=("cuda",),
        dtypes=(*HALVES, torch.float32),
    ),
    Kernel(
        name="triton_fixed",
        call=f"{__name__}.triton:grouped_fixed",
        devices=("cuda",),
        dtypes=(*HALVES, torch.float32),
        deterministic=True,
    ),
    Kernel(name="native", call=f"{__name__}.native:grouped", devices=("cpu",), dtypes=DTYPES),
    Kernel(
        name="native_fixed",
        call=f"{__name__}.native:grouped_fixed",
        devices=("cpu",),
        dtypes=DTYPES,
        deterministic=True,
    ),
    Kernel(name="cpu", call=f"{__name__}.cpu:grouped", devices=("cpu",)),
    Kernel(name="naive", call=f"{__name__}.naive:grouped", deterministic=True),
)
