"""act_mul: the naive version against written-out formulas, the kernel against the naive version."""

import math

import pytest
import torch

from ostro.core.errors import ConfigError
from ostro.core.ops.act_mul import naive, native, triton
from ostro.plugins.conformance.kernels import DEVICE, poison

FORMULAS = {
    "silu": lambda g: g / (1 + math.exp(-g)),
    "gelu": lambda g: g * (1 + math.erf(g / math.sqrt(2))) / 2,
    "gelu_tanh": lambda g: g * (1 + math.tanh(math.sqrt(2 / math.pi) * (g + 0.044715 * g**3))) / 2,
    "relu": lambda g: max(g, 0.0),
}


@pytest.mark.parametrize("act", FORMULAS)
def test_formula(act: str) -> None:
    gates, ups = [-30.0, -2.0, -0.5, 0.0, 0.5, 2.0, 30.0], [3.0, -2.0, 1.0, 5.0, -1.0, 0.5, 1.0]
    y = naive.act_mul(torch.tensor([gates + ups]), act)
    expected = [FORMULAS[act](gate) * up for gate, up in zip(gates, ups, strict=True)]
    torch.testing.assert_close(y, torch.tensor([expected]))


@pytest.mark.parametrize("module", [naive, triton, native], ids=["naive", "triton", "native"])
def test_unknown_activation_is_named(module: object) -> None:
    with pytest.raises(ConfigError, match=r"gelu_tan.*nearest: gelu_tanh"):
        module.act_mul(torch.zeros(1, 2), "gelu_tan")  # type: ignore[attr-defined]


@pytest.mark.parametrize("act", FORMULAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("shape", [(1, 2), (3, 5, 14), (2, 2100)])
def test_triton(shape: tuple[int, ...], dtype: torch.dtype, act: str) -> None:
    torch.manual_seed(0)
    x = (torch.randn(shape, device=DEVICE) * 4).to(dtype)
    with poison():
        y = triton.act_mul(x, act)
    torch.testing.assert_close(y, naive.act_mul(x, act))


def test_triton_takes_strided_rows() -> None:
    x = torch.randn(4, 40, device=DEVICE)[:, 3:25]
    with poison():
        y = triton.act_mul(x, "silu")
    torch.testing.assert_close(y, naive.act_mul(x, "silu"))


@pytest.mark.parametrize("act", FORMULAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 40])
def test_native(rows: int, dtype: torch.dtype, act: str) -> None:
    torch.manual_seed(0)
    x = (torch.randn(rows, 2 * 33 + 4) * 4).to(dtype)[:, 3:69]
    with poison():
        y = native.act_mul(x, act)
    torch.testing.assert_close(y, naive.act_mul(x, act))
