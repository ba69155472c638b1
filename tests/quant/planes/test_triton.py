"""The Triton quantized matrix products against the naive ones, for every kind of planes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest
import torch
import triton.language as tl
from tiny.candidates import results_of_candidates
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from triton import jit

from ostro.core.nn import Linear
from ostro.core.ops import Op, Target
from ostro.core.ops.launch import override_lookup
from ostro.plugins.conformance.kernels import DEVICE, poison
from ostro.quant.dense.storage import Dense
from ostro.quant.planes.planes import WIDTHS, Planes, pack_codes
from ostro.quant.planes.quant_matmul import (
    DEQUANTIZE,
    GROUPED_MATMUL,
    MATMUL,
    gemm,
    gemv,
    naive,
    tiles,
    unpack,
    weight,
)
from ostro.quant.planes.quant_matmul import triton as kernels
from ostro.quant.planes.storage import Packed

NL = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
FP4 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
HALF, BF16, FLOAT = torch.float16, torch.bfloat16, torch.float32

KINDS: dict[str, dict[str, Any]] = {
    "4 bits": dict(bits=4, group=32, zero=8),
    "4 bits, super scales": dict(bits=4, group=32, d=3, scale="u8", offset="u8"),
    "4 bits, zeros": dict(bits=4, group=96, zero="u8", scale=HALF),
    "4 bits, float zeros": dict(bits=4, group=64, k=64, zero=FLOAT, scale=BF16),
    "4 bits, integer table": dict(bits=4, group=32, d=3, scale="i8", table=NL),
    "4 bits, table of halves": dict(bits=4, group=32, table=FP4),
    "4 bits, float table": dict(bits=4, group=32, table="random"),
    "8 bits": dict(bits=8, group=32, zero=128, scale=HALF),
    "8 bits by sixteens": dict(bits=8, group=16, zero=FLOAT, offset=FLOAT),
    "8 bits, float table": dict(bits=8, group=96, table="random"),
    "e4m3": dict(bits=8, group=96, table=torch.float8_e4m3fn),
    "e5m2": dict(bits=8, group=32, table=torch.float8_e5m2, scale=HALF),
    "6 bits": dict(bits=6, group=16, zero=32, d=6, scale="i8"),
    "5 bits": dict(bits=5, group=32, d=3, scale="u8", offset="u8"),
    "7 bits": dict(bits=7, group=128, k=128, zero=63.5),
    "3 bits": dict(bits=3, group=16, zero=4, d=6, scale="i8"),
    "2 bits": dict(bits=2, group=16, d=6, scale="u8", offset="u8"),
    "1 bit": dict(bits=1, group=32, zero=0.5, k=1056),
}


def number(shape: tuple[int, ...], kind: Any, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if isinstance(kind, str):
        low = -40 if kind == "i8" else 0
        whole = torch.randint(low, 41, shape, generator=generator)
        return whole.to(torch.int8 if kind == "i8" else torch.uint8)
    return (torch.rand(shape, generator=generator) + 0.1).to(kind)


def planes(
    n: int = 5,
    k: int = 96,
    *,
    bits: int,
    group: int,
    zero: Any = 0,
    scale: Any = FLOAT,
    offset: Any = None,
    table: Any = None,
    d: int = 0,
    lead: tuple[int, ...] = (),
) -> Planes:
    """Random planes on `DEVICE`; strings and dtypes select the kind of group values."""
    generator = torch.Generator().manual_seed(bits)
    codes = torch.randint(0, 2**bits, (*lead, n, k), generator=generator, dtype=torch.uint8)
    groups, coarse = (*lead, n, k // group), (*lead, n, k // group // max(d, 1))
    values = torch.randn(2**bits, generator=generator) if table == "random" else table
    if isinstance(table, torch.dtype):  # a float8 dtype: its finite values alone
        values = torch.arange(256, dtype=torch.uint8).view(table).float()
        codes[values[codes.long()].isfinite().logical_not()] = 0
    made = Planes(
        codes=pack_codes(codes, bits),
        scale=number(groups, scale, 1),
        zero=zero if isinstance(zero, int | float) else number(groups, zero, 2),
        offset=None if offset is None else number(groups, offset, 3),
        table=None if table is None else torch.as_tensor(values).float(),
        d=number(coarse, HALF, 4) if d else None,
        m=number(coarse, HALF, 5) if d and offset else None,
    )
    return made.to(DEVICE)


def some_rows(rows: int, k: int, dtype: torch.dtype = FLOAT) -> Tensor:
    """Rows of x as views of wider rows; 32 elements of the second row are zero."""
    torch.manual_seed(0)
    x = torch.randn(rows, k + 5)[:, 5:]
    x[1:2, :32] = 0
    return x.to(DEVICE, dtype)


def assert_near(y: Tensor, truth: Tensor, bound: float) -> None:
    """Assert that y is within `bound` standard deviations of the expected result."""
    assert not y.isnan().any()
    assert (y.float() - truth.float()).abs().max() <= bound * truth.float().std()


def truth_of(x: Tensor, made: Planes, rounds: bool) -> Tensor:
    """The naive result in float32; x is quantized only for tables of integers."""
    integers = weight.prepare(made).has_integer_values
    multiply = naive.matmul_int8 if rounds and integers else naive.matmul
    return multiply(x.float(), made)


def test_quantizes_as_the_naive_kernel() -> None:
    x = some_rows(3, 1056)
    x[2, 40] = 1e30
    q, d = naive.quantize_activations(x)
    made = weight.prepare(planes(1, 1056, bits=4, group=16))
    with poison():
        mine, scales, sums = gemv.quantize_to_integers(x, gemv.sums_per_cell([made]))
        back = gemv.quantize_to_floats(x)
    assert mine.equal(q) and scales.equal(d)
    assert sums.equal(q.float().unflatten(-1, (-1, 16)).sum(-1))
    assert back.equal((q.float().unflatten(-1, (-1, 32)) * d[..., None]).flatten(-2))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_and_inf_make_the_row_nan(bad: float) -> None:
    x = some_rows(1, 96)
    x[0, 40] = bad
    assert kernels.matmul(x, planes(bits=4, group=32)).isnan().all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_tiles_keep_nan_and_inf_in_their_row(bad: float) -> None:
    made, x = planes(bits=4, group=32), some_rows(9, 96, HALF)
    x[3, 40] = bad
    for call in (kernels.matmul, kernels.matmul_exact):
        finite = call(x, made).isfinite()
        assert not finite[3].any() and finite.sum() == 8 * 5


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_one_row(kind: dict[str, Any]) -> None:
    made = planes(**kind)
    x = some_rows(1, made.shape[1])
    with poison():
        rounded, exact = kernels.matmul(x, made), kernels.matmul_exact(x, made)
    assert_near(rounded, truth_of(x, made, True), 1e-5)
    assert_near(exact, truth_of(x, made, False), 1e-5)


def test_products_of_few_rows() -> None:
    """Three rows by a program for four."""
    made, x = planes(**KINDS["6 bits"]), some_rows(3, 96)
    with poison():
        rounded, exact = kernels.matmul(x, made), kernels.matmul_exact(x, made)
    assert_near(rounded, truth_of(x, made, True), 1e-5)
    assert_near(exact, truth_of(x, made, False), 1e-5)


MIXES = {
    "4 and 6 bits": ["4 bits, super scales", "6 bits"],
    "8 and 5 bits": ["8 bits", "5 bits"],
    "table and 2 bits": ["4 bits, integer table", "2 bits", "4 bits, zeros"],
}
"""Kinds of the parts of a product: with groups of 16 and others, with larger groups alone."""


def mixed(names: list[str], k: int = 96) -> list[Planes]:
    """Parts of these kinds with odd numbers of rows."""
    return [planes(n, k, **KINDS[name]) for name, n in zip(names, (5, 3, 7), strict=False)]


def separate(call: Callable[..., Tensor], x: Tensor, parts: list[Planes]) -> Tensor:
    return torch.cat([call(x, made) for made in parts], -1)


@pytest.mark.parametrize("names", MIXES.values(), ids=MIXES)
@pytest.mark.parametrize(("rows", "k"), [(0, 96), (1, 1152), (2, 96), (3, 96), (4, 96)])
def test_parts_are_multiplied_as_separate_weights(names: list[str], rows: int, k: int) -> None:
    parts, x = mixed(names, k), some_rows(rows, k, HALF)
    with poison():
        joint = kernels.matmul_parts(x, parts)
        fixed = kernels.matmul_parts_deterministic(x, parts)
    assert joint is not None and joint.equal(separate(kernels.matmul, x, parts))
    assert fixed is not None and fixed.equal(separate(kernels.matmul_deterministic, x, parts))


def test_columns_of_x_of_parts_may_be_contiguous() -> None:
    parts, x = mixed(MIXES["4 and 6 bits"]), some_rows(3, 96, HALF)
    for call in (kernels.matmul_parts, kernels.matmul_parts_deterministic):
        joint, expected = call(x.t().contiguous().t(), parts), call(x, parts)
        assert joint is not None and expected is not None and joint.equal(expected)


def test_which_parts_are_not_multiplied_at_once() -> None:
    """Those of many rows, unless each row is multiplied by itself, and tables of floats."""
    parts = mixed(MIXES["4 and 6 bits"])
    floats = [*parts, planes(**KINDS["4 bits, float table"])]
    few, many = some_rows(1, 96), some_rows(tiles.tuning().gemv_rows + 1, 96)
    assert kernels.matmul_parts(few, floats) is kernels.matmul_parts(many, parts) is None
    assert kernels.matmul_parts(many[1:], parts) is not None
    assert kernels.matmul_parts_deterministic(few, floats) is None
    fixed = kernels.matmul_parts_deterministic(many, parts)
    assert fixed is not None and fixed.equal(separate(kernels.matmul_deterministic, many, parts))


class Plain(Packed):
    def save(self) -> dict[str, Tensor]:
        raise NotImplementedError


class Added:
    """A delta that adds one."""

    def matmul(self, x: Tensor, y: Tensor, step: Any) -> Tensor:
        return y + 1


@pytest.mark.parametrize(
    ("names", "rows", "joint"),
    [
        (MIXES["4 and 6 bits"], 1, True),
        (MIXES["4 and 6 bits"], 0, True),
        (MIXES["4 and 6 bits"], 9, False),
        (["4 bits, super scales", "4 bits, float table"], 1, False),
    ],
)
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_linear_multiplies_its_parts_at_once(
    names: list[str], rows: int, joint: bool, deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    linear, parts = linear_of(names, deterministic), mixed(names)
    call = kernels.matmul_deterministic if deterministic else kernels.matmul
    x = some_rows(2 * rows, 96, HALF).view(2, rows, 96)
    expected = separate(call, x.flatten(0, 1), parts).view(2, rows, linear.n_out)
    calls, multiply = [], gemv.multiply_parts
    monkeypatch.setattr(gemv, "multiply_parts", lambda *each: calls.append(1) or multiply(*each))
    with poison():
        y = linear(x, None)
    assert linear.bias is not None and y.equal(expected + 1 + linear.bias)
    assert len(calls) == (joint or (deterministic and rows == 9))


def linear_of(names: list[str], deterministic: bool = False, exact: bool = False) -> Linear:
    """A linear with parts of these kinds, a bias and a delta, with kernels for CUDA."""
    linear = Linear(96, {name: n for name, n in zip(names, (5, 3, 7), strict=False)}, bias=True)
    for slot in linear.slots("w"):
        if slot.kind == "storage":
            made = planes(slot.shape[0], **KINDS[slot.part])
            linear.fill(slot, Plain("Plain", made, HALF))
        else:
            linear.fill(slot, some_rows(1, slot.shape[0], FLOAT)[0])
    linear.to(DEVICE, HALF)
    linear.deltas.append(Added())  # type: ignore[arg-type]
    target = Target(
        device=torch.device("cuda"), dtype=HALF, deterministic=deterministic, exact=exact
    )
    linear.finalize(target)
    return linear


@pytest.mark.parametrize("case", ["exact", "ordered columns", "another class", "naive kernels"])
def test_a_linear_whose_parts_are_multiplied_one_by_one(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    linear, x = linear_of(MIXES["4 and 6 bits"], exact=case == "exact"), some_rows(1, 96, HALF)
    name, last = list(linear.storages.items())[-1]
    assert isinstance(last, Plain)
    if case == "ordered columns":
        last.order = torch.arange(95, -1, -1, device=DEVICE)
    elif case == "another class":
        linear.storages[name] = Dense(last.dequantize())
    elif case == "naive kernels":
        last.finalize(Target(device=torch.device("cuda"), dtype=torch.float64))
    expected = torch.cat([storage.matmul(x) for storage in linear.storages.values()], -1)
    monkeypatch.setattr(gemv, "multiply_parts", None)
    assert linear.bias is not None and linear(x, None).equal(expected + 1 + linear.bias)


@pytest.mark.sample(6)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_dequantizes_bit_for_bit(kind: dict[str, Any]) -> None:
    made = planes(**kind, lead=(2,))
    with poison():
        assert kernels.dequantize(made, FLOAT).equal(naive.dequantize(made, FLOAT))


@pytest.mark.parametrize(
    "name", ["4 bits, super scales", "6 bits", "8 bits", "4 bits, float table"]
)
def test_tiles(name: str) -> None:
    made = planes(n=37, **KINDS[name])
    x = some_rows(9, 96, HALF)
    with poison():
        rounded, exact = kernels.matmul(x, made), kernels.matmul_exact(x, made)
    assert_near(rounded, truth_of(x, made, True), 4e-3)
    assert_near(exact, truth_of(x, made, False), 4e-3)


def test_tiles_in_parts() -> None:
    """A long row is summed by several programs."""
    made = planes(3, 32 * 51, bits=4, group=32, zero=8)
    assert tiles.split_k(1, 51, tiles.tile(weight.prepare(made), 9)) > 2
    x = some_rows(9, 32 * 51, HALF)
    with poison():
        y = kernels.matmul_exact(x, made)
    assert_near(y, truth_of(x, made, False), 4e-3)


@pytest.mark.sample(5)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_tiles_of_each_kind(kind: dict[str, Any]) -> None:
    made = planes(n=3, **kind)
    x = some_rows(9, made.shape[1], HALF) / 1024
    with poison():
        rounded, exact = kernels.matmul(x, made), kernels.matmul_exact(x, made)
    assert_near(rounded, truth_of(x, made, True), 4e-3)
    assert_near(exact, truth_of(x, made, False), 4e-3)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["4 bits, super scales", "6 bits", "4 bits, zeros"])
@pytest.mark.parametrize("k", [96, 1536])
def test_tiles_by_rows_of_x(name: str, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four and eight warps, one or two groups of 16 rows for each, and no step beyond the row."""
    sizes = [(16, 64, 8, 4, 3, 1), (32, 128, 4, 8, 3, 64), (64, 256, 4, 4, 2, 1)]
    monkeypatch.setattr(tiles, "tuning_of", lambda *_: tiles.Tuning(tiles=sizes, gemm_rows=99))
    made = planes(n=137, k=k, **KINDS[name])
    for rows, m in ((9, 16), (17, 32), (70, 64)):
        assert tiles.tile(weight.prepare(made), rows).m == m
        x = some_rows(rows, k, HALF)
        with poison():
            rounded, exact = kernels.matmul(x, made), kernels.matmul_exact(x, made)
        assert_near(rounded, truth_of(x, made, True), 6e-3)
        assert_near(exact, truth_of(x, made, False), 6e-3)


