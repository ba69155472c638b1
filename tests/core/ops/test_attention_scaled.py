"""Attention to keys and values of one byte: every kernel, and the naive version itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ostro.core.ops.attention import (
    AttentionMetadata,
    HostMetadata,
    cpu,
    naive,
    native,
    rowwise,
    triton,
)
from ostro.core.ops.kv_write.naive import kv_write
from ostro.core.ops.kv_write.scaled import SCALED_LIMITS, Scaled, widen
from ostro.core.threads import THREADS
from ostro.plugins.conformance.kernels import DEVICE, poison

PAGE = 16
KERNELS = {
    "rowwise": rowwise.attention,
    "cpu": cpu.attention,
    "native": native.attention,
    "triton": triton.attention,
    "triton_deterministic": triton.attention_deterministic,
}
BY_TORCH = (rowwise.attention, cpu.attention, native.attention)
SINKS = torch.linspace(-1, 2, 6, device=DEVICE)
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 7},
    "softcap": {"softcap": 2.0},
    "sinks": {"sinks": SINKS},
    "alibi": {"alibi": SINKS.abs() / 4},
    "all": {"window": 20, "softcap": 3.0, "sinks": SINKS, "alibi": SINKS.abs() / 4},
}
BATCHES = {
    "mixed": ([3, 1, 19, 1, 2, 0], [3, 20, 35, 0, 33, 0]),
    "decode": ([1] * 4, [1, 70, 0, 33]),
    "one": ([1], [300]),
}
TYPES = pytest.mark.parametrize("dtype", SCALED_LIMITS, ids=["int8", "fp8"])
ALL = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
# The interpreter of Triton takes seconds: its kernels have one type each in the quick tests.
QUICK = {"triton": torch.float8_e4m3fn, "triton_deterministic": torch.int8}
PAIRS = pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        pytest.param(
            kernel,
            dtype,
            id=f"{name}-{dtype}".replace("torch.", ""),
            marks=() if QUICK.get(name, dtype) == dtype else pytest.mark.slow,
        )
        for name, kernel in KERNELS.items()
        for dtype in SCALED_LIMITS
    ],
)
Case = tuple[Tensor, Scaled, Scaled, AttentionMetadata, float]


def empty(blocks: int, kv: int, d: int, dtype: torch.dtype) -> Scaled:
    """Pages in which nothing is a number."""
    elements = torch.full((blocks, kv, PAGE, d), 0x7F, dtype=torch.uint8, device=DEVICE)
    scales = torch.full((blocks, kv, PAGE), float("nan"), device=DEVICE)
    return Scaled(elements.view(dtype), scales)


def make(
    name: str,
    dtype: torch.dtype,
    *,
    shape: tuple[int, int, int, int] = (6, 2, 32, 32),
    floats: torch.dtype = torch.float32,
    window: int = 0,
    full: list[int] | None = None,
    host: bool = True,
) -> Case:
    """Rows, and what they may see written into pages in random order; tokens differ in size."""
    queries, lengths = BATCHES[name]
    heads, kv, d, dv = shape
    torch.manual_seed(1)
    width = max(-(-n // PAGE) for n in lengths) + 1
    table = torch.randperm(len(lengths) * width).view(-1, width)
    pages = tuple(empty(table.numel(), kv, n, dtype) for n in (d, dv))
    for s, (n, length) in enumerate(zip(queries, lengths, strict=True)):
        at = torch.arange(max(0, length - n + 1 - window) if window else 0, length)
        slots = (table[s, at // PAGE] * PAGE + at % PAGE).to(DEVICE)
        size = torch.rand(2, len(at), kv, 1) * 2 + 0.1
        k, v = size[0] * torch.randn(len(at), kv, d), size[1] * torch.randn(len(at), kv, dv)
        kv_write(k.to(DEVICE), v.to(DEVICE), *pages, slots)
    starts = torch.tensor([0, *queries]).cumsum(0)
    lists = HostMetadata(starts.tolist(), lengths, table.tolist(), [bool(x) for x in full or ()])
    batch = AttentionMetadata(
        table=table.int().to(DEVICE),
        starts=starts.int().to(DEVICE),
        lengths=torch.tensor(lengths).int().to(DEVICE),
        slots=torch.full((sum(queries),), -1, dtype=torch.int64, device=DEVICE),
        max_queries=max(queries),
        max_length=max(lengths),
        full=None if full is None else torch.tensor(full).int().to(DEVICE),
        host=lists if host else None,
    )
    q = torch.randn(sum(queries), heads + 2 * kv, d).to(floats).to(DEVICE)[:, :heads]
    return q, *pages, batch, d**-0.5


def check(kernel: Callable[..., Tensor], case: Case, **given: Any) -> None:
    want = naive.attention(*case, **given)
    assert want.isfinite().all()
    with poison():
        got = kernel(*case, **given)
    assert got.dtype == want.dtype
    tolerance = {torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}[got.dtype]
    torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)


@TYPES
@pytest.mark.parametrize("given", FEATURES.values(), ids=FEATURES)
@pytest.mark.parametrize("name", BATCHES)
def test_the_naive_kernel_reads_scaled_elements(
    name: str, given: dict[str, Any], dtype: torch.dtype
) -> None:
    q, k, v, batch, scale = make(name, dtype, window=given.get("window", 0))
    floats = (widen(cache.elements, cache.scales) for cache in (k, v))
    want = naive.attention(q, *floats, batch, scale, **given)
    assert torch.equal(naive.attention(q, k, v, batch, scale, **given), want)


@pytest.mark.sample(2)
@ALL
@TYPES
@pytest.mark.parametrize(
    "given",
    [
        pytest.param(given, id=name, marks=() if name == "all" else pytest.mark.slow)
        for name, given in FEATURES.items()
    ],
)
@pytest.mark.parametrize("name", BATCHES)
def test_kernels_equal_naive(
    name: str, given: dict[str, Any], dtype: torch.dtype, kernel: Callable[..., Tensor]
) -> None:
    check(kernel, make(name, dtype, window=given.get("window", 0)), **given)


@pytest.mark.sample(2)
@PAIRS
@pytest.mark.parametrize(
    "shape",
    [
        (3, 3, 17, 40),
        pytest.param((7, 1, 80, 80), marks=pytest.mark.slow),
        pytest.param((1, 1, 64, 64), marks=pytest.mark.slow),
        pytest.param((12, 2, 96, 64), marks=pytest.mark.slow),
        pytest.param((20, 1, 40, 24), marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", ["mixed", "decode"])
def test_odd_shapes(
    name: str,
    shape: tuple[int, int, int, int],
    dtype: torch.dtype,
    kernel: Callable[..., Tensor],
) -> None:
    check(kernel, make(name, dtype, shape=shape))


@PAIRS
@pytest.mark.parametrize("floats", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=() if each == "decode" else pytest.mark.slow) for each in BATCHES],
)
def test_narrow_floats(
    name: str,
    floats: torch.dtype,
    dtype: torch.dtype,
    kernel: Callable[..., Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if floats == torch.bfloat16 and kernel not in BY_TORCH and DEVICE.type == "cpu":
        pytest.skip("the interpreter multiplies no bfloat16")
    monkeypatch.setattr(native, "TILED", True)
    check(kernel, make(name, dtype, floats=floats))


@pytest.mark.sample(2)
@PAIRS
@pytest.mark.parametrize("host", [True, False], ids=["host lists", "device alone"])
@pytest.mark.parametrize("window", [24, pytest.param(0, marks=pytest.mark.slow)])
def test_rows_that_see_what_is_behind_them(
    window: int, host: bool, dtype: torch.dtype, kernel: Callable[..., Tensor]
) -> None:
    if host and kernel not in BY_TORCH:
        pytest.skip("Triton kernels do not read lists of the host")
    full = [0, 1, 1, 0, 0, 0]
    case = make("mixed", dtype, window=window, full=full, host=host)
    check(kernel, case, window=window)
    causal = *case[:3], replace(case[3], full=None, host=None), case[4]
    assert not torch.allclose(naive.attention(*case), naive.attention(*causal), atol=1e-2)


@pytest.mark.slow
@TYPES
def test_values_far_from_one_keep_their_digits_in_float16(dtype: torch.dtype) -> None:
    """Weights times scales of values of some 1e-3, and of 3e4, are numbers that float16 has."""
    for size in (1e-3, 5e3):
        q, k, v, batch, scale = make("decode", dtype, floats=torch.float16)
        v = Scaled(v.elements, v.scales * size)
        want = naive.attention(q.float(), k, v, batch, scale)
        got = triton.attention(q, k, v, batch, scale).float()
        assert (got - want).abs().max() <= 1e-3 * want.abs().max()


@pytest.mark.sample(3)
@PAIRS
@pytest.mark.parametrize("change", ["of another token", "swapped", "none for k", "none for v"])
def test_scales_make_a_difference(
    change: str, dtype: torch.dtype, kernel: Callable[..., Tensor]
) -> None:
    q, k, v, batch, scale = make("decode", dtype)
    right = naive.attention(q, k, v, batch, scale)
    one = torch.ones_like(k.scales)
    wrong = {
        "of another token": (k.scales.roll(1, 2), v.scales.roll(1, 2)),
        "swapped": (v.scales, k.scales),
        "none for k": (one, v.scales),
        "none for v": (k.scales, one),
    }[change]
    wrong = tuple(scales.nan_to_num(1.0) for scales in wrong)
    caches = Scaled(k.elements, wrong[0]), Scaled(v.elements, wrong[1])
    assert (kernel(q, *caches, batch, scale) - right).abs().max() > 0.02 * right.std()


@TYPES
def test_rows_one_by_one_are_the_same_alone_and_in_chunks(dtype: torch.dtype) -> None:
    """`test_attention.py` asks the same of the fixed Triton kernel."""
    q, k, v, batch, scale = make("mixed", dtype)
    want = rowwise.attention(q, k, v, batch, scale)[4:23]
    for start, end in ((0, 19), (0, 16), (16, 18), (18, 19)):
        bounds = torch.tensor([0, end - start], dtype=torch.int32, device=DEVICE)
        alone = replace(
            batch,
            table=batch.table[2:3],
            starts=bounds,
            lengths=bounds[1:] + 16 + start,
            max_queries=end - start,
            max_length=16 + end,
            host=None,
        )
        got = rowwise.attention(q[4 + start : 4 + end], k, v, alone, scale)
        assert torch.equal(got, want[start:end])


def test_a_long_row_is_cut_for_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(THREADS, "limit", 16)
    for dtype in SCALED_LIMITS:
        check(native.attention, make("one", dtype), sinks=SINKS)
