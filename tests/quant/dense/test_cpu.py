"""Dense matmul on CPU: both layouts give the product and give the weight back."""

from __future__ import annotations

import pytest
import torch

from ostro import Stored
from ostro.ops import Target
from ostro.quant.dense import cpu, panels
from ostro.quant.dense.storage import Dense

LAYOUTS = ["plain", "blocked", "panels"]
ROWS = [0, 1, 2, 7, 8, 64, 65, 130]


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Packs as a CPU with AMX tiles does, as one that multiplies panels, or as one without both."""
    tiles = request.param == "plain"
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: tiles)
    if request.param != "panels":
        monkeypatch.setattr(panels, "supported", lambda dtype: False)
    elif not panels.supported(torch.bfloat16):
        pytest.skip("other layouts are faster on this CPU")
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


@pytest.mark.skipif(torch.cpu._is_avx512_bf16_supported(), reason="bits are those of oneDNN")
@pytest.mark.parametrize("layout", ["panels"], indirect=True)
def test_a_row_has_the_same_bits_in_every_batch(layout: str) -> None:
    packed, x = cpu.pack(torch.randn(123, 1066).bfloat16()), torch.randn(520, 1066).bfloat16()
    y = cpu.matmul(x, packed)
    for rows in (slice(1), slice(2), slice(3, 8), slice(511, 520)):
        assert torch.equal(cpu.matmul(x[rows], packed), y[rows])


@pytest.mark.skipif(not torch.cpu._is_avx512_bf16_supported(), reason="other bits than oneDNN's")
@pytest.mark.skipif("v3.12." not in torch.__config__.show(), reason="another oneDNN")
@pytest.mark.skipif(torch.cpu._is_amx_tile_supported(), reason="oneDNN multiplies in AMX tiles")
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


def read(weight: torch.Tensor, dtype: torch.dtype) -> Dense:
    shape, device = tuple(weight.shape), weight.device
    return Dense.read(
        Stored(tensors={"weight": weight}, infos={}, shape=shape, device=device, dtype=dtype)
    )


FLOAT_PANELS = pytest.mark.skipif(
    not panels.supported(torch.float32), reason="other layouts are faster on this CPU"
)


@FLOAT_PANELS
def test_bfloat16_weights_stay_bfloat16_in_float32_models() -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(192, 130).bfloat16(), torch.randn(2, 11, 130)
    storage = read(weight, torch.float32)
    target = Target(device=weight.device, dtype=torch.float32)
    assert storage.finalize(target, embedding=True) == "panels of 64 rows in bfloat16"
    assert storage.nbytes == weight.nbytes
    y = storage.matmul(x)
    assert y.dtype == torch.float32 and y.shape == (2, 11, 192)
    torch.testing.assert_close(y.double(), x.double() @ weight.double().T, rtol=1e-5, atol=1e-5)
    ids = torch.tensor([191, 3])
    assert torch.equal(storage.rows(ids), weight[ids].float())
    assert torch.equal(storage.dequantize(1, 3), weight[1:3].float())
    assert torch.equal(storage.save()["weight"], weight)


@FLOAT_PANELS
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("k", [2, 1066, 1088])
def test_float32_rows_have_the_same_bits_in_every_batch(rows: int, k: int) -> None:
    packed, x = cpu.pack(torch.randn(123, k).bfloat16(), torch.float32), torch.randn(520, 2 * k)
    y = cpu.matmul(x[:, :k], packed)
    torch.testing.assert_close(y, x[:, :k] @ cpu.unpack(packed).float().T, rtol=1e-4, atol=1e-4)
    assert torch.equal(cpu.matmul(x[:rows, :k], packed), y[:rows])


@FLOAT_PANELS
def test_parts_in_bfloat16_and_float32_are_fused_in_float32() -> None:
    narrow, wide = torch.randn(64, 32).bfloat16(), torch.randn(64, 32)
    fused = Dense.fuse([read(narrow, torch.float32), read(wide, torch.float32)])
    assert fused is not None and fused.dtype == torch.float32
    assert torch.equal(fused.dequantize(), torch.cat([narrow.float(), wide]))
    same = Dense.fuse([read(narrow, torch.float32), read(narrow, torch.float32)])
    assert same is not None and same.dtype == torch.float32
    assert same.nbytes == 2 * narrow.nbytes


@FLOAT_PANELS
@pytest.mark.parametrize(
    ("shape", "deterministic"),
    [((65, 64), False), ((128, 63), False), ((3, 64, 32), False), ((128, 64), True)],
)
def test_weights_that_are_not_in_panels_are_cast(
    shape: tuple[int, ...], deterministic: bool
) -> None:
    weight = torch.randn(shape).bfloat16()
    storage = read(weight, torch.float32)
    target = Target(device=weight.device, dtype=torch.float32, deterministic=deterministic)
    storage.finalize(target)
    assert storage.nbytes == 2 * weight.nbytes
    x, expert = torch.randn(2, shape[-1]), torch.tensor([0, 2])
    if len(shape) == 3:
        expected = torch.stack([weight[0].float() @ x[0], weight[2].float() @ x[1]])
        torch.testing.assert_close(storage.grouped(x, expert), expected)
    else:
        torch.testing.assert_close(storage.matmul(x), x @ weight.float().T)


@pytest.mark.parametrize("layout", ["panels"], indirect=True)
@pytest.mark.parametrize("shape", [(65, 64), (128, 63)], ids=["too much padding", "odd columns"])
def test_shapes_that_panels_do_not_fit(layout: str, shape: tuple[int, int]) -> None:
    weight = torch.randn(shape).bfloat16()
    packed = cpu.pack(weight)
    assert cpu.layout_of(packed) == ("blocked" if cpu.is_blockable(weight.dtype) else "plain")
    assert torch.equal(cpu.unpack(packed), weight)


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
