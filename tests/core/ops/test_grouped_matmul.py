"""grouped: the naive version against written-out sums, every kernel against the naive version."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tiny.candidates import results_of_candidates
from torch import Tensor

from ostro.core.ops import Op, Target
from ostro.core.ops.grouped_matmul import KERNELS, cpu, naive, native, triton
from ostro.plugins.conformance.kernels import DEVICE, poison

Call = Callable[[Tensor, Tensor, Tensor], Tensor]

RUNS = {
    "one row": [0, 0, 1],
    "a row each": [1, 1, 1, 1, 1],
    "gaps": [0, 3, 0, 0, 18, 1, 0],
    "one expert has all": [0, 0, 37],
    "runs across tiles": [5, 90, 2, 80, 33],
    "many": [70, 66],
    "none": [0, 0, 0],
}
SHAPES = [(1, 1), (5, 7), (33, 40), (66, 304)]
# Triton's interpreter is slow: each run and each shape is quick with half of the other.
QUICK_PAIRS = pytest.mark.parametrize(
    ("runs", "shape"),
    [
        pytest.param(runs, shape, id=f"{name}-{shape}", marks=marks)
        for i, (name, runs) in enumerate(RUNS.items())
        for j, shape in enumerate(SHAPES)
        for marks in [() if (i + j) % 2 else pytest.mark.slow]
    ],
)


def arguments(
    runs: list[int], n: int, k: int, dtype: torch.dtype, device: torch.device = DEVICE
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of so many per expert as `runs` says, as views of wider ones."""
    torch.manual_seed(0)
    x = torch.randn(sum(runs), k + 3, device=device).to(dtype)[:, 3:]
    weight = torch.randn(len(runs), n, k, device=device).to(dtype)
    experts = torch.arange(len(runs), device=device)
    return x, weight, experts.repeat_interleave(torch.tensor(runs, device=device))


def assert_equals_naive(call: Call, given: tuple[Tensor, Tensor, Tensor]) -> None:
    with poison():
        y = call(*given)
    x, weight, expert_of_row = given
    truth = naive.grouped(x.double(), weight.double(), expert_of_row)
    half = x.dtype.itemsize == 2
    rtol = torch.finfo(x.dtype).eps if half else 1e-5
    assert y.dtype == x.dtype
    torch.testing.assert_close(y.double(), truth, rtol=rtol, atol=2e-4 if half else 2e-5)


def test_naive() -> None:
    weight = torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]], [[5.0, 6.0]]])
    x = torch.tensor([[1.0, 1.0], [1.0, -1.0], [0.0, 2.0]])
    y = naive.grouped(x, weight, torch.tensor([0, 2, 2]))
    assert y.tolist() == [[3.0], [-1.0], [12.0]]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.float16, marks=pytest.mark.slow)], ids=str
)
@QUICK_PAIRS
@pytest.mark.parametrize("call", [triton.grouped, triton.grouped_deterministic])
def test_triton(call: Call, runs: list[int], shape: tuple[int, int], dtype: torch.dtype) -> None:
    assert_equals_naive(call, arguments(runs, *shape, dtype))


@pytest.mark.parametrize("name", ["gaps", "many"])
def test_all_candidates_compute_the_same(name: str) -> None:
    given = arguments(RUNS[name], 33, 48, torch.float16)
    results = list(results_of_candidates(lambda: triton.grouped(*given)))
    x, weight, expert_of_row = given
    truth = naive.grouped(x.double(), weight.double(), expert_of_row)
    assert len(results) == {"gaps": 6, "many": 12}[name]
    for result in results:
        torch.testing.assert_close(result.double(), truth, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("runs", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("call", [cpu.grouped, native.grouped, native.grouped_deterministic])
def test_cpu(call: Call, runs: list[int], shape: tuple[int, int], dtype: torch.dtype) -> None:
    assert_equals_naive(call, arguments(runs, *shape, dtype, torch.device("cpu")))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("call", [triton.grouped_deterministic, native.grouped_deterministic])
def test_fixed_rows_have_the_same_bits_in_any_company(call: Call, dtype: torch.dtype) -> None:
    device = DEVICE if call is triton.grouped_deterministic else torch.device("cpu")
    if call is triton.grouped_deterministic and DEVICE.type == "cpu":
        pytest.skip("in the interpreter BLAS multiplies tiles, and rounds by the number of rows")
    x, weight, expert_of_row = arguments([3, 0, 22, 9], 70, 150, dtype, device)
    together = call(x, weight, expert_of_row)
    for row in range(len(x)):
        some = slice(row, row + 1 + row % 5)
        assert torch.equal(call(x[some], weight, expert_of_row[some]), together[some])


@pytest.mark.parametrize(
    ("device", "dtype", "deterministic", "kernel"),
    [
        ("cuda", torch.bfloat16, False, "triton"),
        ("cuda", torch.bfloat16, True, "triton_deterministic"),
        ("cpu", torch.bfloat16, False, "native"),
        ("cpu", torch.bfloat16, True, "native_deterministic"),
        ("cpu", torch.float64, False, "cpu"),
        ("cpu", torch.float64, True, "naive"),
    ],
)
def test_choice(device: str, dtype: torch.dtype, deterministic: bool, kernel: str) -> None:
    target = Target(device=torch.device(device), dtype=dtype, deterministic=deterministic)
    assert Op(KERNELS).select(target).kernel.name == kernel
