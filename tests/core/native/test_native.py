"""Native kernels: compiled once, kept, refused with a reason; and the functions of ostro.h."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ostro.core import native
from ostro.core.native import library
from ostro.core.ops import Op, Target, rms_norm

EXP = """
#include "ostro.h"
template <class T>
void each(const T* x, int64_t n, T* y) {
    for (int64_t i = 0; i < n; i += 16) store(y + i, FUNCTION(load(x + i, n - i)), n - i);
}
EXPORT(each)
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OSTRO_CACHE", str(tmp_path / "cache"))
    library.compiler.cache_clear()
    yield tmp_path / "cache/native"
    library.compiler.cache_clear()


def write(folder: Path, function: str) -> Path:
    source = folder / "native.cpp"
    source.write_text(EXP.replace("FUNCTION", function))
    return source


def run(source: Path, x: torch.Tensor) -> torch.Tensor:
    kinds = native.ADDRESS, native.INT, native.ADDRESS
    each = native.functions(native.load(source), "each", *kinds)
    y = torch.empty_like(x)
    each[x.dtype](x.data_ptr(), x.numel(), y.data_ptr())
    return y


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["exp", "tanh"])
def test_functions(name: str, tmp_path: Path) -> None:
    special = torch.tensor([0.0, -0.0, 90.0, -90.0, torch.inf, -torch.inf, torch.nan, -86.0, 87.9])
    x = torch.cat((special, torch.linspace(-80, 80, 4001)))
    ours = run(write(tmp_path, name), x)
    torch.testing.assert_close(
        ours, getattr(torch, name)(x), rtol=4e-7, atol=1.2e-7, equal_nan=True
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", native.DTYPES)
def test_rounding_is_torchs(dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.cat((torch.randn(1000) * 100, torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0])))
    x = x.to(dtype)
    ours = run(write(tmp_path, "1.7f *"), x)
    torch.testing.assert_close(ours, (x.float() * 1.7).to(dtype), rtol=0, atol=0, equal_nan=True)


def test_a_broken_source_says_where(tmp_path: Path, own_cache: Path) -> None:
    with pytest.raises(ImportError, match=r"could not compile native.cpp: .*nonsense"):
        native.load(write(tmp_path, "nonsense"))
    assert not list(own_cache.iterdir())


@pytest.mark.parametrize(
    ("chosen", "message"), [("", "no C\\+\\+ compiler"), ("/nowhere/c++", "does not run")]
)
def test_without_a_compiler_the_next_kernel_is_taken(
    chosen: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", chosen)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ImportError, match=message):
        native.load(write(tmp_path, "exp"))
    monkeypatch.delitem(__import__("sys").modules, "ostro.core.ops.rms_norm.native", raising=False)
    choice = Op(rms_norm.KERNELS).select(Target(device=torch.device("cpu"), dtype=torch.float32))
    assert choice.kernel.name == "naive" and "native: " in choice.reason
