"""kv_write: every row lands in its slot and nothing else changes."""

from types import ModuleType

import pytest
import torch
from torch import Tensor

from ostro.core.ops.kv_write import naive, native, triton
from ostro.plugins.conformance.kernels import DEVICE

BLOCK = 4
MODULES = pytest.mark.parametrize(
    "module", [naive, triton, native], ids=["naive", "triton", "native"]
)
SLOTS = {
    "none": [],
    "decode": [17, 2, 8],
    "prefill": [*range(5, 16)],
    "ragged": [3, 4, 5, 20, 21, 0, 1, 11],
    "padded": [6, 7, -1, 12, -1],
    "padding": [-1, -1],
}


def step(slots: list[int], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Keys and values as views of fused rows, and caches full of ones; 3 heads, dims 10 and 6."""
    torch.manual_seed(0)
    fused = torch.randn(len(slots), 3 * 16 + 5, device=DEVICE)
    k = fused[:, 5:35].unflatten(1, (3, 10))
    v = fused[:, 35:].unflatten(1, (3, 6))
    k_cache = torch.ones(6, 3, BLOCK, 10, device=DEVICE).to(dtype)
    v_cache = torch.ones(6, 3, BLOCK, 6, device=DEVICE).to(dtype)
    return k, v, k_cache, v_cache, torch.tensor(slots, dtype=torch.int64, device=DEVICE)


@MODULES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", SLOTS)
def test_rows_land_in_their_slots(module: ModuleType, name: str, dtype: torch.dtype) -> None:
    k, v, k_cache, v_cache, slots = step(SLOTS[name], dtype)
    if module is native:  # casts nothing by itself
        k, v = k.to(dtype), v.to(dtype)
    expected = (k_cache.clone(), v_cache.clone())
    for row, slot in enumerate(SLOTS[name]):
        if slot >= 0:
            for rows, cache in zip((k, v), expected, strict=True):
                cache[slot // BLOCK, :, slot % BLOCK] = rows[row].to(dtype)
    module.kv_write(k, v, k_cache, v_cache, slots)
    assert torch.equal(k_cache, expected[0]) and torch.equal(v_cache, expected[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_casts_to_the_caches_type(dtype: torch.dtype) -> None:
    k, v, k_cache, v_cache, slots = step(SLOTS["ragged"], dtype)
    naive.kv_write(k, v, k_cache, v_cache, slots)
    assert torch.equal(k_cache[5, :, 1].float(), k[4].to(dtype).float())
    assert torch.equal(v_cache[5, :, 1].float(), v[4].to(dtype).float())
    assert torch.equal(k_cache[5, :, 2].float(), torch.ones(3, 10, device=DEVICE))