@pytest.mark.parametrize("group", [64, 96, 128, 192])
def test_tiles_of_groups_of_several_cells(group: int) -> None:
    """Of four cells, some share a group."""
    made, x = planes(3, 384, bits=4, group=group, zero=FLOAT), some_rows(9, 384, HALF)
    with poison():
        y = kernels.matmul_exact(x, made)
    assert_near(y, truth_of(x, made, False), 4e-3)


@pytest.mark.parametrize("size", [1e-9, 1.0, 1e9])
@pytest.mark.parametrize("name", ["4 bits, float zeros", "e4m3", "4 bits, super scales"])
def test_tiles_of_any_range(name: str, size: float) -> None:
    """Neither weights nor rows of x leave the range of float16."""
    made = planes(n=5, **KINDS[name] | {"scale": FLOAT, "d": 0})
    made = replace(made, scale=made.scale * size)
    if made.offset is not None:
        made = replace(made, offset=made.offset * size)
    x = some_rows(9, made.shape[1], BF16)
    x[0] *= 1e20
    x[2] *= 1e-20
    y, truth = kernels.matmul_exact(x, made), truth_of(x, made, False)
    assert ((y - truth).abs().amax(1) <= 1e-2 * truth.abs().amax(1)).all()


def test_x_in_the_order_of_tiles() -> None:
    """A cell's columns: word of a half, half, pair of the word's bytes, cell, byte."""
    x = some_rows(3, 160)
    x[2] *= 1e20
    y, factors = gemm.to_half(x, quantize=False)
    assert y.shape == (3, 256) and y.dtype == HALF
    assert (factors.log2() == factors.log2().round()).all()
    assert ((x.abs().amax(1) <= factors) & (factors <= 4 * x.abs().amax(1))).all()
    back = y.float().view(3, 2, 4, 2, 2, 4, 2).permute(0, 1, 5, 3, 2, 4, 6).reshape(3, 256)
    assert back[:, 160:].eq(0).all()
    for row in range(3):
        assert_near(back[row, :160] * factors[row], x[row], 3e-3)


