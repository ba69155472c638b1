"""Products with quantized weights, against the dequantized weights in float64."""

from __future__ import annotations

import pytest
import torch
from gpu.comparison import DTYPES, assert_near, error, pick, run
from gpu.quantized import FORMATS, random_planes, step
from torch import Tensor

from ostro.plugins.conformance.kernels import DEVICE
from ostro.quant.mxfp4 import kernels as mxfp4
from ostro.quant.mxfp4 import naive as mxfp4_naive
from ostro.quant.planes.planes import Planes
from ostro.quant.planes.quant_matmul import naive, triton, weight

ROWS = pick([1, 2, 4, 5, 8, 17, 33, 64, 100, 256, 512, 600], [1, 3, 9])
"""Numbers of rows of x: all kernels, and the bounds between them."""

COMMON = ("Q4_K", "Q6_K", "Q8_0", "fp8", "nf4")
"""Formats that are tested in all dtypes: each has another kind of scales, zeros or tables."""

formats = pytest.mark.parametrize("format", FORMATS)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def rows_of(count: int, k: int, dtype: torch.dtype) -> Tensor:
    """Rows of x as views of wider rows."""
    return torch.randn(count, k + 8, device=DEVICE).to(dtype)[:, 8:]


def rounded(x: Tensor, planes: Planes) -> Tensor:
    """x as the kernels that quantize activations see it."""
    if not weight.prepare(planes).has_integer_values:
        return x.double()
    q, d = naive.quantize_activations(x)
    return (q.double().unflatten(-1, (-1, 32)) * d.double()[..., None]).flatten(-2)


def check(planes: Planes, dtype: torch.dtype, rows: list[int]) -> None:
    """Compare both kernels for each number of rows; report all that differ."""
    dense = naive.dequantize(planes, torch.float32).double()
    wrong = list[str]()
    for count in rows:
        x = rows_of(count, planes.shape[1], dtype)
        for call, seen in ((triton.matmul, rounded(x, planes)), (triton.matmul_exact, x.double())):
            try:
                assert_near(run(call, x, planes), seen @ dense.T)
            except Exception as failure:
                reason = f"{type(failure).__name__}: {failure}"
                wrong.append(f"{call.__name__}, {count} rows: {reason:.300}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("format", "dtype"),
    [(f, d) for d in DTYPES for f in FORMATS if d == DTYPES[0] or f in COMMON],
    ids=str,
)
def test_products_of_an_8b(format: str, dtype: torch.dtype) -> None:
    """The fused q, k and v of an 8B."""
    check(random_planes(format, *pick((6144, 4096), (5, step(format)))), dtype, ROWS)


@pytest.mark.parametrize("format", ["Q4_K", "Q6_K", "Q8_0", "fp8", "gptq4"])
def test_products_of_long_rows(format: str) -> None:
    """The down projection of an 8B."""
    shape = pick((4096, 14336), (5, 2 * step(format)))
    check(random_planes(format, *shape), DTYPES[0], pick([1, 8, 16, 100, 600], [1, 9]))


@formats
def test_products_of_odd_shapes(format: str) -> None:
    check(random_planes(format, 37, 3 * step(format)), DTYPES[0], pick([1, 5, 33, 100], [1, 9]))


@formats
@pytest.mark.parametrize("dtype", [DTYPES[0], torch.float32], ids=str)
def test_dequantizes(format: str, dtype: torch.dtype) -> None:
    planes = random_planes(format, *pick((1024, 4096), (5, step(format))))
    truth = naive.dequantize(planes, dtype)
    found = run(triton.dequantize, planes, dtype)
    # The compiler may contract a product and a sum, before the result is rounded to 16 bits.
    assert error(found, truth) <= (1e-6 if dtype == torch.float32 else 2e-4)


@pytest.mark.parametrize("format", COMMON)
def test_deterministic_rows_do_not_depend_on_the_batch(format: str) -> None:
    planes = random_planes(format, *pick((1024, 4096), (5, step(format))))
    x = rows_of(pick(64, 4), planes.shape[1], DTYPES[0])
    for call in (triton.matmul_deterministic, triton.matmul_exact_deterministic):
        together = run(call, x, planes)
        for some in (slice(0, 1), slice(1, 4), slice(2, len(x))):
            assert torch.equal(run(call, x[some], planes), together[some])


def grouped(x: Tensor, planes: Planes, experts: Tensor) -> Tensor:
    y = torch.empty(len(x), planes.shape[1], dtype=torch.float64, device=x.device)
    for expert in experts.unique().tolist():
        mine = experts == expert
        dense = naive.dequantize(planes.select(slice(expert, expert + 1)), torch.float32)[0]
        y[mine] = x[mine].double() @ dense.double().T
    return y


@dtypes
@pytest.mark.parametrize("copies", [8, 64, 512, 4096])
@pytest.mark.parametrize("format", COMMON)
def test_experts(format: str, copies: int, dtype: torch.dtype) -> None:
    """30B-A3B: 128 experts, of which a row has 8."""
    count, n, k = pick((128, 1536, 2048), (3, 5, step(format)))
    planes = random_planes(format, n, k, (count,))
    copies = pick(copies, 5)
    experts = torch.randint(count, (copies,), device=DEVICE).sort().values
    x = rows_of(copies, k, dtype)
    found = run(triton.grouped_matmul, x, planes, experts)
    assert_near(found, grouped(rounded(x, planes), planes, experts))
    truth = grouped(x.double(), planes, experts)
    assert_near(run(triton.grouped_matmul_exact, x, planes, experts), truth)
    for call in (triton.grouped_matmul_deterministic, triton.grouped_matmul_exact_deterministic):
        few = slice(0, min(copies, 64))
        seen = x.double() if "exact" in call.__name__ else rounded(x, planes)
        assert_near(run(call, x[few], planes, experts[few]), grouped(seen, planes, experts)[few])


@dtypes
@pytest.mark.parametrize("copies", [4, 128, 4096])
def test_experts_in_mxfp4(copies: int, dtype: torch.dtype) -> None:
    """gpt-oss: 32 experts, of which a row has 4."""
    count, n, k = pick((32, 5760, 2880), (3, 9, 96))
    q = torch.randint(256, (count, n, k // 32, 16), dtype=torch.uint8, device=DEVICE)
    e = torch.randint(117, 123, (count, n, k // 32), dtype=torch.uint8, device=DEVICE)
    copies = pick(copies, 5)
    experts = torch.randint(count, (copies,), device=DEVICE).sort().values
    x, truth = rows_of(copies, k, dtype), torch.empty(copies, n, dtype=torch.float64, device=DEVICE)
    for expert in experts.unique().tolist():
        dense = mxfp4_naive.dequantize(q[expert], e[expert], torch.float32).double()
        truth[experts == expert] = x[experts == expert].double() @ dense.T
    for call in (mxfp4.grouped_matmul, mxfp4.grouped_matmul_deterministic):
        assert_near(run(call, x, q, e, experts), truth)
