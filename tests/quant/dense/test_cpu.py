"""Dense matmul on CPU: both layouts give the product and give the weight back."""

from __future__ import annotations

import pytest
import torch

from ostro.quant.dense import cpu

LAYOUTS = ["plain", "blocked"]
ROWS = [0, 1, 2, 7, 8, 64, 65, 130]


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Packs as a CPU with AMX tiles does, or as one without."""
    tiles = request.param == "plain"
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: tiles)
    return str(request.param)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", ROWS)
def test_product(layout: str, dtype: torch.dtype, rows: int) -> None:
    if not cpu.packable(dtype):
        pytest.skip(f"{dtype} is not packed on this CPU")
    torch.manual_seed(rows)
    weight, x = torch.randn(77, 65).to(dtype), torch.randn(rows, 65).to(dtype)
    packed = cpu.pack(weight)
    assert packed.is_mkldnn == (layout == "blocked")
    y = cpu.matmul(x, packed)
    assert y.shape == (rows, 77) and y.dtype == dtype and y.is_contiguous()
    exact = x.double() @ weight.double().T
    error = 1e-5 if dtype == torch.float32 else 0.01
    torch.testing.assert_close(y.double(), exact, rtol=error, atol=error * 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_unpack_is_exact(layout: str, dtype: torch.dtype) -> None:
    if not cpu.packable(dtype):
        pytest.skip(f"{dtype} is not packed on this CPU")
    weight = torch.randn(33, 70).to(dtype)
    assert torch.equal(cpu.unpack(cpu.pack(weight)), weight)


def test_plain_keeps_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    weight = torch.randn(32, 64)
    packed = cpu.pack(weight)
    assert packed.data_ptr() == weight.data_ptr() == cpu.unpack(packed).data_ptr()


def test_plain_is_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a tensor mapped from the middle of a file is not."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    weight = torch.randn(4 * 16 + 2)[2:].view(4, 16)
    assert weight.data_ptr() % cpu.LINE
    assert cpu.pack(weight).data_ptr() % cpu.LINE == 0
    assert torch.equal(cpu.pack(weight), weight)


def test_leading_dimensions(layout: str) -> None:
    weight, x = torch.randn(6, 5), torch.randn(2, 3, 5)
    torch.testing.assert_close(cpu.matmul(x, cpu.pack(weight)), x @ weight.T)
