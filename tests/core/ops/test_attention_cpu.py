"""Attention on CPU against the naive version: ragged batches, features, where the blocks lie."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
import torch

from ostro.core.ops.attention import AttentionMetadata, HostMetadata, cpu, naive, native
from ostro.core.threads import THREADS
from ostro.plugins.conformance.kernels import poison

HEADS, KV, D, BLOCK = 8, 2, 32, 16
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 7},
    "wide window": {"window": 40},
    "softcap": {"softcap": 5.0},
    "sinks": {"sinks": torch.linspace(-1, 2, HEADS)},
    "alibi": {"alibi": torch.linspace(0.1, 0.8, HEADS)},
    "window, sinks": {"window": 20, "sinks": torch.linspace(-1, 2, HEADS)},
    "all but sinks": {"window": 33, "softcap": 3.0, "alibi": torch.linspace(0.1, 0.8, HEADS)},
}
BATCHES: dict[str, tuple[list[int], list[int]]] = {
    "mixed": ([1, 5, 1, 40, 1, 0], [1, 5, 100, 40, 33, 0]),
    "prefix and long": ([1, 5, 300], [64, 32, 500]),
    "decode": ([1] * 6, [64, 60, 70, 33, 50, 48]),
    "decode, whole blocks": ([1] * 4, [64, 64, 64, 64]),
    "decode, ragged": ([1] * 3, [10, 300, 20]),
    "one": ([1], [77]),
}
MODULES = pytest.mark.parametrize("module", [native, cpu], ids=["native", "cpu"])
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor, AttentionMetadata]


def batch(
    queries: Sequence[int],
    lengths: Sequence[int],
    blocks: list[list[int]],
    *,
    dtype: torch.dtype = torch.float32,
    fill: float = float("nan"),
    window: int = 0,
    host: bool = True,
) -> Batch:
    """Rows, caches and layout; every place that no row sees holds `fill`."""
    torch.manual_seed(1)
    size = max((b for ids in blocks for b in ids), default=0) + 3
    k_cache = torch.full((size, KV, BLOCK, D), fill, dtype=dtype)
    v_cache = torch.full((size, KV, BLOCK, D), fill, dtype=dtype)
    starts = [0]
    for s, (n, length) in enumerate(zip(queries, lengths, strict=True)):
        starts.append(starts[-1] + n)
        for p in range(max(0, length - n + 1 - window) if window else 0, length):
            for cache in (k_cache, v_cache):
                cache[blocks[s][p // BLOCK], :, p % BLOCK] = torch.randn(KV, D).to(dtype)
    table = torch.zeros(len(lengths), max(map(len, blocks)), dtype=torch.int32)
    for s, ids in enumerate(blocks):
        table[s, : len(ids)] = torch.tensor(ids, dtype=torch.int32)
    layout = AttentionMetadata(
        table=table,
        starts=torch.tensor(starts, dtype=torch.int32),
        lengths=torch.tensor(lengths, dtype=torch.int32),
        slots=torch.zeros(starts[-1], dtype=torch.int64),
        max_queries=max(queries),
        max_length=max(lengths),
        host=HostMetadata(starts, list(lengths), blocks) if host else None,
    )
    return torch.randn(starts[-1], HEADS, D).to(dtype), k_cache, v_cache, layout


def spread(lengths: Sequence[int], how: str) -> list[list[int]]:
    """Blocks of each sequence: in a row, or as `how` says."""
    counts = [-(-length // BLOCK) for length in lengths]
    ids = list(range(2, 2 + sum(counts)))
    if how == "shuffled":
        random.Random(0).shuffle(ids)
    if how == "far apart":
        ids = [5 * i for i in ids]
    taken = iter(ids)
    return [[next(taken) for _ in range(count)] for count in counts]


def check(module: ModuleType, case: Batch, tolerance: float, **features: Any) -> None:
    expected = naive.attention(*case, D**-0.5, **features)
    assert not expected.isnan().any()
    with poison():
        result = module.attention(*case, D**-0.5, **features)
    assert result.dtype == expected.dtype
    torch.testing.assert_close(result, expected, rtol=0, atol=tolerance)


PAIRS = [("in a row", float("nan")), ("shuffled", float("inf")), ("far apart", 7.0)]
"""Layouts of blocks and the values outside of them: pairs, not the product."""


@pytest.mark.sample(20)
@MODULES
@pytest.mark.parametrize(("how", "fill"), PAIRS)
@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("name", BATCHES)
def test_float32(module: ModuleType, name: str, features: str, how: str, fill: float) -> None:
    queries, lengths = BATCHES[name]
    asked = FEATURES[features]
    window = asked.get("window", 0)
    case = batch(queries, lengths, spread(lengths, how), fill=fill, window=window)
    check(module, case, 1e-5, **asked)


@pytest.mark.sample(20)
@MODULES
@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("name", BATCHES)
def test_bfloat16(module: ModuleType, name: str, features: str) -> None:
    queries, lengths = BATCHES[name]
    blocks = spread(lengths, "shuffled")
    check(
        module,
        batch(queries, lengths, blocks, dtype=torch.bfloat16, fill=1.0),
        0.03,
        **FEATURES[features],
    )


@MODULES
def test_shared_blocks(module: ModuleType) -> None:
    """Sequences that begin with the same blocks."""
    queries, lengths = [1, 1, 1], [40, 50, 36]
    blocks = [[2, 3, 4], [2, 3, 5, 6], [2, 3, 7]]
    check(module, batch(queries, lengths, blocks, fill=7.0), 1e-5)


@MODULES
def test_without_host_lists(module: ModuleType) -> None:
    queries, lengths = BATCHES["mixed"]
    check(module, batch(queries, lengths, spread(lengths, "shuffled"), host=False), 1e-5)


def test_plan_is_made_once_per_step() -> None:
    queries, lengths = BATCHES["mixed"]
    layout = batch(queries, lengths, spread(lengths, "shuffled"), fill=0.0)[-1]
    first = cpu.planned(layout, BLOCK, 0)
    assert cpu.planned(layout, BLOCK, 0) is first
    assert cpu.planned(layout, BLOCK, 7) is not first


@pytest.mark.parametrize("tiled", [True, False])
@pytest.mark.parametrize("shape", [(6, 3, 24, 40), (4, 4, 33, 16), (16, 1, 16, 80), (5, 1, 8, 7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_odd_shapes(
    dtype: torch.dtype,
    shape: tuple[int, int, int, int],
    tiled: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Groups of 1, 2, 4, 5 and 16 heads, dimensions that fill no register, values unlike keys."""
    monkeypatch.setattr(native, "TILED", tiled)
    heads, kv, d, dv = shape
    queries, lengths = BATCHES["mixed"]
    *_, layout = batch(queries, lengths, spread(lengths, "shuffled"))
    blocks = int(layout.table.max()) + 1
    q = torch.randn(layout.starts[-1], heads, d).to(dtype)
    k_cache = torch.randn(blocks, kv, BLOCK, d).to(dtype)
    v_cache = torch.randn(blocks, kv, BLOCK, dv).to(dtype)
    expected = naive.attention(q, k_cache, v_cache, layout, d**-0.5)
    with poison():
        result = native.attention(q, k_cache, v_cache, layout, d**-0.5)
    tolerance = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 0.03}[dtype]
    torch.testing.assert_close(result, expected, rtol=0, atol=tolerance)


def test_a_long_row_is_cut_for_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(THREADS, "limit", 16)
    check(native, batch([1], [1500], spread([1500], "shuffled")), 1e-5, **FEATURES["sinks"])


def test_the_number_of_threads_does_not_change_the_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(THREADS, "limit", 16)
    case = batch([1], [1500], spread([1500], "shuffled"))
    found = []
    for threads in (1, 16):
        torch.set_num_threads(threads)
        found.append(native.attention(*case, 0.3))
    assert torch.equal(*found)


def test_a_cache_of_another_type() -> None:
    q, k_cache, v_cache, layout = batch([1, 5], [40, 20], spread([40, 20], "shuffled"), fill=1.0)
    case = q, k_cache.bfloat16(), v_cache.bfloat16(), layout
    check(native, case, 1e-5)