def test_many_rows_are_multiplied_dense() -> None:
    made, x = planes(n=9, bits=4, group=32, zero=8), some_rows(11, 96)
    with poison(), override_lookup(lambda *_: tiles.Dequantize(elements=96 * 4)):
        rounded, exact = kernels.matmul(x, made), kernels.matmul_exact(x, made)
    assert_near(rounded, truth_of(x, made, True), 1e-5)
    assert_near(exact, truth_of(x, made, False), 1e-5)


@pytest.mark.sample(2)
@pytest.mark.parametrize("runs", [[2, 0, 1], [3, 0, 15]], ids=["few", "many"])
@pytest.mark.parametrize("name", ["4 bits, super scales", "8 bits, float table"])
def test_experts(name: str, runs: list[int]) -> None:
    made = planes(**KINDS[name], lead=(3,))
    x = some_rows(sum(runs), 96, HALF)
    experts = torch.arange(3).repeat_interleave(torch.tensor(runs)).to(DEVICE)
    integers = weight.prepare(made).has_integer_values
    q, d = naive.quantize_activations(x)
    back = (q.float().unflatten(-1, (-1, 32)) * d[..., None]).flatten(-2) if integers else x.float()
    with poison():
        rounded = kernels.grouped_matmul(x, made, experts)
        exact = kernels.grouped_matmul_exact(x, made, experts)
        fixed = kernels.grouped_matmul_deterministic(x[:3], made, experts[:3])
    assert_near(rounded, naive.grouped_matmul(back, made, experts), 4e-3)
    assert_near(exact, naive.grouped_matmul(x.float(), made, experts), 4e-3)
    assert_near(fixed, naive.grouped_matmul(back[:3], made, experts[:3]), 4e-3)


