"""MXFP4's kernels against naive, with outputs poisoned; and the Triton kernel in machine code."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tiny.candidates import results_of_candidates
from torch import Tensor

from ostro.core import native as core
from ostro.core.ops import Op, Target
from ostro.plugins.conformance.kernels import DEVICE, compile_for, poison, targets
from ostro.quant.mxfp4 import kernels, naive, native

Call = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

CPU = torch.device("cpu")
RUNS = {
    "one row": [0, 0, 1],
    "gaps": [0, 3, 0, 0, 18, 1, 0],
    "runs across tiles": [5, 90, 2, 80, 33],
    "many": [70, 66],
    "none": [0, 0, 0],
}
SHAPES = [(1, 32), (5, 64), (33, 96), (66, 352)]
WIDE = pytest.param(SHAPES[-1], marks=pytest.mark.slow)


def arguments(
    runs: list[int], n: int, k: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows of so many per expert as `runs` says, as views of wider ones."""
    torch.manual_seed(0)
    x = torch.randn(sum(runs), k + 3, device=device).to(dtype)[:, 3:]
    q = torch.randint(0, 256, (len(runs), n, k // 32, 16), dtype=torch.uint8, device=device)
    e = torch.randint(122, 129, (len(runs), n, k // 32), dtype=torch.uint8, device=device)
    experts = torch.arange(len(runs), device=device)
    return x, q, e, experts.repeat_interleave(torch.tensor(runs, device=device))


def assert_equals_naive(call: Call, given: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    with poison():
        y = call(*given)
    x, q, e, expert_of_row = given
    truth = naive.grouped_matmul(x.double(), q, e, expert_of_row)
    half = x.dtype.itemsize == 2
    rtol = torch.finfo(x.dtype).eps if half else 1e-5
    assert y.dtype == x.dtype
    torch.testing.assert_close(y.double(), truth, rtol=rtol, atol=1e-3 if half else 2e-4)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.float16, marks=pytest.mark.slow)], ids=str
)
@pytest.mark.parametrize("shape", [*SHAPES[:-1], WIDE], ids=str)
@pytest.mark.parametrize("runs", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("call", [kernels.grouped_matmul, kernels.grouped_matmul_deterministic])
def test_triton(call: Call, runs: list[int], shape: tuple[int, int], dtype: torch.dtype) -> None:
    assert_equals_naive(call, arguments(runs, *shape, dtype, DEVICE))


@pytest.mark.parametrize("runs", [RUNS["gaps"], RUNS["many"]], ids=["gaps", "many"])
def test_all_candidates_compute_the_same(runs: list[int]) -> None:
    given = arguments(runs, 33, 96, torch.float16, DEVICE)
    results = list(results_of_candidates(lambda: kernels.grouped_matmul(*given)))
    x, q, e, expert_of_row = given
    truth = naive.grouped_matmul(x.double(), q, e, expert_of_row)
    assert len(results) == (6 if sum(runs) < 32 else 12)
    for result in results:
        torch.testing.assert_close(result.double(), truth, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", core.DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("runs", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("call", [native.grouped_matmul, native.grouped_matmul_deterministic])
def test_native(call: Call, runs: list[int], shape: tuple[int, int], dtype: torch.dtype) -> None:
    assert_equals_naive(call, arguments(runs, *shape, dtype, CPU))


@pytest.mark.parametrize("dtype", core.DTYPES, ids=str)
def test_fixed_rows_have_the_same_bits_in_any_company(dtype: torch.dtype) -> None:
    x, q, e, expert_of_row = arguments([3, 0, 22, 9], 70, 160, dtype, CPU)
    together = native.grouped_matmul_deterministic(x, q, e, expert_of_row)
    for row in range(len(x)):
        some = slice(row, row + 1 + row % 5)
        alone = native.grouped_matmul_deterministic(x[some], q, e, expert_of_row[some])
        assert torch.equal(alone, together[some])


@pytest.mark.parametrize("dtype", core.DTYPES, ids=str)
def test_native_dequantizes_every_code_and_exponent(dtype: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(1, 16, 16)
    q, e = codes.expand(256, 16, 16), torch.arange(256, dtype=torch.uint8)[:, None].expand(256, 16)
    with poison():
        found = native.dequantize(q, e, dtype)
    truth = naive.dequantize(q, e, dtype)
    assert torch.equal(found, truth) and torch.equal(found.signbit(), truth.signbit())


@pytest.mark.parametrize(
    ("device", "dtype", "deterministic", "kernel"),
    [
        ("cuda", torch.bfloat16, False, "triton"),
        ("cuda", torch.bfloat16, True, "triton_deterministic"),
        ("cpu", torch.bfloat16, False, "native"),
        ("cpu", torch.bfloat16, True, "native_deterministic"),
        ("cpu", torch.float64, True, "naive"),
    ],
)
def test_choice(device: str, dtype: torch.dtype, deterministic: bool, kernel: str) -> None:
    target = Target(device=torch.device(device), dtype=dtype, deterministic=deterministic)
    assert Op(naive.GROUPED).select(target).kernel.name == kernel


@pytest.mark.slow
@pytest.mark.parametrize("target", targets())
@pytest.mark.parametrize(
    ("dtype", "rows"), [(torch.bfloat16, 8), (torch.bfloat16, 4096), (torch.float32, 8)], ids=str
)
def test_compiles_without_spills(dtype: torch.dtype, rows: int, target: str) -> None:
    """The experts of gpt-oss 120B."""
    if dtype == torch.bfloat16 and target == "sm_75":
        dtype = torch.float16
    x = torch.empty(rows, 2880, dtype=dtype, device="meta")
    q = torch.empty(128, 5760, 90, 16, dtype=torch.uint8, device="meta")
    e = torch.empty(128, 5760, 90, dtype=torch.uint8, device="meta")
    expert_of_row = torch.empty(rows, dtype=torch.int64, device="meta")
    call = "ostro.quant.mxfp4.kernels:grouped_matmul"
    (build,) = compile_for(target, call, x, q, e, expert_of_row)
    assert build.spills == 0
    assert build.shared <= 64 << 10
