"""Dense matmul on CPU: both layouts give the product and give the weight back."""

from __future__ import annotations

import pytest
import torch

from ostro.ops import Target
from ostro.quant.dense import cpu
from ostro.quant.dense.storage import Dense

LAYOUTS = ["plain", "blocked", "panels"]
ROWS = [0, 1, 2, 7, 8, 64, 65, 130]


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Packs as a CPU with AMX tiles does, as one with AVX512-BF16, or as one without both."""
    tiles = request.param == "plain"
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: tiles)
    if request.param != "panels":
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    elif not torch.cpu._is_avx512_bf16_supported():
        pytest.skip("this CPU has no AVX512-BF16")
    return str(request.param)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", ROWS)
def test_product(layout: str, dtype: torch.dtype, rows: int) -> None:
    if not cpu.packable(dtype):
        pytest.skip(f"{dtype} is not packed on this CPU")
    torch.manual_seed(rows)
    weight, x = torch.randn(123, 1066).to(dtype), torch.randn(rows, 1066).to(dtype)
    packed = cpu.pack(weight)
    expected = "blocked" if layout == "panels" and dtype == torch.float32 else layout
    assert cpu.layout_of(packed) == expected
    y = cpu.matmul(x, packed)
    assert y.shape == (rows, 123) and y.dtype == dtype and y.is_contiguous()
    exact = x.double() @ weight.double().T
    error = 1e-5 if dtype == torch.float32 else 0.01
    torch.testing.assert_close(y.double(), exact, rtol=error, atol=error * 32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_unpack_is_exact(layout: str, dtype: torch.dtype) -> None:
    if not cpu.packable(dtype):
        pytest.skip(f"{dtype} is not packed on this CPU")
    for shape in ((120, 70), (64, 2), (128, 64), (123, 66)):
        weight = torch.randn(shape).to(dtype)
        assert torch.equal(cpu.unpack(cpu.pack(weight)), weight)


@pytest.mark.skipif("v3.12." not in torch.__config__.show(), reason="another oneDNN")
@pytest.mark.parametrize("layout", ["panels"], indirect=True)
@pytest.mark.parametrize("k", [256, 1024, 1088, 3000])
def test_panels_have_the_bits_of_blocks(layout: str, k: int) -> None:
    """So that the text of a model is the same without a C++ compiler."""
    weight, x = torch.randn(1024, k).bfloat16(), torch.randn(40, 2 * k).bfloat16()[:, :k]
    blocks = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    for rows in (x, x[:1], x[3:20]):
        assert torch.equal(cpu.matmul(rows, cpu.pack(weight)), cpu.matmul(rows, blocks))


@pytest.mark.parametrize("layout", ["panels"], indirect=True)
def test_an_embedding_in_panels_has_one_copy(layout: str) -> None:
    weight = torch.randn(128, 64).bfloat16()
    storage = Dense(weight.clone())
    target = Target(device=weight.device, dtype=weight.dtype)
    assert "panels" in storage.finalize(target, embedding=True)
    ids = torch.tensor([0, 127, 64, 63, 5])
    assert torch.equal(storage.rows(ids), weight[ids])
    assert storage.table is None and storage.nbytes == weight.nbytes


@pytest.mark.parametrize("layout", ["panels"], indirect=True)
@pytest.mark.parametrize("shape", [(65, 64), (128, 63)], ids=["too much padding", "odd columns"])
def test_shapes_that_panels_do_not_fit(layout: str, shape: tuple[int, int]) -> None:
    weight = torch.randn(shape).bfloat16()
    assert cpu.layout_of(cpu.pack(weight)) == "blocked"


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
