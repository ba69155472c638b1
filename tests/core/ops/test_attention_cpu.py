"""Attention on CPU against the naive twin: ragged batches, features, where the blocks lie."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from ostro.core.ops.attention import HostRagged, Ragged, cpu, naive

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
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor, Ragged]


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
    layout = Ragged(
        table=table,
        starts=torch.tensor(starts, dtype=torch.int32),
        lengths=torch.tensor(lengths, dtype=torch.int32),
        slots=torch.zeros(starts[-1], dtype=torch.int64),
        max_queries=max(queries),
        max_length=max(lengths),
        host=HostRagged(starts, list(lengths), blocks) if host else None,
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


def check(case: Batch, tolerance: float, **features: Any) -> None:
    expected = naive.attention(*case, D**-0.5, **features)
    assert not expected.isnan().any()
    result = cpu.attention(*case, D**-0.5, **features)
    assert result.dtype == expected.dtype
    torch.testing.assert_close(result, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("fill", [float("nan"), float("inf"), 7.0])
@pytest.mark.parametrize("how", ["in a row", "shuffled", "far apart"])
@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("name", BATCHES)
def test_float32(name: str, features: str, how: str, fill: float) -> None:
    queries, lengths = BATCHES[name]
    asked = FEATURES[features]
    window = asked.get("window", 0)
    case = batch(queries, lengths, spread(lengths, how), fill=fill, window=window)
    check(case, 1e-5, **asked)


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("name", BATCHES)
def test_bfloat16(name: str, features: str) -> None:
    queries, lengths = BATCHES[name]
    blocks = spread(lengths, "shuffled")
    check(
        batch(queries, lengths, blocks, dtype=torch.bfloat16, fill=1.0), 0.03, **FEATURES[features]
    )


def test_shared_blocks() -> None:
    """Sequences that begin with the same blocks."""
    queries, lengths = [1, 1, 1], [40, 50, 36]
    blocks = [[2, 3, 4], [2, 3, 5, 6], [2, 3, 7]]
    check(batch(queries, lengths, blocks, fill=7.0), 1e-5)


def test_without_host_lists() -> None:
    queries, lengths = BATCHES["mixed"]
    check(batch(queries, lengths, spread(lengths, "shuffled"), host=False), 1e-5)


def test_plan_is_made_once_per_step() -> None:
    queries, lengths = BATCHES["decode"]
    q, _, _, layout = batch(queries, lengths, spread(lengths, "shuffled"), fill=0.0)
    assert layout.host is not None
    first = cpu.planned(layout, BLOCK, 0, q.dtype)
    assert cpu.planned(layout, BLOCK, 0, q.dtype) is first
    assert cpu.planned(layout, BLOCK, 7, q.dtype) is not first
    assert first.whole and isinstance(first.stretches[0].pool, slice)


def test_rows_of_unlike_length_are_not_padded_to_the_longest() -> None:
    lengths = [16, 400, 20, 380]
    layout = batch([1] * 4, lengths, spread(lengths, "in a row"))[-1]
    found = cpu.planned(layout, BLOCK, 0, torch.float32).stretches
    together = [{row.index for row in at.rows} for at in found]
    assert {1, 3} in together and all(some <= {0, 2} or some == {1, 3} for some in together)


def test_a_row_far_away_is_gathered_and_the_others_read_in_place() -> None:
    blocks = [[2, 3, 90], [80, 83, 86], [81, 84, 87], [82, 85, 88]]
    case = batch([1] * 4, [40] * 4, blocks, fill=7.0)
    check(case, 1e-5)
    near, far = cpu.planned(case[-1], BLOCK, 0, torch.float32).stretches
    assert near.pool == slice(80, 89) and [row.index for row in near.rows] == [1, 2, 3]
    assert isinstance(far.pool, torch.Tensor) and [row.index for row in far.rows] == [0]
