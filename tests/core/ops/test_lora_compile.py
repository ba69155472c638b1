"""What adapters add, in machine code: nothing spills, and a program fits any target."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ostro.plugins.conformance.kernels import compile_for, targets

SHARED = 16 << 10
"""Bytes of shared memory that leave room for several programs on the smallest target."""


def empty(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize("target", targets())
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("rows", [8, 4096])
@pytest.mark.parametrize(
    ("k", "widths", "experts"),
    [(4096, (4096, 1024, 1024), 1), (768, (2048,), 128)],
    ids=["Llama's q, k, v", "experts"],
)
def test_compiles_without_spills(
    k: int, widths: tuple[int, ...], experts: int, rows: int, dtype: torch.dtype, target: str
) -> None:
    if dtype == torch.bfloat16 and target == "sm_75":
        dtype = torch.float16
    n = sum(widths)
    builds = compile_for(
        target,
        "ostro.core.ops.lora.triton:lora",
        empty(rows, k, dtype=dtype),
        empty(rows, n, dtype=dtype),
        empty(64 * experts, len(widths), 16, k, dtype=dtype),
        empty(64 * experts, 16, n, dtype=dtype),
        widths,
        empty(33, 4, dtype=torch.int32),
        empty(33, 4, dtype=torch.float32),
        empty(rows, dtype=torch.int32),
        empty(rows, dtype=torch.int64) if experts > 1 else None,
        experts,
    )
    assert [build.kernel for build in builds] == ["lora_shrink", "lora_expand"]
    for build in builds:
        assert build.spills == 0, build.kernel
        assert build.shared <= SHARED, build.kernel
