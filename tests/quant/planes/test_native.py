"""The C++ quantized matrix products against the naive ones, with poisoned outputs; other CPUs."""

from __future__ import annotations

import platform
import sys
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from ostro.core.native import DTYPES, build, library
from ostro.core.native.variants import cpu_flags, lacking
from ostro.core.ops import Op, Target
from ostro.plugins.conformance.kernels import poison
from ostro.quant.planes import quant_matmul as ops
from ostro.quant.planes.planes import WIDTHS, Planes, pack_codes
from ostro.quant.planes.quant_matmul import naive, native

KINDS = (
    "zero",
    "half zero",
    "float zeros",
    "byte zeros",
    "offset",
    "super",
    "signed",
    "integers",
    "table",
    "e8m0",
    "e4m3",
    "double",
)
"""Kinds of scales, zeros and tables; `planes` makes them."""

EDGE = 2e-5  # of the size of the results: sums of float32 in another order
HALF = {torch.float32: 0.0, torch.bfloat16: 2**-7, torch.float16: 2**-10}


def planes(kind: str, bits: int, group: int, n: int, k: int, *experts: int) -> Planes:
    generator = torch.Generator().manual_seed(bits * group + n)
    lead = (*experts, n)
    groups = (*lead, k // group)
    several = 2 if k // group % 2 == 0 else 1
    coarse = (*lead, k // group // several)

    def random(*shape: int, low: float = 0, high: float = 1) -> Tensor:
        return torch.rand(shape, generator=generator) * (high - low) + low

    codes = torch.randint(0, 2**bits, (*lead, k), generator=generator, dtype=torch.uint8)
    parts: dict[str, Any] = {
        "scale": random(*groups, low=-0.02, high=0.04),
        "zero": 2 ** (bits - 1),
    }
    match kind:
        case "half zero":
            parts["zero"] = 2.5
        case "float zeros":
            parts |= {"scale": parts["scale"].half(), "zero": random(*groups, high=2**bits)}
        case "byte zeros":
            zeros = random(*groups, high=2**bits).to(torch.uint8)
            parts |= {"scale": parts["scale"].bfloat16(), "zero": zeros}
        case "offset":
            parts |= {"zero": 0, "offset": random(*groups, low=-0.5).bfloat16()}
        case "super":
            small = [random(*groups, high=64).to(torch.uint8) for _ in range(2)]
            large = [random(*coarse, high=0.002).half() for _ in range(2)]
            parts = {"scale": small[0], "offset": small[1], "d": large[0], "m": -large[1]}
        case "signed":
            scale = random(*groups, low=-100, high=100).to(torch.int8)
            parts |= {"scale": scale, "d": random(*coarse, high=0.001)}
        case "integers":
            values = torch.randint(-128, 128, (2**bits,), generator=generator)
            parts |= {"zero": 0, "table": values / 8}
        case "table":
            parts |= {"zero": 0.3, "table": torch.randn(2**bits, generator=generator)}
        case "e8m0":
            exponents = random(*groups, low=120, high=130).to(torch.uint8)
            parts["scale"] = exponents.view(torch.float8_e8m0fnu)
        case "e4m3":
            parts["scale"] = parts["scale"].to(torch.float8_e4m3fn)
        case "double":
            parts["scale"] = parts["scale"].double()
    return Planes(codes=pack_codes(codes, bits), **parts)


def truth(x: Tensor, weights: Planes, kind: str) -> Tensor:
    """Expected result of `matmul`: x is quantized unless the table holds other values than int8."""
    exact = kind == "table" or (kind == "integers" and weights.bits > 4)
    return (naive.matmul if exact else naive.matmul_int8)(x.float(), weights)


def assert_near(ours: Tensor, theirs: Tensor, *, edge: float = EDGE) -> None:
    torch.testing.assert_close(
        ours.double(),
        theirs.double(),
        rtol=HALF[ours.dtype],
        atol=edge * theirs.double().square().mean().sqrt().item(),
    )


@pytest.mark.sample(48)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", [16, 32, 96, 480])
@pytest.mark.parametrize("bits", WIDTHS)
def test_every_kind(bits: int, group: int, kind: str) -> None:
    weights = planes(kind, bits, group, 37, 480)
    dtype = DTYPES[bits % 3]
    with poison():
        assert native.dequantize(weights, dtype).equal(naive.dequantize(weights, dtype))
    for rows in (1, 3, 11):
        x = torch.randn(rows, 480 + 3).to(dtype)[:, 3:]
        with poison():
            y, e = native.matmul(x, weights), native.matmul_exact(x, weights)
        assert_near(y, truth(x, weights, kind))
        assert_near(e, naive.matmul(x.double(), weights))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 32), (16, 64), (33, 1056), (70, 544)], ids=str)
@pytest.mark.parametrize("rows", [0, 1, 2, 4, 5, 8, 9, 17, 130, 1030])
def test_shapes(rows: int, shape: tuple[int, int], dtype: torch.dtype) -> None:
    weights = planes("super", 6, 16, *shape)
    x = torch.randn(rows, shape[1]).to(dtype)
    with poison():
        y, e = native.matmul(x, weights), native.matmul_exact(x, weights)
    assert y.shape == (rows, shape[0])
    if rows:
        assert_near(y, truth(x, weights, "super"), edge=1e-4)
        assert_near(e, naive.matmul(x.double(), weights), edge=1e-4)


