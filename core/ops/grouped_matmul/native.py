"""Grouped matmul on CPU: a C++ kernel for few rows per expert, torch for many."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ostro.core.native import ADDRESS, INT, Arg, Signature, functions, load
from ostro.core.ops.grouped_matmul import cpu

GROUPED = functions(
    load(Path(__file__).with_suffix(".cpp")),
    "grouped",
    *(ADDRESS, ADDRESS, ADDRESS, INT, INT, INT, ADDRESS),
)
SIGNATURE = Signature(
    "grouped",
    weight=Arg("experts n k"),
    x=Arg("rows k"),
    expert_of_row=Arg("rows", torch.int64),
)
# Mean rows per expert from which torch's products are faster. On one core with AVX-512 bfloat16 and
# 8 experts [768, 2048]: 2.6 ms both for 16 rows each, 23 ms (C++) and 17 ms (torch) for 256 rows.
# An AMX tile has 16 rows.
MANY = 16 if torch.cpu._is_amx_tile_supported() else 64


def grouped(x: Tensor, weight: Tensor, expert_of_row: Tensor) -> Tensor:
    """See the package."""
    many = x.shape[0] >= MANY * weight.shape[0]
    return (cpu.grouped if many else grouped_deterministic)(x, weight, expert_of_row)


def grouped_deterministic(x: Tensor, weight: Tensor, expert_of_row: Tensor) -> Tensor:
    """See the package; batch-invariant."""
    x = x.contiguous()
    SIGNATURE(weight, x, expert_of_row)
    rows, (_, n, k) = x.shape[0], weight.shape
    y = x.new_empty(rows, n)
    GROUPED[x.dtype](
        x.data_ptr(),
        weight.data_ptr(),
        expert_of_row.data_ptr(),
        *(rows, n, k),
        y.data_ptr(),
    )
    return y
