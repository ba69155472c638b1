"""kv_write into pages of one byte an element: what is rounded how, and that all kernels agree."""

from types import ModuleType

import pytest
import torch
from torch import Tensor

from ostro.core.ops.kv_write import naive, native, triton
from ostro.core.ops.kv_write.scaled import SCALED_LIMITS, Scaled, narrow, widen
from ostro.plugins.conformance.kernels import DEVICE, compile_for, targets

BLOCK = 4
TYPES = pytest.mark.parametrize("dtype", SCALED_LIMITS, ids=["int8", "fp8"])
KERNELS = pytest.mark.parametrize("module", [triton, native], ids=["triton", "native"])
SLOTS = {
    "none": [],
    "decode": [17, 2, 8],
    "ragged": [3, 4, 5, 20, 21, 0, 1, 11],
    "padded": [6, 7, -1, 12, -1],
    "padding": [-1, -1],
}


def pages(heads: int, d: int, dtype: torch.dtype) -> Scaled:
    """Pages full of what nobody wrote."""
    elements = torch.full((6, heads, BLOCK, d), 0x5A, dtype=torch.uint8, device=DEVICE)
    scales = torch.full((6, heads, BLOCK), 7.0, device=DEVICE)
    return Scaled(elements.view(dtype), scales)


def same(mine: Scaled, theirs: Scaled) -> bool:
    return torch.equal(mine.bits, theirs.bits) and torch.equal(mine.scales, theirs.scales)


