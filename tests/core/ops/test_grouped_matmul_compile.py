"""The grouped matmul in machine code: nothing spills, and a program fits any target."""

from __future__ import annotations

import pytest
import torch

from ostro.plugins.conformance.kernels import compile_for, targets

SHARED = 64 << 10
"""Bytes of shared memory that the smallest target gives a program."""


@pytest.mark.parametrize("target", targets())
@pytest.mark.parametrize(
    ("dtype", "rows"), [(torch.bfloat16, 8), (torch.bfloat16, 4096), (torch.float32, 8)], ids=str
)
@pytest.mark.parametrize("shape", [(8, 28672, 4096), (128, 2048, 768)], ids=str)
def test_compiles_without_spills(
    shape: tuple[int, int, int], dtype: torch.dtype, rows: int, target: str
) -> None:
    """The experts of Mixtral and of Qwen3 30B-A3B."""
    if dtype == torch.bfloat16 and target == "sm_75":
        dtype = torch.float16
    x = torch.empty(rows, shape[2], dtype=dtype, device="meta")
    weight = torch.empty(shape, dtype=dtype, device="meta")
    expert_of_row = torch.empty(rows, dtype=torch.int64, device="meta")
    call = "ostro.core.ops.grouped_matmul.triton:grouped"
    (build,) = compile_for(target, call, x, weight, expert_of_row)
    assert build.spills == 0
    assert build.shared <= SHARED
