"""The interpreted kernel matches the naive one, and compiles for GPU targets without a GPU."""

import pytest
import torch
from ostro_arch_arcee import kernels, naive

from ostro.testing import DEVICE, compile_for, poison, targets

SHAPES = [(1, 1), (3, 7), (5, 1024), (2, 1025), (4, 2, 33), (0, 8)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_squared_relu_matches_the_naive_kernel(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    wide = torch.randn(*shape[:-1], shape[-1] + 3, device=DEVICE).to(dtype)
    x = wide[..., 3:]
    with poison():
        y = kernels.squared_relu(x)
    torch.testing.assert_close(y, naive.squared_relu(x))
    assert y.is_contiguous()


@pytest.mark.parametrize("target", targets())
def test_it_compiles_without_spills(target: str) -> None:
    x = torch.empty(64, 18432, dtype=torch.bfloat16, device="meta")
    (build,) = compile_for(target, "ostro_arch_arcee.kernels:squared_relu", x)
    assert build.spills == 0
    assert build.registers <= 64