@pytest.mark.parametrize("call", [kernels.matmul_deterministic, kernels.matmul_exact_deterministic])
def test_deterministic_rows_are_batch_invariant(call: Callable[..., Tensor]) -> None:
    made, x = planes(4, bits=4, group=32, zero=8), some_rows(4, 96)
    together = call(x, made)
    assert torch.equal(call(x[1:2], made), together[1:2])
    assert torch.equal(call(x[2:4], made), together[2:4])


@pytest.mark.parametrize(
    ("rows", "dtype", "vectors"), [(4, HALF, True), (5, HALF, False), (8, FLOAT, True)], ids=str
)
def test_rows_that_are_not_quantized_use_tiles_early(
    rows: int, dtype: torch.dtype, vectors: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensor cores multiply five rows faster than vectors of float32; they have no float32."""
    made, x = planes(**KINDS["8 bits, float table"]), some_rows(rows, 96, dtype)
    calls: list[int] = []
    monkeypatch.setattr(gemv, "floats", lambda x, *_, **__: calls.append(len(x)) or x)
    monkeypatch.setattr(gemm, "matmul", lambda x, *_, **__: x)
    kernels.matmul(x, made)
    assert calls == [rows] * vectors


@pytest.mark.parametrize(("rows", "gemm_rows"), [(2, 512), (9, 512), (9, 8)])
def test_columns_of_x_may_be_contiguous(
    rows: int, gemm_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors, tiles, and products with the dequantized weight."""
    monkeypatch.setattr(tiles, "tuning_of", lambda *_: tiles.Tuning(gemm_rows=gemm_rows))
    made, stack = (planes(2, **KINDS["6 bits"], lead=lead) for lead in ((), (2,)))
    x, experts = some_rows(rows, 96, HALF), torch.arange(rows, device=DEVICE) * 2 // rows
    view = x.t().contiguous().t()
    modes = ["", "_exact"] + ["_deterministic", "_exact_deterministic"] * (rows == 2)
    for mode in modes:
        single, grouped = (
            getattr(kernels, f"{name}{mode}") for name in ("matmul", "grouped_matmul")
        )
        assert single(view, made).equal(single(x, made)), mode
        assert grouped(view, stack, experts).equal(grouped(x, stack, experts)), mode


def test_a_long_row_is_converted_in_blocks() -> None:
    x = some_rows(2, 600 * 32)
    x[1, -1] = 1e6
    with poison():
        y, factors = gemm.to_half(x, quantize=True)
    q, d = naive.quantize_activations(x)
    back = y.float().view(2, 150, 4, 2, 2, 4, 2).permute(0, 1, 5, 3, 2, 4, 6).reshape(2, -1)
    truth = (q.float().unflatten(-1, (-1, 32)) * d[..., None]).flatten(-2)
    # Half a step of float16, and of its smallest values.
    bound = 2**-11 * truth.abs() + 2**-25 * factors[:, None]
    assert ((back * factors[:, None] - truth).abs() <= bound).all()


def test_products_of_no_rows() -> None:
    made = planes(bits=4, group=32)
    none = torch.empty(0, dtype=torch.int64, device=DEVICE)
    for call in (kernels.matmul, kernels.matmul_exact, kernels.matmul_deterministic):
        assert call(some_rows(0, 96), made).shape == (0, 5)
    stack = planes(bits=4, group=32, lead=(2,))
    assert kernels.grouped_matmul(some_rows(0, 96), stack, none).shape == (0, 5)


def test_bfloat16_is_computed_in_float32() -> None:
    made, x = planes(bits=6, group=32, zero=32), some_rows(1, 96, BF16)
    assert kernels.matmul(x, made).dtype == BF16
    assert_near(kernels.matmul(x, made), truth_of(x, made, True), 2e-2)
    assert_near(kernels.matmul_exact(x, made), truth_of(x, made, False), 2e-2)


def test_addresses_are_wide() -> None:
    """The last of experts that take more than 2 GiB; the others' memory is never touched."""
    experts, n, cells = 1 << 19, 5, 64
    codes = torch.empty(experts, n, cells, 16, dtype=torch.uint8, device=DEVICE)
    assert codes.nbytes > 1 << 31
    last = planes(n, cells * 32, bits=4, group=cells * 32, zero=8)
    scale = torch.zeros(experts, n, 1, device=DEVICE)
    codes[-1], scale[-1] = last.codes[0], last.scale
    stack, x = Planes(codes=(codes,), scale=scale, zero=8), some_rows(1, cells * 32)
    expert = torch.tensor([experts - 1], device=DEVICE)
    truth = truth_of(x, last, False)
    assert_near(kernels.grouped_matmul_exact(x, stack, expert), truth, 1e-5)
    assert_near(kernels.grouped_matmul(x, stack, expert), truth_of(x, last, True), 1e-5)


@jit  # type: ignore[untyped-decorator]
def look_up_kernel(ints, word, y, ASM: tl.constexpr):  # type: ignore[no-untyped-def]
    lane = tl.arange(0, 64)[None, :, None]
    low, high = unpack.look_up(ints, tl.load(word + lane), ASM)
    tl.store(y + lane, low)
    tl.store(y + 64 + lane, high)


def test_values_of_tables_are_looked_up() -> None:
    word = torch.randint(-(1 << 31), 1 << 31, (64,), dtype=torch.int32, device=DEVICE)
    table = torch.tensor(NL, dtype=torch.float32, device=DEVICE)
    ints, unit = weight.integer_table(table)
    assert ints is not None and unit == 1
    y = torch.empty(2, 64, dtype=torch.int32, device=DEVICE)
    look_up_kernel[(1,)](ints, word, y, ASM=tiles.assembler())
    codes = word.view(torch.uint8)
    for found, code in zip(y.view(torch.int8), (codes & 15, codes >> 4), strict=True):
        assert found.float().equal(table[code.int()])


def test_which_tables_are_float8() -> None:
    for exponent, dtype in ((4, torch.float8_e4m3fn), (5, torch.float8_e5m2)):
        table = torch.arange(256, dtype=torch.uint8).view(dtype).float()
        assert weight.float8_exponent(table) == exponent
        table[3] *= 2
        assert weight.float8_exponent(table.clone()) == 0
    assert weight.float8_exponent(torch.tensor(FP4)) == 0


def test_which_tables_are_integers() -> None:
    assert weight.integer_table(torch.tensor(FP4))[1] == 0.5
    assert weight.integer_table(torch.tensor(NL).float() * 2)[0] is None
    assert weight.integer_table(torch.arange(256.0))[0] is None


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", ["4 bits, super scales", "6 bits", "8 bits, float table", "e4m3"])
@pytest.mark.parametrize("rows", [1, 2, 7, 16, pytest.param(40, marks=pytest.mark.slow)])
def test_all_candidates_compute_the_same(name: str, rows: int) -> None:
    """Those of products with and without experts, also where a program exceeds the weight."""
    made, stack = (planes(n=5, **KINDS[name], lead=lead) for lead in ((), (2,)))
    x, experts = some_rows(rows, 96, HALF), torch.arange(rows, device=DEVICE) * 2 // rows
    for multiply in (
        lambda: kernels.matmul(x, made),
        lambda: kernels.grouped_matmul(x, stack, experts),
    ):
        expected, results = multiply(), list(results_of_candidates(multiply))
        assert len(results) >= 3
        for result in results:
            assert_near(result, expected, 6e-3)


@pytest.mark.parametrize("rows", [1, 3])
def test_all_candidates_for_parts_compute_the_same(rows: int) -> None:
    parts, x = mixed(MIXES["4 and 6 bits"], 1152), some_rows(rows, 1152, HALF)
    expected = separate(kernels.matmul, x, parts)
    results = list(results_of_candidates(lambda: kernels.matmul_parts(x, parts)))
    assert len(results) >= 3
    for result in results:
        assert result is not None
        assert_near(result, expected, 6e-3)


def test_parameters_of_parts() -> None:
    """The key has all weights and the class of rows; a program has all rows of x, or half."""
    first, other = (mixed(MIXES[name]) for name in ("4 and 6 bits", "8 and 5 bits"))
    found = list[Any]()
    with override_lookup(lambda *each: found.append(each) or each[2]):
        for parts, rows in ((first, 3), (first, 4), (first, 8), (first[:1] + other[1:], 4)):
            kernels.matmul_parts(some_rows(rows, 96, HALF), parts)
        kernels.matmul_parts_deterministic(some_rows(1, 96, HALF), first)
    ops, keys, defaults, candidates = zip(*found, strict=True)
    assert ops == ("quant_matmul parts",) * 4
    assert keys[0] == keys[1] and len(set(keys)) == 3
    assert [block.x_rows for block in defaults] == [4, 4, 8, 4]
    assert {block.x_rows for block in candidates[2]()} == {4, 8}


def test_plans_by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last number of rows of each kind, and the class of rows in the key."""
    sizes = tiles.Tuning(gemv_rows=4, gemm_rows=40)
    monkeypatch.setattr(tiles, "tuning_of", lambda _: sizes)
    made, stack = (
        weight.prepare(planes(n=5, **KINDS["6 bits"], lead=lead)) for lead in ((), (16,))
    )
    keys = list[Any]()

    def kinds(plan: Callable[..., Any], made: Any, *counts: int) -> list[str]:
        with override_lookup(lambda op, key, default, more: keys.append(key) or default):
            plans = [plan(made, some_rows(rows, 96, HALF), quantize=True) for rows in counts]
        return [type(plan).__name__ for plan in plans]

    assert kinds(tiles.matmul_plan, made, 4, 5, 40, 41) == [
        *("GemvBlock", "Tile", "Tile", "Dequantize")
    ]
    assert keys[2] == keys[3] and len(set(keys)) == 3
    assert kinds(tiles.grouped_plan, stack, 8, 9) == ["GemvBlock", "Tile"]
    assert len(set(keys)) == 5


def test_large_products_have_no_vectors_as_candidates() -> None:
    made = weight.prepare(planes(n=5, **KINDS["6 bits"]))
    kinds = [
        {type(plan).__name__ for plan in tiles.candidate_plans(made, rows, HALF, quantize=True)}
        for rows in (4, 5, 16, 17)
    ]
    assert {plan.m for plan in tiles.candidate_tiles(made, 64, HALF)} == {32, 64}
    floats = weight.prepare(planes(n=5, **KINDS["4 bits, float table"]))
    assert {plan.m for plan in tiles.candidate_tiles(floats, 64, HALF)} == {16, 32}
    few, some, many = {"GemvBlock"}, {"GemvBlock", "Tile"}, {"Tile", "Dequantize"}
    assert kinds == [few, some, some, many]
    assert not tiles.candidate_tiles(made, 64, FLOAT)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("deterministic", [False, True])
def test_choice(deterministic: bool, exact: bool) -> None:
    target = Target(
        device=torch.device("cuda"), dtype=BF16, deterministic=deterministic, exact=exact
    )
    name = "triton" + " exact" * exact + ", row by row" * deterministic
    for operation in (MATMUL, GROUPED_MATMUL):
        assert Op(operation, bits=4, group=32).select(target).kernel.name == name
        chosen = Op(operation, bits=4, group=24).select(target).kernel.name
        assert chosen.startswith("naive")
    assert Op(DEQUANTIZE, bits=4, group=32).select(target).kernel.name == "triton"


@pytest.mark.slow
@pytest.mark.parametrize("group", [16, 32, 64, 128, 384])
@pytest.mark.parametrize("bits", WIDTHS)
def test_grid(bits: int, group: int) -> None:
    """Every width and group, with each kind of zero, offset and scale, in every size of program."""
    numbers = cycle(((FLOAT, None, 0), (BF16, HALF, 0), ("u8", "u8", 1), ("i8", None, 1)))
    for zero in (0, 2 ** (bits - 1), 0.3, "u8", FLOAT):
        scale, offset, d = next(numbers)
        made = planes(
            n=7, k=384, bits=bits, group=group, zero=zero, scale=scale, offset=offset, d=d
        )
        assert kernels.dequantize(made, FLOAT).equal(naive.dequantize(made, FLOAT))
        for rows in (1, 3, 8):
            x = some_rows(rows, 384)
            with poison():
                rounded, exact = kernels.matmul(x, made), kernels.matmul_exact(x, made)
            assert_near(rounded, truth_of(x, made, True), 1e-5)
            assert_near(exact, truth_of(x, made, False), 1e-5)


def test_a_prepared_weight_keeps_no_copy_of_codes_that_have_left() -> None:
    """The offloader replaces the data of the codes: a view of the old data would keep it."""
    made = planes(8, 64, bits=4, group=32)
    # Views would keep what they are views of.
    made = replace(made, codes=tuple(codes.clone() for codes in made.codes))
    gone = StorageWeakRef(made.codes[0].untyped_storage())
    for _ in range(2):
        prepared = weight.prepare(made).tensors
        pairs = zip(prepared.words, made.codes, strict=True)
        assert all(words.data_ptr() == codes.data_ptr() for words, codes in pairs)
        del prepared, pairs
        for codes in made.codes:
            codes.data = codes.data.clone()
    assert gone.expired()
