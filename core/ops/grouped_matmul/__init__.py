"""Grouped matmul: multiply each row by the weight of its expert.

    grouped(x, weight, expert_of_row) -> [t, n]

x [t, k], rows sorted by expert, last dimension contiguous; weight [experts, n, k] of x's dtype,
contiguous; expert_of_row [t] int64, ascending, each within 0..experts - 1. Row r of the result is
weight[expert_of_row[r]] @ x[r], summed in float32 and rounded once to x's dtype. An expert may have
any number of rows, including none. The Triton launch depends on shapes only, so that it can be
captured in a graph.
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
        name="triton_deterministic",
        call=f"{__name__}.triton:grouped_deterministic",
        devices=("cuda",),
        dtypes=(*HALVES, torch.float32),
        deterministic=True,
    ),
    Kernel(name="native", call=f"{__name__}.native:grouped", devices=("cpu",), dtypes=DTYPES),
    Kernel(
        name="native_deterministic",
        call=f"{__name__}.native:grouped_deterministic",
        devices=("cpu",),
        dtypes=DTYPES,
        deterministic=True,
    ),
    Kernel(name="cpu", call=f"{__name__}.cpu:grouped", devices=("cpu",)),
    Kernel(name="naive", call=f"{__name__}.naive:grouped", deterministic=True),
)