def rows(count: int, heads: int, d: int, dv: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys and values as views of fused rows, of magnitudes from 1e-4 to 1e4."""
    torch.manual_seed(0)
    fused = torch.randn(count, heads * (d + dv) + 5, device=DEVICE)
    fused = (fused * 10 ** torch.linspace(-4, 4, max(count, 1), device=DEVICE)[:count, None]).to(
        dtype
    )
    k, v = fused[:, 5:].split((heads * d, heads * dv), 1)
    return k.unflatten(1, (heads, d)), v.unflatten(1, (heads, dv))


@TYPES
@KERNELS
@pytest.mark.parametrize("floats", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 10, 6), (2, 64, 64), (5, 80, 96), (1, 17, 128)])
@pytest.mark.parametrize("name", SLOTS)
def test_kernels_write_the_bits_of_the_naive_one(
    module: ModuleType,
    name: str,
    shape: tuple[int, int, int],
    floats: torch.dtype,
    dtype: torch.dtype,
) -> None:
    heads, d, dv = shape
    k, v = rows(len(SLOTS[name]), heads, d, dv, floats)
    slots = torch.tensor(SLOTS[name], dtype=torch.int64, device=DEVICE)
    mine, truth = (tuple(pages(heads, n, dtype) for n in (d, dv)) for _ in range(2))
    module.kv_write(k, v, *mine, slots)
    naive.kv_write(k, v, *truth, slots)
    assert same(mine[0], truth[0]) and same(mine[1], truth[1])


@pytest.mark.sample(2)
@TYPES
@pytest.mark.parametrize("module", [naive, triton, native], ids=["naive", "triton", "native"])
def test_chunks_write_the_bits_of_the_whole(module: ModuleType, dtype: torch.dtype) -> None:
    k, v = rows(11, 3, 10, 6, torch.float32)
    slots = torch.arange(5, 16, device=DEVICE)
    whole, chunks = (tuple(pages(3, n, dtype) for n in (10, 6)) for _ in range(2))
    module.kv_write(k, v, *whole, slots)
    for part in (slice(0, 4), slice(4, 10), slice(10, 11)):
        module.kv_write(k[part], v[part], *chunks, slots[part])
    assert same(whole[0], chunks[0]) and same(whole[1], chunks[1])


@TYPES
@pytest.mark.parametrize("module", [naive, triton, native], ids=["naive", "triton", "native"])
def test_every_value_goes_to_the_nearest_ties_to_even(
    module: ModuleType, dtype: torch.dtype
) -> None:
    """The largest of a row is the limit, so its scale is 1 and its elements are the values."""
    limit = SCALED_LIMITS[dtype]
    if dtype == torch.int8:
        values = torch.arange(-127, 127.25, 0.25)
        nearest = torch.tensor([float(round(x)) for x in values.tolist()])
    else:
        bits = torch.arange(0x7F, dtype=torch.uint8)
        exact = bits.view(dtype).float()
        middle = (exact[1:] + exact[:-1]) / 2
        even = torch.where(bits[:-1] % 2 == 0, exact[:-1], exact[1:])
        above = middle.nextafter(torch.tensor(1e9))
        below = middle.nextafter(torch.tensor(-1e9))
        values = torch.cat([exact, middle, above, below])
        nearest = torch.cat([exact, even, exact[1:], exact[:-1]])
        values, nearest = torch.cat([values, -values]), torch.cat([nearest, -nearest])
    values, nearest = (torch.cat([x, torch.tensor([limit])]) for x in (values, nearest))
    k = values.to(DEVICE).view(1, 1, -1)
    mine = pages(1, len(values), dtype), pages(1, len(values), dtype)
    module.kv_write(k, k, *mine, torch.tensor([9], device=DEVICE))
    for cache in mine:
        assert cache.scales[2, 0, 1] == 1
        assert torch.equal(cache.elements[2, 0, 1].float().cpu(), nearest)


@TYPES
def test_what_is_written_is_near(dtype: torch.dtype) -> None:
    x = torch.randn(100, 4, 64)
    off = (widen(*narrow(x, dtype)) - x).abs() / x.abs().amax(-1, keepdim=True)
    assert off.max() <= (0.5 / 127 if dtype == torch.int8 else 16 / 448) * 1.0001


@TYPES
@pytest.mark.parametrize("module", [naive, triton, native], ids=["naive", "triton", "native"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_stays_none(module: ModuleType, bad: float, dtype: torch.dtype) -> None:
    k = torch.ones(2, 3, 20, device=DEVICE)
    k[0, 1, 17] = bad
    mine = pages(3, 20, dtype), pages(3, 20, dtype)
    module.kv_write(k, k, *mine, torch.tensor([0, 1], device=DEVICE))
    for cache in mine:
        read = widen(cache.elements, cache.scales)[0].cpu()
        assert read[1, 0].isnan().all()
        assert read[[0, 2], 0].eq(1).all() and read[:, 1].eq(1).all()


@TYPES
@pytest.mark.parametrize("module", [naive, triton, native], ids=["naive", "triton", "native"])
@pytest.mark.parametrize("size", [0.0, 1e-45, 2e-43, 1e-39])
def test_the_smallest_rows_are_zeros_or_near(
    module: ModuleType, size: float, dtype: torch.dtype
) -> None:
    k = torch.full((1, 2, 20), size, device=DEVICE)
    k[0, 1] *= -1
    mine = pages(2, 20, dtype), pages(2, 20, dtype)
    module.kv_write(k, k, *mine, torch.tensor([0], device=DEVICE))
    for cache in mine:
        read = widen(cache.elements, cache.scales)[0, :, 0]
        assert torch.allclose(read, k[0], rtol=0, atol=2e-43)


@TYPES
@pytest.mark.parametrize("target", targets())
def test_compiles_without_spills(target: str, dtype: torch.dtype) -> None:
    floats = torch.float16 if target == "sm_75" else torch.bfloat16
    fused = torch.empty(64, 48, 128, dtype=floats, device="meta")
    cache = Scaled(
        torch.empty(1000, 8, 16, 128, dtype=dtype, device="meta"),
        torch.empty(1000, 8, 16, device="meta"),
    )
    slots = torch.empty(64, dtype=torch.int64, device="meta")
    call = "ostro.core.ops.kv_write.triton:kv_write"
    (build,) = compile_for(target, call, fused[:, 32:40], fused[:, 40:], cache, cache, slots)
    assert build.spills == 0 and build.registers <= 128 and build.shared <= 16384
