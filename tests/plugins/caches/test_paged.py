"""The paged cache kind: its bytes, its copies, and how many tokens fit."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

from ostro.core.cache import CacheSpec
from ostro.core.engine.startup.memory import plan_blocks
from ostro.core.ops.attention import AttentionMetadata
from ostro.core.ops.kv_write.naive import kv_write
from ostro.plugins.caches.paged.kind import Cross, Paged, Pages

CPU = torch.device("cpu")
TYPES = [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn]


def made(dtype: torch.dtype, d: int = 20, dv: int = 12, heads: int = 3, layers: int = 2) -> Paged:
    spec = CacheSpec(heads=heads, key_dim=d, value_dim=dv)
    return Paged(spec, layers, block=4, dtype=dtype, device=CPU)


def view(kind: Paged, layer: int, slots: list[int]) -> Pages:
    ints = torch.zeros(1, 1, dtype=torch.int32)
    return kind.view(layer, AttentionMetadata(ints, ints, ints, torch.tensor(slots), 1, 1))


@pytest.mark.parametrize("dtype", TYPES)
def test_bytes_are_what_is_allocated(dtype: torch.dtype) -> None:
    kind = made(dtype)
    kind.allocate(7)
    assert kind.bytes(7) == sum(tensor.nbytes for tensor in kind.tensors)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_large_cache_asks_for_no_huge_pages() -> None:
    """One token would take 2 MB of memory in each layer."""
    kind = made(torch.float32, d=64, dv=64, layers=60)
    kind.allocate(256)
    address = kind.tensors[0].data_ptr() + kind.tensors[0].nbytes // 2
    for area in re.split(r"\n(?=[0-9a-f]+-)", Path("/proc/self/smaps").read_text()):
        start, end = (int(word, 16) for word in area.split(maxsplit=1)[0].split("-"))
        if start <= address < end:
            flags = area.partition("VmFlags:")[2].split()
            assert flags and "hg" not in flags
            return
    pytest.fail("the cache is in no area of memory")


def test_every_layer_has_pages_of_its_own() -> None:
    kind = made(torch.int8)
    kind.allocate(6)
    pages = view(kind, 1, [3])
    kv_write(torch.ones(1, 3, 20), torch.ones(1, 3, 12), pages.k, pages.v, pages.batch.slots)
    for tensor in kind.tensors:
        assert tensor[1].float().any() and not tensor[0].float().any()


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize(("d", "more"), [(64, 1.88), (128, 1.94), (256, 1.97)])
def test_almost_twice_the_tokens_fit(dtype: torch.dtype, d: int, more: float) -> None:
    def tokens(dtype: torch.dtype) -> int:
        kind = made(dtype, d, d, heads=8, layers=28)
        [blocks] = plan_blocks([kind], 10**9, 4096, 64, 10**6)
        assert kind.bytes(blocks) <= 10**9
        return blocks * kind.block

    assert tokens(dtype) / tokens(torch.bfloat16) == pytest.approx(more, abs=0.01)


def test_only_heads_support_quantized_caches() -> None:
    heads, latents = CacheSpec(heads=2, key_dim=8, value_dim=8), CacheSpec(heads=1, key_dim=576)
    for dtype in (torch.int8, torch.float8_e4m3fn):
        assert Paged.supports_quantized(heads, dtype)
        assert not Paged.supports_quantized(latents, dtype) and not Cross.supports_quantized(
            heads, dtype
        )
    assert not Paged.supports_quantized(heads, torch.float8_e5m2)
