"""rms_norm: the naive version against transformers, the kernel against the naive version."""

import pytest
import torch

from ostro.core.ops.rms_norm import naive, native, triton
from ostro.plugins.conformance.kernels import DEVICE, poison


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matches_transformers(dtype: torch.dtype) -> None:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    torch.manual_seed(0)
    norm = llama.LlamaRMSNorm(96, eps=1e-3)
    norm.weight.data.normal_(1, 0.3)
    x = torch.randn(3, 5, 96).to(dtype) * 0.05
    y, residual = naive.rms_norm(x, norm.weight.detach(), 1e-3)
    # transformers rounds once more, before the weight
    rtol = 1e-6 if dtype == torch.float32 else 1.2e-2
    torch.testing.assert_close(y, norm(x).to(dtype), atol=0, rtol=rtol)
    assert residual is x


def test_adds_the_residual_in_the_inputs_type() -> None:
    x, residual = torch.tensor([[256.0]]).bfloat16(), torch.tensor([[1.0]]).bfloat16()
    y, total = naive.rms_norm(x, torch.ones(1), 0.0, residual)
    assert total.item() == 256.0 and y.item() == 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    "shape", [(1, 7), (5, 100), (3, 1), (2, 3, 128), (2, 2, 3, 33), (3, 2050), (64,)]
)
@pytest.mark.parametrize("residual", [False, True], ids=["plain", "residual"])
def test_triton(shape: tuple[int, ...], dtype: torch.dtype, residual: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape, device=DEVICE).to(dtype)
    added = torch.randn(shape, device=DEVICE).to(dtype) if residual else None
    weight = torch.randn(shape[-1], device=DEVICE)
    with poison():
        y, total = triton.rms_norm(x, weight, 1e-6, added)
    expected, sum = naive.rms_norm(x, weight, 1e-6, added)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(total, sum, atol=0, rtol=0)
    assert residual or total is x


def test_triton_takes_heads_of_fused_rows() -> None:
    torch.manual_seed(0)
    fused = torch.randn(5, 6 * 24, device=DEVICE)
    heads = fused.view(5, 6, 24)[:, 2:4]
    weight = torch.randn(24, device=DEVICE)
    with poison():
        y, _ = triton.rms_norm(heads, weight, 1e-6)
    torch.testing.assert_close(y, naive.rms_norm(heads, weight, 1e-6)[0])


@pytest.mark.parametrize(
    ("dtype", "weight_dtype"),
    [
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.bfloat16, torch.bfloat16),
    ],
)
@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("residual", [False, True], ids=["plain", "residual"])
def test_native(rows: int, dtype: torch.dtype, weight_dtype: torch.dtype, residual: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(rows, 3, 100).to(dtype)[:, 1:, 3:73]
    added = torch.randn(rows, 2, 70).to(dtype) if residual else None
    weight = torch.randn(70).to(weight_dtype)
    before = x.clone()
    with poison():
        y, total = native.rms_norm(x, weight, 1e-6, added)
    expected, sum = naive.rms_norm(x, weight, 1e-6, added)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(total, sum, atol=0, rtol=0)
    assert torch.equal(x, before)
