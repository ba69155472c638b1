"""The native kernels against naive, with outputs poisoned; and what is done without a compiler."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ostro.core import native as core
from ostro.core.testing.kernels import poison
from ostro.quant import gguf
from ostro.quant.gguf import naive, native
from ostro.quant.gguf.planes import Int8
from ostro.quant.gguf.storage import Packed

SHAPES = [(1, 32), (5, 64), (16, 96), (33, 32), (70, 1056)]


def random(n: int, k: int) -> tuple[Int8, Tensor]:
    """Planes [n, k] of all integers and scales of both signs, and what naive says they are."""
    generator = torch.Generator().manual_seed(n * k)
    q = torch.randint(-128, 128, (n, k // 32, 32), generator=generator).to(torch.int8)
    planes = Int8(q, torch.randn(n, k // 32, generator=generator).half() / 64)
    return planes, naive.dequantize("Q8_0", planes.unpack())


@pytest.mark.parametrize("dtype", core.DTYPES)
@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("rows", range(10))
def test_product(rows: int, n: int, k: int, dtype: torch.dtype) -> None:
    planes, weight = random(n, k)
    x = torch.randn(rows, k + 3).to(dtype)[:, 3:]
    with poison():
        y = native.product(x, planes)
    expected = (x.double() @ weight.double().t()).to(dtype)
    scale = weight.norm(dim=1).max().item() if rows else 0
    rtol = {torch.float32: 1e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}[dtype]
    torch.testing.assert_close(y, expected, rtol=rtol, atol=2e-6 * scale)


@pytest.mark.parametrize("dtype", core.DTYPES)
def test_a_row_of_the_product_does_not_depend_on_the_others(dtype: torch.dtype) -> None:
    planes, _ = random(70, 1056)
    x = torch.randn(9, 1056).to(dtype)
    alone = torch.cat([native.product(row, planes) for row in x.split(1)])
    for first in range(9):
        for last in range(first + 1, 10):
            assert torch.equal(native.product(x[first:last], planes), alone[first:last])


@pytest.mark.parametrize("dtype", core.DTYPES)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_dequantize_is_exact(n: int, k: int, dtype: torch.dtype) -> None:
    planes, weight = random(n, k)
    for rows in (slice(None), slice(1, 4), slice(2, 2), torch.tensor([n - 1, 0])):
        with poison():
            w = native.dequantize(planes.take(rows), dtype)
        assert torch.equal(w, weight[rows].to(dtype))


@pytest.mark.parametrize("scale", [torch.nan, torch.inf, 65504.0, 6e-8])
def test_scales_of_any_value(scale: float) -> None:
    planes, _ = random(4, 32)
    planes.d[2] = scale
    weight = naive.dequantize("Q8_0", planes.unpack())
    for dtype in core.DTYPES:
        w = native.dequantize(planes, dtype)
        torch.testing.assert_close(w, weight.to(dtype), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("rows", [1, native.FEW, native.FEW + 1, 40])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_storage_takes_it(
    rows: int, deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    planes, weight = random(70, 96)
    storage = Packed("Q8_0", planes.unpack(), torch.float32)
    assert "native product" in storage.settle(deterministic)
    taken = []
    product = native.product
    monkeypatch.setattr(native, "product", lambda *args: taken.append(rows) or product(*args))
    x = torch.randn(rows, 96)
    torch.testing.assert_close(storage.matmul(x), x @ weight.t())
    assert bool(taken) == (deterministic or rows <= native.FEW)


@pytest.fixture
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delitem(sys.modules, "ostro.quant.gguf.native")
    monkeypatch.delattr(gguf, "native")
    core.compiler.cache_clear()
    core.machine.cache_clear()
    yield
    core.compiler.cache_clear()
    core.machine.cache_clear()


@pytest.mark.parametrize("deterministic", [False, True])
def test_without_a_compiler_the_blocks_remain(no_compiler: None, deterministic: bool) -> None:
    planes, weight = random(70, 96)
    storage = Packed("Q8_0", planes.unpack(), torch.float32)
    assert storage.settle(deterministic).endswith(
        "dequantized in blocks of rows (native: no C++ compiler (g++ or clang++) is installed)"
    )
    x = torch.randn(3, 96)
    torch.testing.assert_close(storage.matmul(x), x @ weight.t())
    assert torch.equal(storage.dequantize(), weight)