@pytest.mark.parametrize("call", [native.matmul, native.matmul_exact])
@pytest.mark.parametrize(("kind", "bits", "group"), [("super", 4, 32), ("zero", 8, 16)])
def test_rows_are_batch_invariant(call: Any, kind: str, bits: int, group: int) -> None:
    weights = planes(kind, bits, group, 70, 1056)
    x = torch.randn(300, 1056).bfloat16()
    alone = torch.cat([call(row, weights) for row in x.split(1)])
    for first, last in ((0, 300), (3, 5), (0, 6), (7, 14), (1, 9), (1, 10), (11, 30), (20, 290)):
        assert torch.equal(call(x[first:last], weights), alone[first:last])


@pytest.mark.parametrize("call", [native.grouped_matmul, native.grouped_matmul_exact])
@pytest.mark.parametrize("kind", ["super", "integers"])
@pytest.mark.parametrize(
    "runs", [[0, 1, 0], [1, 1, 1, 1], [0, 3, 0, 0, 18, 1, 0], [0, 600, 700], [0, 0]], ids=str
)
def test_grouped(runs: list[int], kind: str, call: Any) -> None:
    weights = planes(kind, 4, 32, 37, 96, len(runs))
    experts = torch.arange(len(runs)).repeat_interleave(torch.tensor(runs))
    x = torch.randn(len(experts), 96)
    with poison():
        y = call(x, weights, experts)
    assert y.shape == (len(experts), 37)
    for expert in set(experts.tolist()):
        mine = experts == expert
        alone = weights.select(slice(expert, expert + 1)).rows()
        one = native.matmul if call is native.grouped_matmul else native.matmul_exact
        assert torch.equal(y[mine], one(x[mine], alone))
        exact = call is native.grouped_matmul_exact
        assert_near(y[mine], naive.matmul(x[mine], alone) if exact else truth(x[mine], alone, kind))


def test_one_thread_and_two_give_the_same_bits() -> None:
    weights, x = planes("super", 4, 32, 300, 1056), torch.randn(90, 1056)
    before, found = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append((native.matmul(x, weights), native.matmul_exact(x, weights)))
    torch.set_num_threads(before)
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_nan_and_inf_make_the_row_nan(bad: float) -> None:
    weights, x = planes("zero", 4, 32, 20, 96), torch.randn(3, 96)
    good = native.matmul(x, weights)
    x[1, 40] = bad
    y = native.matmul(x, weights)
    assert y[1].isnan().all() and torch.equal(y[[0, 2]], good[[0, 2]])
    assert not native.matmul_exact(x, weights)[1].isfinite().any()


def test_rows_of_zeros_are_zeros() -> None:
    weights = planes("offset", 4, 32, 20, 96)
    assert native.matmul(torch.zeros(3, 96), weights).eq(0).all()


def test_e4m3_table() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    table = codes.view(torch.float8_e4m3fn).float()
    rows = codes.view(8, 32)
    weights = Planes(codes=pack_codes(rows, 8), scale=torch.ones(8, 1), table=table)
    w = native.dequantize(weights, torch.float32)
    torch.testing.assert_close(w.flatten(), table, rtol=0, atol=0, equal_nan=True)
    x = torch.randn(5, 32)
    y = native.matmul(x, weights)
    assert y[:, [3, 7]].isnan().all()
    keep = [0, 1, 2, 4, 5, 6]
    assert_near(y[:, keep], x.double() @ w[keep].double().t())


@pytest.mark.parametrize("experts", [(), (3,)], ids=str)
@pytest.mark.parametrize("kind", ["super", "float zeros", "e4m3", "double", "table"])
def test_interleaved_planes_convert_back(kind: str, experts: tuple[int, ...]) -> None:
    weights = planes(kind, 5 if kind != "table" else 3, 32, 37, 96, *experts)
    interleaved = native.NativeWeight(weights)
    assert interleaved.shape == weights.shape
    again, ids = interleaved.planes(), torch.tensor([0, 36, 15, 16, 36])
    ids = torch.cat((ids, ids + 37, ids + 74)) if experts else ids
    taken, rows = interleaved.select(ids), weights.rows().select(ids)
    for ours, theirs in ((again, weights), (taken, rows)):
        assert ours.join_key == theirs.join_key
        for name, tensor in theirs.tensors().items():
            assert ours.tensors()[name].equal(tensor), name
    x = torch.randn(4, 96)
    if not experts:
        assert native.matmul(x, interleaved).equal(native.matmul(x, weights))
    assert native.dequantize(interleaved, torch.float32).equal(
        naive.dequantize(weights, torch.float32)
    )


