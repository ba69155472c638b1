"""lora: the naive version against a dense formula, every kernel against the naive version."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from ostro.core.native.cpu_graph import record
from ostro.core.ops import Op, Target
from ostro.core.ops.lora import KERNELS, naive, native, triton
from ostro.plugins.conformance.kernels import DEVICE, poison

Call = Callable[..., Tensor]
CPU = torch.device("cpu")
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)

HELD = [[-1, -1, -1], [3, -1, 5], [2, 4, 1], [-1, 4, -1], [3, 2, -1], [-1, -1, -1]]
"""Pages of mixtures. Nobody has 0 and 6."""
PAGES = 7
RANKS = {1: 16, 2: 8, 3: 16, 4: 1, 5: 5}
"""Rows of a page that are not padding."""


@dataclass(frozen=True)
class Case:
    """rows, columns of x and of the parts of y; whether rows have mixtures of their own, or all
    the one given.
    """

    t: int
    k: int
    widths: tuple[int, ...]
    mixture: int | None = None
    experts: int = 1


CASES = {
    "one number": Case(1, 1, (1,), mixture=2),
    "three rows": Case(3, 33, (48, 16, 16)),
    "many rows": Case(70, 40, (33, 5)),
    "one mixture": Case(18, 70, (7, 20), mixture=1),
    "no mixture": Case(3, 5, (4,), mixture=0),
    "experts": Case(17, 40, (9,), experts=3),
    "experts of one mixture": Case(35, 20, (9,), experts=3, mixture=4),
    "deep and wide": Case(3, 1037, (300, 5)),
    "no rows": Case(0, 8, (8,)),
}
LARGE = {
    **CASES,
    "beyond every block": Case(150, 1100, (600, 16, 530)),
    "beyond every block, together": Case(150, 1100, (600, 16, 530), mixture=2),
}


@dataclass(frozen=True)
class Given:
    """What lora takes."""

    x: Tensor
    y: Tensor
    a: Tensor
    b: Tensor
    widths: tuple[int, ...]
    pages: Tensor
    scales: Tensor
    mixture: Tensor
    expert: Tensor | None
    experts: int

    def run(self, call: Call) -> Tensor:
        """What `call` makes of y, which stays."""
        around = torch.full((len(self.y), self.y.shape[1] + 5), 7.0).to(self.y)
        y = around[:, 2:-3]
        y.copy_(self.y)
        given = {**vars(self), "y": y}
        assert call(**given) is y
        assert (around[:, :2] == 7).all() and (around[:, -3:] == 7).all()
        return y

    def rows(self, some: Tensor) -> Given:
        mixture = self.mixture[some] if len(self.mixture) > 1 else self.mixture
        expert = None if self.expert is None else self.expert[some]
        return replace(self, x=self.x[some], y=self.y[some], mixture=mixture, expert=expert)

    def floats(self) -> Given:
        x, y, a, b = (each.float() for each in (self.x, self.y, self.a, self.b))
        return replace(self, x=x, y=y, a=a, b=b)

    @property
    def idle(self) -> Tensor:
        """Rows without pages, bool [t]."""
        return (self.pages[self.mixture.long()] < 0).all(1).expand(len(self.x))


def make(case: Case, dtype: torch.dtype, device: torch.device) -> Given:
    """Numbers for a case, not a number wherever none may be read."""
    torch.manual_seed(0)
    t, k, n, experts = case.t, case.k, sum(case.widths), case.experts
    a = torch.randn(PAGES, experts, len(case.widths), 16, k) / k**0.5
    b = torch.randn(PAGES, experts, 16, n)
    for page in range(PAGES):
        rank = RANKS.get(page, 0)
        a[page, :, :, rank:] = b[page, :, rank:] = 0 if rank else torch.nan
    pages = torch.tensor(HELD, dtype=torch.int32)
    mixture = torch.randint(0, len(HELD), (t,)) if case.mixture is None else case.mixture
    y = torch.randn(t, n)
    given = Given(
        torch.randn(t, k + 3)[:, 3:],
        y,
        a.flatten(0, 1),
        b.flatten(0, 1),
        case.widths,
        pages,
        torch.where(pages < 0, torch.nan, torch.rand(pages.shape) + 0.5),
        torch.as_tensor(mixture, dtype=torch.int32).view(-1),
        torch.randint(0, experts, (t,)) if experts > 1 else None,
        experts,
    )
    y[given.idle] = torch.tensor([-0.0, torch.nan, 1.0]).repeat(n)[:n]
    cast = {name: getattr(given, name).to(dtype) for name in ("x", "y", "a", "b")}
    given = replace(given, **cast)
    moved = {name: v.to(device) for name, v in vars(given).items() if isinstance(v, Tensor)}
    return replace(given, **moved)


def dense(given: Given) -> Tensor:
    """y + sum_j s_j B_j (A_j x), in float64."""
    y = given.y.double()
    for row, x in enumerate(given.x.double()):
        mine = given.mixture[row if len(given.mixture) > 1 else 0]
        expert = 0 if given.expert is None else int(given.expert[row])
        for page, scale in zip(given.pages[mine].tolist(), given.scales[mine], strict=True):
            if page < 0:
                continue
            a = given.a[page * given.experts + expert].double()
            b = given.b[page * given.experts + expert].double()
            start = 0
            for part, width in enumerate(given.widths):
                columns = slice(start, start + width)
                y[row, columns] += scale.double() * (b[:, columns].T @ (a[part] @ x))
                start += width
    return y


def bits(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.int32 if x.dtype == torch.float32 else torch.int16)


def assert_close(y: Tensor, truth: Tensor, given: Given) -> None:
    rtol = torch.finfo(given.x.dtype).eps if given.x.dtype.itemsize == 2 else 1e-5
    busy = ~given.idle
    assert y.dtype == given.y.dtype
    torch.testing.assert_close(y[busy].double(), truth[busy].double(), rtol=rtol, atol=2e-5)
    assert torch.equal(bits(y[~busy]), bits(given.y[~busy])), "rows without pages have changed"


def assert_equals_naive(call: Call, given: Given) -> None:
    with poison():
        y = given.run(call)
    assert_close(y, given.floats().run(naive.lora), given)


@DTYPES
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_naive(case: Case, dtype: torch.dtype) -> None:
    given = make(case, dtype, CPU)
    assert_close(given.run(naive.lora), dense(given), given)


@DTYPES
@pytest.mark.parametrize("case", LARGE.values(), ids=LARGE)
def test_native(case: Case, dtype: torch.dtype) -> None:
    assert_equals_naive(native.lora, make(case, dtype, CPU))


@pytest.mark.sample(3)
@DTYPES
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_triton_by_tiles(case: Case, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "FEW", 0)
    assert_equals_naive(triton.lora, make(case, dtype, DEVICE))


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.t <= 19])
def test_triton_by_rows(name: str) -> None:
    assert_equals_naive(triton.lora, make(CASES[name], torch.float16, DEVICE))


@pytest.mark.slow
@DTYPES
def test_triton_beyond_every_block(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "FEW", 0)
    case = Case(35, 2100, (150, 16, 130))
    assert_equals_naive(triton.lora, make(case, dtype, DEVICE))


@pytest.mark.slow
def test_triton_sums_alike_for_any_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    given = make(CASES["experts"], torch.float16, DEVICE)
    few = given.run(triton.lora)
    monkeypatch.setattr(triton, "FEW", 0)
    assert torch.equal(bits(given.run(triton.lora)), bits(few))


@pytest.mark.parametrize("call", [naive.lora, native.lora, triton.lora])
def test_page_0_is_like_others(call: Call) -> None:
    case = Case(3, 33, (20, 16), mixture=4)
    given = make(case, torch.float32, DEVICE if call is triton.lora else CPU)
    y = given.run(call)
    given.a[0], given.b[0], given.a[3] = given.a[3], given.b[3], torch.nan
    given.pages[given.pages == 3] = 0
    assert torch.equal(bits(given.run(call)), bits(y))


@pytest.mark.parametrize("mixture", [None, 2])
@DTYPES
@pytest.mark.parametrize("call", [naive.lora, native.lora, triton.lora])
def test_rows_have_the_same_bits_in_any_company(
    call: Call, dtype: torch.dtype, mixture: int | None
) -> None:
    if call is triton.lora and DEVICE.type == "cpu":
        pytest.skip("in the interpreter BLAS multiplies tiles, and rounds by the number of rows")
    device = DEVICE if call is triton.lora else CPU
    given = make(Case(34, 1037, (70, 13), mixture=mixture, experts=2), dtype, device)
    together = given.run(call)
    for row in range(len(together)):
        some = torch.arange(row, min(row + 1 + row % 5, len(together))).flip(0)
        assert torch.equal(bits(given.rows(some).run(call)), bits(together[some]))


@pytest.mark.parametrize("experts", [1, 2])
@pytest.mark.parametrize("mixture", [None, 1])
@pytest.mark.parametrize("call", [naive.lora, native.lora])
def test_graphs_replay_with_other_mixtures(call: Call, mixture: int | None, experts: int) -> None:
    case = Case(8, 600, (40, 8), mixture=mixture, experts=experts)
    given = make(case, torch.bfloat16, CPU)
    held = replace(given, y=given.y.clone())
    launch = record(lambda: call(**vars(held)))
    for turn in range(3):
        held.x.copy_(torch.randn(8, 600))
        held.pages.copy_(given.pages.roll(turn, 0))
        held.scales.copy_(torch.rand(given.scales.shape))
        held.mixture.copy_((given.mixture + turn) % len(HELD))
        held.y.copy_(torch.randn(8, 48))
        expected = held.run(call)
        assert not torch.equal(expected, held.y)
        torch.empty(1 << 16).fill_(torch.nan)
        assert torch.equal(bits(launch()), bits(expected))


@pytest.mark.parametrize(
    ("device", "dtype", "kernel"),
    [
        ("cuda", torch.bfloat16, "triton"),
        ("cpu", torch.bfloat16, "native"),
        ("cpu", torch.float64, "naive"),
    ],
)
def test_the_kernel_is_selected_by_device_and_dtype(
    device: str, dtype: torch.dtype, kernel: str
) -> None:
    target = Target(device=torch.device(device), dtype=dtype, deterministic=True)
    assert Op(KERNELS).select(target).kernel.name == kernel
