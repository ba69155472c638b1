"""layer_norm: the naive kernel against torch, the other kernels against the naive one."""

import pytest
import torch
from torch import Tensor

from ostro.core.ops.layer_norm import naive, native, triton
from ostro.plugins.conformance.kernels import DEVICE, poison

PARAMETERS = pytest.mark.parametrize(
    ("weight", "bias"), [(True, True), (True, False), (False, False)], ids=["both", "weight", "-"]
)


def drawn(d: int, weight: bool, bias: bool, device: str = "cpu") -> tuple[Tensor | None, ...]:
    return tuple(torch.randn(d, device=device) if used else None for used in (weight, bias))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matches_torch(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    norm = torch.nn.LayerNorm(96, eps=1e-3).requires_grad_(False)
    norm.weight.normal_(1, 0.3)
    norm.bias.normal_()
    x = torch.randn(3, 5, 96).to(dtype) * 0.05
    y, residual = naive.layer_norm(x, norm.weight, norm.bias, 1e-3)
    torch.testing.assert_close(y, norm(x.float()).to(dtype), atol=0, rtol=0)
    assert residual is x


def test_adds_the_residual_in_the_inputs_type() -> None:
    x, residual = torch.tensor([[256.0, 0]]).bfloat16(), torch.tensor([[1.0, 0]]).bfloat16()
    y, total = naive.layer_norm(x, None, None, 0.0, residual)
    assert total.tolist() == [[256.0, 0]] and y.tolist() == [[1.0, -1.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    "shape", [(1, 7), (5, 100), (3, 2), (2, 3, 128), (2, 2, 3, 33), (3, 2050), (64,)]
)
@pytest.mark.parametrize("residual", [False, True], ids=["plain", "residual"])
@PARAMETERS
def test_triton(
    shape: tuple[int, ...], dtype: torch.dtype, residual: bool, weight: bool, bias: bool
) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape, device=DEVICE).to(dtype)
    added = torch.randn(shape, device=DEVICE).to(dtype) if residual else None
    parameters = drawn(shape[-1], weight, bias, DEVICE)
    with poison():
        y, total = triton.layer_norm(x, *parameters, 1e-6, added)
    expected, sum = naive.layer_norm(x, *parameters, 1e-6, added)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(total, sum, atol=0, rtol=0)
    assert residual or total is x


def test_triton_takes_heads_of_fused_rows() -> None:
    torch.manual_seed(0)
    fused = torch.randn(5, 6 * 24, device=DEVICE)
    heads = fused.view(5, 6, 24)[:, 2:4]
    parameters = drawn(24, True, True, DEVICE)
    with poison():
        y, _ = triton.layer_norm(heads, *parameters, 1e-6)
    torch.testing.assert_close(y, naive.layer_norm(heads, *parameters, 1e-6)[0])


def test_a_large_mean_does_not_cancel() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 100) + 1000
    expected = torch.nn.functional.layer_norm(x.double(), (100,)).float()
    for y in (
        native.layer_norm(x, None, None, 0.0)[0],
        triton.layer_norm(x.to(DEVICE), None, None, 0.0)[0].cpu(),
    ):
        torch.testing.assert_close(y, expected, atol=1e-3, rtol=0)


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
@PARAMETERS
def test_native(
    rows: int,
    dtype: torch.dtype,
    weight_dtype: torch.dtype,
    residual: bool,
    weight: bool,
    bias: bool,
) -> None:
    torch.manual_seed(0)
    x = torch.randn(rows, 3, 100).to(dtype)[:, 1:, 3:73]
    added = torch.randn(rows, 2, 70).to(dtype) if residual else None
    parameters = [p if p is None else p.to(weight_dtype) for p in drawn(70, weight, bias)]
    before = x.clone()
    with poison():
        y, total = native.layer_norm(x, *parameters, 1e-6, added)
    expected, sum = naive.layer_norm(x, *parameters, 1e-6, added)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(total, sum, atol=0, rtol=0)
    assert torch.equal(x, before)