def test_moved_tensors_refresh_the_struct() -> None:
    weights, x = planes("zero", 4, 32, 16, 96), torch.randn(3, 96)
    interleaved = native.NativeWeight(weights)
    for product in (native.matmul, native.matmul_exact):
        first = product(x, interleaved)
        for part in interleaved.tensors.values():
            part.data = part.flip(-1)
        assert product(x, interleaved).equal(first.flip(1))
        assert not product(x, interleaved).equal(first)


def test_offsets_beyond_32_bits() -> None:
    """The panels of one weight end beyond 2 ** 32 bytes; the pages between are never touched."""
    n, k = 70_000, 64 * 1024
    few = Planes(
        codes=(torch.randint(0, 256, (16, k // 32, 32), dtype=torch.uint8),),
        scale=torch.ones(16, 1),
        zero=128,
    )
    alone, x = native.NativeWeight(few), torch.randn(1, k)
    codes = torch.empty(n * k, dtype=torch.uint8).view(torch.int32).view(n // 16, k // 4, 16)
    codes[-1] = alone.tensors["codes0"][0]
    many = native.NativeWeight(few.map(lambda tensor: tensor[None]))
    many.shape = (n // 16, 16, k)
    many.tensors = {
        "codes0": codes[:, None],
        "scale": torch.ones(1, 1, 1, 16).expand(n // 16, 1, 1, 16).contiguous(),
    }
    last = torch.tensor([n // 16 - 1])
    assert native.grouped_matmul(x, many, last).equal(native.matmul(x, alone))


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("group", [16, 32])
@pytest.mark.parametrize("bits", WIDTHS)
def test_the_largest_products(bits: int, group: int, rows: int) -> None:
    """Kernels that add products in 16 bits do so only as far as the sums fit."""
    codes = torch.full((16, 64), 2**bits - 1, dtype=torch.uint8)
    scale = torch.ones(16, 64 // group)
    weights = Planes(codes=pack_codes(codes, bits), scale=scale, zero=0)
    for sign in (1, -1):
        y = native.matmul(torch.full((rows, 64), 127.0 * sign), weights)
        assert y.equal(torch.full((rows, 16), 127.0 * sign * 64 * (2**bits - 1)))


BASELINE = build.Variant("x86-64")


@pytest.mark.slow
@pytest.mark.parametrize("variant", [*build.VARIANTS["x86_64"], BASELINE], ids=lambda v: v.name)
def test_other_cpus(variant: build.Variant, monkeypatch: pytest.MonkeyPatch) -> None:
    if platform.machine() != "x86_64" or lacking(variant, cpu_flags()):
        pytest.skip(lacking(variant, cpu_flags()) or platform.machine())
    other = built_for(variant, monkeypatch)
    for kind in KINDS:
        for bits, group in ((1, 16), (3, 32), (4, 480), (6, 16), (8, 96)):
            weights, x = planes(kind, bits, group, 37, 480), torch.randn(11, 480).half()
            assert other.dequantize(weights, x.dtype).equal(naive.dequantize(weights, x.dtype))
            for rows in (1, 11):
                some = x[:rows]
                assert_near(other.matmul(some, weights), truth(some, weights, kind))
                exact = naive.matmul(some.double(), weights)
                assert_near(other.matmul_exact(some, weights), exact)


def built_for(variant: build.Variant, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module over a library that is compiled for a variant."""
    monkeypatch.setattr(library, "this_variant", lambda: (variant, ""))
    spec = spec_from_file_location("lesser", native.__file__)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.undo()
    return module


@pytest.mark.parametrize(
    ("exact", "group", "kernel"),
    [(False, 32, "native"), (True, 32, "native exact"), (True, 16, "native exact")],
)
@pytest.mark.parametrize("kernels", [ops.MATMUL, ops.GROUPED_MATMUL])
def test_choice(kernels: Any, exact: bool, group: int, kernel: str) -> None:
    for deterministic in (False, True):
        target = Target(
            device=torch.device("cpu"),
            dtype=torch.bfloat16,
            deterministic=deterministic,
            exact=exact,
        )
        assert Op(kernels, bits=4, group=group).select(target).kernel.name == kernel
        assert "naive" in Op(kernels, bits=4, group=24).select(target).kernel.name


@pytest.mark.parametrize("kind", ["super", "integers", "table"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_without_a_compiler_the_results_are_the_same(
    kind: str, deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel that replaces the native one quantizes x in the same cases."""
    monkeypatch.setitem(sys.modules, native.__name__, None)  # its import fails
    weights, x = planes(kind, 4, 32, 37, 96, 2), torch.randn(5, 96)
    experts = torch.tensor([0, 0, 0, 1, 1])
    target = Target(device=torch.device("cpu"), dtype=torch.float32, deterministic=deterministic)
    first = weights.select(slice(0, 1)).rows()
    product, grouped = Op(ops.MATMUL, bits=4, group=32), Op(ops.GROUPED_MATMUL, bits=4, group=32)
    for op in (product, grouped):
        assert op.select(target).kernel.name.startswith("naive int8")
    assert_near(product(x, first), native.matmul(x, first))
    assert_near(grouped(x, weights, experts), native.grouped_matmul(x, weights, experts))
    exact = replace(target, exact=True)
    assert product.select(exact).kernel.name.startswith("naive, ")
